// What programs on the loopback need besides themselves: free ports, and connections that can be cut.
module nodewright.dev/hack/tools/loopback

go 1.26.0
