package server

import (
	"context"
	"sync"
	"time"

	pb "nodewright.dev/controllers/driver/gardener/protocol"
)

// How old a list may be that says whose a VM is. The owner of a VM does not change, so this is about the load on the provider only.
const freshList = 5 * time.Second

// lists makes one list of the VMs of a class at a time, and shares it: many Machines of one class may be deleted at once.
type lists struct {
	mutex   sync.Mutex
	byClass map[string]*list
}

type list struct {
	begun time.Time
	done  chan struct{}
	// The rest is there when done is closed.
	machines map[string]string
	failure  *pb.Failure
}

func newLists() *lists {
	return &lists{byClass: map[string]*list{}}
}

// get returns the Machines' names of a class by provider id, as a list shows them that was begun at that time or later. It waits until
// the context ends; the list itself goes on.
func (l *lists) get(ctx context.Context, class *pb.Class, notBefore time.Time, fetch func() (map[string]string, *pb.Failure)) (map[string]string, *pb.Failure) {
	for {
		current, serves := l.current(class, notBefore, fetch)
		select {
		case <-current.done:
			if serves {
				return current.machines, current.failure
			}
		case <-ctx.Done():
			return nil, &pb.Failure{Code: pb.Code_CODE_DEADLINE_EXCEEDED, Message: listMachines + " has not ended within its deadline"}
		}
	}
}

// current returns a list that serves, or one that is too old and has to end before another one begins.
func (l *lists) current(class *pb.Class, notBefore time.Time, fetch func() (map[string]string, *pb.Failure)) (*list, bool) {
	key := class.GetName() + "\x00" + class.GetRevision() + "\x00" + class.GetProviderSpec()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if found := l.byClass[key]; found != nil {
		serves := !found.begun.Before(notBefore)
		if !found.hasEnded() || serves && found.failure == nil {
			return found, serves
		}
	}
	l.dropOld()
	begun := &list{
		begun: time.Now(),
		done:  make(chan struct{}),
		// It stays if the provider ends its goroutine.
		failure: &pb.Failure{Code: pb.Code_CODE_INTERNAL, Message: listMachines + " of the provider has ended without an answer"},
	}
	l.byClass[key] = begun
	go func() {
		defer close(begun.done)
		begun.machines, begun.failure = fetch()
	}()
	return begun, true
}

func (l *list) hasEnded() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// dropOld forgets lists that serve nobody any more. The mutex is held.
func (l *lists) dropOld() {
	for key, other := range l.byClass {
		if other.hasEnded() && time.Since(other.begun) > freshList {
			delete(l.byClass, key)
		}
	}
}
