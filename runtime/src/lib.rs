//! A generic reconciler runtime: watch, cache, queue, plan, act.
//!
//! A [`Controller`](controller::Controller) is a pure function. The runtime watches, keeps caches, and hands the
//! controller what concerns one object, its *world*, and the *moment*. The controller answers with a
//! [`Plan`](plan::Plan): steps, waits, events, and when to look again. The runtime acts, waits until its caches show
//! what was written, and asks again. So a decision can be tested in microseconds, replayed and printed.
//!
//! # A complete controller
//! It copies one ConfigMap into every namespace with a label, keeps the copies as the source is, and takes them away again.
//! There is no more to it: retries, back-off, stale caches, lost answers and leadership are the runtime's. To try it:
//! `cargo run -p nodewright-runtime --example share`, with a kubeconfig.
//!
#![doc = "```no_run"]
#![doc = include_str!("../examples/share.rs")]
#![doc = "```"]
//!
//! What it shows:
//! * `watch` names the kinds, and whom a change concerns. A change comes with what was before, so that nobody is forgotten.
//! * `observe` takes from the caches what concerns one object. `plan` sees nothing else: no client, no clock.
//! * What is owned of an object is a type ([`owned::Owned`]). Where it equals what is there, nothing is sent.
//! * [`plan::Step::create`] never touches what is there; [`plan::Step::delete`] never hits a namesake.
//! * A wait has a reason that people can read. It is logged when it begins.
//!
//! # The modules
//! | module | what it is |
//! |---|---|
//! | [`object`] | how objects are named: cluster, key, UID, version; a [`Target`](object::Target) comes only from an object that was seen |
//! | [`controller`], [`plan`] | the contract: worlds in, plans out |
//! | [`owned`] | closed sets of fields with one writer, sent by server-side apply and read back |
//! | [`effect`] | calls outside Kubernetes, as data |
//! | [`cache`], [`look`] | stores with indexes, filled by one watch each; and what single objects see for a while |
//! | [`request`] | the one way to an API server |
//! | [`leadership`] | leader election, the right to write that it gives, and what is made before it |
//! | [`manager`] | a process: caches, leases, loops, and an ordered end; whether it could work |
//! | [`finalizers`], [`events`] | what most controllers need besides |
//! | [`error`] | an error with its causes, for people |
//!
//! # Writes that are no applies
//! What is owned entirely is applied. The rest, and why:
//!
//! * creation: an apply under `resourceVersion: "1"`, answered 201 when the name is free and 409 when it is taken;
//! * deletion, eviction: under the UID that was seen;
//! * finalizers, taints and other shared fields: a JSON patch that tests what was read ([`plan::Step::Edit`]);
//! * what an apply should have removed and did not: one merge patch under the version of its answer ([`owned`]);
//! * the Lease: a PUT with its version, which is a true compare-and-swap ([`leadership`]);
//! * events: a POST, and a patch of the count ([`events`]).

pub mod annotations;
pub mod cache;
pub mod clip;
pub mod controller;
pub mod effect;
mod effect_runner;
pub mod error;
pub mod events;
mod execute;
mod fair;
pub mod finalizers;
pub mod leadership;
pub mod lean;
pub mod look;
pub mod manager;
pub mod object;
pub mod owned;
pub mod plan;
mod queue;
mod readiness;
mod reconcile;
pub mod request;
#[cfg(test)]
mod testing;
mod watch;
