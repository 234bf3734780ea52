//! A model of the ledger: all interleavings of two planners, an API server and a few users that change one MachineSet, with the
//! product's own plans.
//!
//! # The model
//! * The API server : the set with its replicas, its ledger and its version, and Machines under the names of four
//!   indices. It rejects creations under a taken name, checks the version of ledger writes and the UID of deletions, and has
//!   finalizers and the garbage collector.
//! * Two planners. Neither knows that the other one leads as well. Each has a cache of the set and a cache of the Machines. A
//!   cache shows one moment of the past and only moves forward, independently of the others, so any two of the four views may
//!   contradict each other. The model keeps the runtime's rules: stages run in order; batches have 1, 2, 4 steps; a failure
//!   ends the plan; before the next plan, the planner reads the outcome of requests that failed or got no answer, and its
//!   caches show its own writes.
//! * The Machine controllers of both processes: they create a VM after a last read of the set (decided on the cache, then on
//!   the current set), drop finalizers, and retire a name on their own after a minute.
//! * Disturbances , each bounded by a budget: a user changes the replicas; a Machine is deleted, or fails;
//!   another client creates a Machine under a name of the set; the set is deleted; an answer is lost, and the request arrives
//!   late or never; a request arrives twice; a process dies and its requests arrive later.
//!
//! The product makes all decisions of the set, the Machine and the last read , on objects built from the views.
//! The model does not reimplement the scheme.
//!
//! A planner plans whenever it can. This includes every earlier plan whose requests are late. A cache jumps forward: a planner
//! that has read in between covers the views in between.
//!
//! # The properties
//! * Never too many: the number of Machines that are neither retired nor being deleted does not exceed the highest number
//!   wanted since everything was last at rest.
//! * Controllers never cause too few: when a sound Machine is retired or deleted, the number that the set wants at that moment
//!   stays, less the Machines that users have deleted or that have failed meanwhile.
//! * No second life: no VM for a deleted Machine, nor for a second Machine under a name; a retired name stays retired.
//! * Objects of other owners are never changed.
//! * No needless wait: when only the end of deleting Machines remains, the wanted number of other Machines with VMs already
//!   exists.
//! * Termination: without disturbances, in any order, the states have no cycle. Every path ends with the wanted number of
//!   Machines with VMs, nothing else, and nothing planned.
//!
//! # Caveats
//! The model omits status writes: they only change the set's version and so make ledger writes fail, which the model covers.
//! Adoption, the autoscaler's marks, preserved Machines and updates of living Machines have their own tests. The model assumes
//! that a VM appears before its Machine is gone: the deletion of a Machine waits for as long as its provider may take. A third
//! Machine under one name, a fifth index, and more than four late requests at once are beyond the bounds; the search counts
//! these cases.
//!
//! # Bounds
//! `cargo test -p nodewright-e2e-ledger-model --test ledger_model` searches the usual bounds: 3 million states in some 25 seconds of one processor.
//! Use the larger ones after a change of the scheme; `LEDGER_MODEL` holds start, most, rescales, harms, faults:
//!
//! ```console
//! cargo test -p nodewright-e2e-ledger-model --test ledger_model larger_bounds -- --ignored --nocapture
//! LEDGER_MODEL=2,2,1,1,1 cargo test -p nodewright-e2e-ledger-model --test ledger_model larger_bounds -- --ignored --nocapture
//! ```
