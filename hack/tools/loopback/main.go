// Helps the scripts that run a fleet on the loopback. The first argument says what to do:
//
//	ports COUNT         print free ports, one a line
//	forward LISTEN TO   pass connections on from one address to another
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"sync"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "ports":
		err = printPorts(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "forward":
		err = forward(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("unknown arguments %q", os.Args[1:])
	}
	if err != nil {
		log.Fatal(err)
	}
}

// forward passes each connection to an address on to another one. A connection ends with either side.
func forward(listen, to string) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go connect(connection, to)
	}
}

func connect(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	var once sync.Once
	ended := make(chan struct{})
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			io.Copy(pair[0], pair[1])
			once.Do(func() { close(ended) })
		}()
	}
	<-ended
}

// printPorts holds all listeners until the last port is known, so that they differ.
func printPorts(count string) error {
	wanted, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for range wanted {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	}
	return nil
}
