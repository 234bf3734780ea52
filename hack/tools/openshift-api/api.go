// Package api has no code: it keeps the requirement of go.mod, of which only files are used.
package api

import _ "github.com/openshift/api/machineconfiguration/v1"
