// What hack/test-gitops.sh needs besides the controllers: a git server.
module nodewright.dev/hack/tools/gitops/helper

go 1.26.0
