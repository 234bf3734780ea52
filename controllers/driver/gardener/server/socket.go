package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// socket is a Unix socket that its user alone may use. Its file goes with it, unless another process has taken the path since.
type socket struct {
	net.Listener
	path string
	file fs.FileInfo
}

// bind binds a path, in place of a socket that nobody serves any more. The socket has its mode before it has a path: Linux gives the
// file the mode of the socket, less the umask. To set the umask for that moment would give it to each file that the process creates
// meanwhile.
func bind(path string) (*socket, error) {
	if err := removeLeft(path); err != nil {
		return nil, fmt.Errorf("failed to serve the socket %s: %w", path, err)
	}
	config := net.ListenConfig{Control: forUserAlone}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("failed to serve the socket: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	file, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{Listener: listener, path: path, file: file}, nil
}

// forUserAlone sets the mode of a socket that is not bound yet.
func forUserAlone(_, _ string, connection syscall.RawConn) error {
	var failed error
	err := connection.Control(func(descriptor uintptr) {
		failed = syscall.Fchmod(int(descriptor), 0o600)
	})
	return errors.Join(err, failed)
}

// removeLeft removes the socket that a process has left which was killed.
func removeLeft(path string) error {
	found, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if found.Mode().Type() != fs.ModeSocket {
		return errors.New("it is a file of another kind; give another path, or remove it")
	}
	connection, err := net.Dial("unix", path)
	if err == nil {
		return errors.Join(errors.New("another process serves it; end that first"), connection.Close())
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return os.Remove(path)
	}
	return err
}

func (s *socket) Close() error {
	err := s.Listener.Close()
	if file, found := os.Lstat(s.path); found == nil && os.SameFile(file, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
