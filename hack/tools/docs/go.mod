// Checks the pages of this repository, and makes mdBook's sources of them. hack/docs.sh runs it.
module nodewright.dev/hack/tools/docs

go 1.26.0

require github.com/yuin/goldmark v1.8.7
