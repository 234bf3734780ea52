package main

import (
	"errors"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"

	"nodewright.dev/controllers/driver/gardener/server"
)

// classify tells from the status of Azure's answer what the provider calls Internal. What the provider tells apart stays.
func classify(err error) (server.Class, bool) {
	var rejected *azidentity.AuthenticationFailedError
	if errors.As(err, &rejected) {
		// Without an answer nobody has checked the credentials.
		if rejected.RawResponse == nil {
			return server.Class{Code: codes.Unavailable}, true
		}
		return server.Class{Code: codes.Unauthenticated}, true
	}
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return server.Class{}, false
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		return server.Class{Code: codes.Unauthenticated}, true
	case http.StatusForbidden:
		return server.Class{Code: codes.PermissionDenied}, true
	case http.StatusTooManyRequests:
		return server.Class{Code: codes.Unavailable, Throttled: true}, true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return server.Class{Code: codes.Unavailable}, true
	default:
		return server.Class{}, false
	}
}
