// The helper of hack/test-gitops.sh.
//
//	helper git-server DIRECTORY URL-FILE   serves the git repositories below DIRECTORY on a free port, and writes its URL
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "git-server" {
		log.Fatalf("unknown arguments %q", os.Args[1:])
	}
	if err := serveGit(os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

// serveGit runs `git http-backend` for each request, which is git's own server side of smart HTTP.
func serveGit(directory, urlFile string) error {
	git, err := exec.LookPath("git")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s\n", listener.Addr())
	if err := os.WriteFile(urlFile, []byte(url), 0o600); err != nil {
		return err
	}
	return http.Serve(listener, &cgi.Handler{
		Path: git,
		Args: []string{"http-backend"},
		Env:  []string{"GIT_PROJECT_ROOT=" + directory, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_GLOBAL=/dev/null"},
	})
}
