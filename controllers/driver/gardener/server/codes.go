package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// The longest message of a failure, in bytes. A Machine's status keeps no more.
const longestMessage = 1 << 10

// failure returns what an error of the provider means. An error without a code is Internal: that is no code that passes, so that a
// defect of a provider is not repeated every few seconds.
func (s *service) failure(method string, err error) *pb.Failure {
	if errors.Is(err, context.DeadlineExceeded) {
		return &pb.Failure{Code: pb.Code_CODE_DEADLINE_EXCEEDED, Message: s.clean(err.Error())}
	}
	if errors.Is(err, context.Canceled) {
		return &pb.Failure{Code: pb.Code_CODE_UNKNOWN, Message: s.clean(err.Error())}
	}
	code, message := codeOf(err)
	result := &pb.Failure{Message: s.clean(message)}
	if s.provider.Classify != nil {
		if class, known := s.classify(err); known {
			code, result.Throttled = class.Code, class.Throttled
		}
	}
	if code == codes.NotFound && method == createMachine {
		// What the VM needs is missing. NotFound would say something of the VM.
		code = codes.FailedPrecondition
	}
	result.Code = encodeCode(code)
	if result.Message == "" {
		result.Message = fmt.Sprintf("%s of the provider fails, and does not say why", method)
	}
	return result
}

// codeOf returns the code and the message of an error. Text is parsed only if there is no type: brackets in a message confuse the parser.
func codeOf(err error) (codes.Code, string) {
	var typed *status.Status
	if errors.As(err, &typed) && typed != nil {
		return typed.Code(), typed.Message()
	}
	if parsed, isStatus := status.FromError(err); isStatus {
		return parsed.Code(), parsed.Message()
	}
	return codes.Internal, err.Error()
}

// classify asks about an error, and about what the status in it was made of, which errors.As does not reach.
func (s *service) classify(err error) (Class, bool) {
	if class, known := s.provider.Classify(err); known {
		return class, true
	}
	var typed *status.Status
	if errors.As(err, &typed) && typed != nil && typed.Cause() != nil {
		return s.provider.Classify(typed.Cause())
	}
	return Class{}, false
}

// encodeCode returns the code in the protocol. The numbers are the same; a failure is never OK.
func encodeCode(code codes.Code) pb.Code {
	number := pb.Code(code) // #nosec G115 -- a number that is too large is no code
	if _, known := pb.Code_name[int32(number)]; !known || number == pb.Code_CODE_OK {
		return pb.Code_CODE_INTERNAL
	}
	return number
}

// clean makes a message of any text: one line of bounded length, without secrets.
func (s *service) clean(text string) string {
	text = strings.ToValidUTF8(s.redactor.redact(text), "?")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }), " ")
	if len(text) <= longestMessage {
		return text
	}
	end := longestMessage
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
