// The oracle of `make render-oracle`: merges and validates Ignition configs with Ignition's own code.
//
// Each line of standard input is a JSON list of configs. The answer is a line with Ignition's validation of each, and, if all
// are valid, with their merge from left to right and the validation of that.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	ignition "github.com/coreos/ignition/v2/config/v3_5"
	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/ignition/v2/config/validate"
	"github.com/coreos/vcontext/report"
)

type validation struct {
	Valid bool     `json:"valid"`
	Paths []string `json:"paths"`
}

type answer struct {
	Inputs []validation  `json:"inputs"`
	Merged *types.Config `json:"merged"`
	Result validation    `json:"result"`
}

func validateReport(r report.Report, err error) validation {
	paths := []string{}
	for _, entry := range r.Entries {
		if entry.Kind == report.Error {
			paths = append(paths, entry.Context.String())
		}
	}
	return validation{Valid: err == nil && !r.IsFatal(), Paths: paths}
}

func decide(configs []json.RawMessage) (result answer) {
	valid := true
	for _, raw := range configs {
		config, r, err := ignition.ParseCompatibleVersion(raw)
		result.Inputs = append(result.Inputs, validateReport(r, err))
		if valid = valid && err == nil; !valid {
			result.Merged = nil
		} else if result.Merged == nil {
			result.Merged = &config
		} else {
			merged := ignition.Merge(*result.Merged, config)
			result.Merged = &merged
		}
	}
	if result.Merged != nil {
		result.Result = validateReport(validate.ValidateWithContext(*result.Merged, nil), nil)
	}
	return result
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var configs []json.RawMessage
		if err := in.Decode(&configs); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatalf("failed to read a list of configs: %v", err)
		}
		if err := out.Encode(decide(configs)); err != nil {
			log.Fatalf("failed to write an answer: %v", err)
		}
	}
}
