// Serves the protocol of Redis at the address that is its argument. Argo CD keeps its cache there.
package main

import (
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("name the address")
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	// Its keys have no clock of their own.
	for range time.Tick(time.Second) {
		server.FastForward(time.Second)
	}
}
