package server

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

const (
	// How long the outcome of a call that ended too late is kept for the next one.
	keepLate = 10 * time.Minute
	// The context of a provider's call ends after this time. It is longer than what providers wait for by themselves.
	longestBackground = 30 * time.Minute
	// With more late outcomes than this, those that are too old are looked for and dropped.
	manyLate = 1000
)

// outcome is what a call for a Machine has led to: a VM, a failure, or neither of them when a deletion has succeeded.
type outcome struct {
	instance *pb.Instance
	failure  *pb.Failure
	// notes for later calls; nil keeps the previous ones.
	notes *string
}

// request is a call that is to be made.
type request struct {
	// method is the name of the provider's method.
	method string
	// machine is the Machine's name. Calls with the same one do not overlap.
	machine string
	// token is the UID of the Machine, by which notes are known to be its own.
	token string
	// identity is equal for calls that ask for the same thing.
	identity string
	// changes says that the call may change VMs: its outcome is not out of date when it arrives late.
	changes bool
	// hold keeps the call's secrets out of logs and answers until its result is called.
	hold func() func()
	// run makes the call. The notes are newer than those of the request; nil if there are none.
	run func(ctx context.Context, notes *string) outcome
}

// calls makes one call for each Machine at a time.
type calls struct {
	mutex   sync.Mutex
	running map[string]*call
	late    map[string]lateOutcome
}

// call is one that is under way.
type call struct {
	request request
	waiting int
	done    chan struct{}
	// outcome is there when done is closed.
	outcome outcome
}

// lateOutcome is one that nobody waited for any more.
type lateOutcome struct {
	request request
	outcome outcome
	ended   time.Time
}

func newCalls() *calls {
	return &calls{running: map[string]*call{}, late: map[string]lateOutcome{}}
}

// do makes a call, or joins the same one that is under way, or returns the outcome of the same one that has ended late. It waits until
// the context ends; the call itself goes on.
func (c *calls) do(ctx context.Context, request request) outcome {
	c.mutex.Lock()
	current := c.running[request.machine]
	if current != nil && current.request.identity != request.identity {
		c.mutex.Unlock()
		return failed(pb.Code_CODE_UNAVAILABLE, fmt.Sprintf("%s for this Machine is still running at the provider", current.request.method))
	}
	if current == nil {
		if late, found := c.takeLate(request); found {
			c.mutex.Unlock()
			return late
		}
		current = c.begin(request)
	}
	current.waiting++
	c.mutex.Unlock()
	select {
	case <-current.done:
		return current.outcome
	case <-ctx.Done():
		return c.leave(current)
	}
}

// leave stops waiting for a call.
func (c *calls) leave(current *call) outcome {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	select {
	case <-current.done:
		return current.outcome
	default:
	}
	current.waiting--
	message := "%s has not ended within its deadline; it goes on, and the call may be made again to get its outcome"
	return failed(pb.Code_CODE_DEADLINE_EXCEEDED, fmt.Sprintf(message, current.request.method))
}

// begin starts a call. The mutex is held.
func (c *calls) begin(request request) *call {
	notes := c.lateNotes(request)
	if request.changes {
		delete(c.late, request.machine)
	}
	current := &call{request: request, done: make(chan struct{})}
	c.running[request.machine] = current
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), longestBackground)
		defer cancel()
		// It stays if the provider ends its goroutine.
		result := failed(pb.Code_CODE_INTERNAL, request.method+" of the provider has ended without an answer")
		defer func() { c.finish(current, result, notes) }()
		defer request.hold()()
		result = guarded(request.method, func() outcome { return request.run(ctx, notes) })
	}()
	return current
}

// finish hands the outcome over. What nobody waits for is kept if it is worth keeping.
func (c *calls) finish(current *call, result outcome, notes *string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if result.notes == nil {
		result.notes = notes
	}
	current.outcome = result
	delete(c.running, current.request.machine)
	if current.waiting == 0 && current.request.changes {
		c.keep(lateOutcome{request: current.request, outcome: result, ended: time.Now()})
	}
	close(current.done)
}

func (c *calls) keep(late lateOutcome) {
	if len(c.late) > manyLate {
		for machine, other := range c.late {
			if time.Since(other.ended) > keepLate {
				delete(c.late, machine)
			}
		}
	}
	late.request.run, late.request.hold = nil, nil
	c.late[late.request.machine] = late
}

// takeLate returns the outcome of an earlier call for the same thing. It is returned once: after that, the provider is asked again.
func (c *calls) takeLate(request request) (outcome, bool) {
	late, found := c.late[request.machine]
	if !found || late.request.identity != request.identity || time.Since(late.ended) > keepLate {
		return outcome{}, false
	}
	delete(c.late, request.machine)
	return late.outcome, true
}

// lateNotes returns notes that the manager has not got yet.
func (c *calls) lateNotes(request request) *string {
	late, found := c.late[request.machine]
	if !found || late.request.token != request.token {
		return nil
	}
	return late.outcome.notes
}

// guarded makes an error of a panic. The panic's text is logged, and is not part of the answer: it may be anything.
func guarded(method string, run func() outcome) (result outcome) {
	defer func() {
		if reason := recover(); reason != nil {
			klog.Errorf("%s of the provider has panicked: %v\n%s", method, reason, debug.Stack())
			result = failed(pb.Code_CODE_INTERNAL, method+" of the provider has panicked; the log of the driver has more")
		}
	}()
	return run()
}

func failed(code pb.Code, message string) outcome {
	return outcome{failure: &pb.Failure{Code: code, Message: message}}
}
