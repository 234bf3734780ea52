package main

import (
	"regexp"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"

	"nodewright.dev/controllers/driver/gardener/server"
)

// How the SDK writes an answer of EC2. The provider keeps the text of an error alone.
var answer = regexp.MustCompile(`StatusCode: (\d+), .*api error (\w+)`)

// classify tells from EC2's answer what the provider calls Internal. What the provider tells apart stays.
func classify(err error) (server.Class, bool) {
	found := answer.FindStringSubmatch(err.Error())
	if found == nil {
		return server.Class{}, false
	}
	switch status, code := found[1], found[2]; {
	case code == "RequestLimitExceeded" || code == "Throttling":
		return server.Class{Code: codes.Unavailable, Throttled: true}, true
	case code == "UnauthorizedOperation":
		return server.Class{Code: codes.PermissionDenied}, true
	case code == "AuthFailure" || status == "401":
		return server.Class{Code: codes.Unauthenticated}, true
	case code == "InternalError" || code == "Unavailable" || status == "503":
		return server.Class{Code: codes.Unavailable}, true
	default:
		return server.Class{}, false
	}
}
