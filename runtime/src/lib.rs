//! A generic reconciler runtime: watch, cache, queue, plan, act.
//!
//! A [`Controller`](controller::Controller) is a pure function. The runtime watches, keeps caches, and hands the
//! controller what concerns one object, its *world*, and the *moment*. The controller answers with a
//! [`Plan`](plan::Plan): steps, waits, events, and when to look again. The runtime acts, waits until its caches show
//! what was written, and asks again. So a decision can be tested in microseconds, replayed and printed.
//!
//! | module | what it is |
//! |---|---|
//! | [`object`] | how objects are named: cluster, key, UID, version; a [`Target`](object::Target) comes only from an object that was seen |
//! | [`controller`], [`plan`] | the contract: worlds in, plans out |
//! | [`owned`] | closed sets of fields with one writer, sent by server-side apply and read back |
//! | [`effect`] | calls outside Kubernetes, as data |
//! | [`cache`], [`look`] | stores with indexes, filled by one watch each; and what single objects see for a while |
//! | [`queue`] | which object is looked at next |
//! | [`request`] | the one way to an API server |
//! | [`lease`], [`term`] | leader election, and the right to write that it gives |
//! | [`manager`] | a process: caches, leases, loops, and an ordered end |
//! | [`conditions`], [`finalizers`], [`events`] | what most controllers need besides |
//! | [`error`] | an error with its causes, for people |
//! | [`metrics`], [`server`], [`telemetry`], [`trace`] | seeing it |
//! | [`testing`] | an API server in process |
//!
//! # Writes that are no applies
//! What is owned entirely is applied. The rest, and why:
//!
//! * creation: an apply under `resourceVersion: "1"`, answered 201 when the name is free and 409 when it is taken;
//! * deletion, eviction: under the UID that was seen;
//! * finalizers, taints and other shared fields: a JSON patch that tests what was read ([`plan::Step::Edit`]);
//! * what an apply should have removed and did not: one merge patch under the version of its answer ([`owned`]);
//! * the Lease: a PUT with its version, which is a true compare-and-swap ([`lease`]);
//! * events: a POST, and a patch of the count ([`events`]).

pub mod cache;
pub mod conditions;
pub mod controller;
pub mod effect;
mod effect_runner;
pub mod error;
pub mod events;
mod execute;
pub mod fair;
pub mod finalizers;
pub mod lease;
pub mod look;
pub mod manager;
pub mod metrics;
pub mod object;
pub mod owned;
pub mod plan;
pub mod queue;
pub mod readiness;
mod reconcile;
pub mod request;
pub mod server;
pub mod telemetry;
pub mod term;
pub mod testing;
pub mod trace;
mod watch;
