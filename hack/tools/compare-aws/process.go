package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const timeout = 180 * time.Second

// bench is moto with a network, and both drivers.
type bench struct {
	folder       string
	processes    []*exec.Cmd
	moto         *moto
	network      *network
	theirs, ours *driver
}

func start(ctx context.Context, arguments arguments) (*bench, error) {
	folder, err := os.MkdirTemp("", "compare-aws-")
	if err != nil {
		return nil, err
	}
	bench := &bench{folder: folder}
	if err := bench.begin(ctx, arguments); err != nil {
		bench.stop()
		return nil, err
	}
	return bench, nil
}

func (b *bench) begin(ctx context.Context, arguments arguments) (err error) {
	if b.moto, err = b.startMoto(ctx, arguments.moto); err != nil {
		return err
	}
	if b.network, err = openNetwork(ctx, b.moto); err != nil {
		return err
	}
	if b.theirs, err = b.startDriver(ctx, "theirs", arguments.theirs); err != nil {
		return err
	}
	b.ours, err = b.startDriver(ctx, "ours", arguments.ours)
	return err
}

func (b *bench) stop() {
	for _, process := range b.processes {
		// It may have ended already.
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	_ = os.RemoveAll(b.folder)
}

// launch starts a program without any settings of AWS that the user may have. Its output is printed if it has to be explained.
func (b *bench) launch(name, program string, environment []string, line ...string) error {
	process := exec.Command(program, line...)
	log, err := os.Create(filepath.Join(b.folder, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	process.Stdout, process.Stderr = log, log
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "AWS_") {
			process.Env = append(process.Env, variable)
		}
	}
	// No file of the user either.
	process.Env = append(process.Env, "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true")
	process.Env = append(process.Env, environment...)
	if err := process.Start(); err != nil {
		return err
	}
	b.processes = append(b.processes, process)
	return nil
}

// logs are the last lines of the processes.
func (b *bench) logs() string {
	var lines []string
	for _, name := range []string{"moto", "theirs", "ours"} {
		all := strings.Split(b.log(name), "\n")
		lines = append(lines, all[max(0, len(all)-4):]...)
	}
	return strings.Join(lines, "\n")
}

// log is what a process has printed.
func (b *bench) log(name string) string {
	text, _ := os.ReadFile(filepath.Join(b.folder, name+".log"))
	return string(text)
}

func (b *bench) startMoto(ctx context.Context, program string) (*moto, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(address)
	if err := b.launch("moto", program, nil, "-H", host, "-p", port); err != nil {
		return nil, err
	}
	moto := &moto{url: "http://" + address}
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err = moto.ask(ctx, "ec2", "DescribeVpcs", nil); err == nil {
			return moto, nil
		}
		if time.Since(begin) > timeout {
			return nil, fmt.Errorf("moto does not answer: %w\n%s", err, b.log("moto"))
		}
	}
}

func (b *bench) startDriver(ctx context.Context, name, program string) (*driver, error) {
	recorder, err := newRecorder(b.moto.url)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = http.Serve(listener, recorder) }()
	socket := filepath.Join(b.folder, name+".sock")
	endpoint := "AWS_ENDPOINT_URL=http://" + listener.Addr().String()
	if err := b.launch(name, program, []string{endpoint}, "--socket="+socket); err != nil {
		return nil, err
	}
	driver, err := connect(ctx, socket, recorder)
	if err != nil {
		return nil, fmt.Errorf("the driver %s does not answer: %w\n%s", program, err, b.log(name))
	}
	return driver, nil
}

// freeAddress is one where nobody listens.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
