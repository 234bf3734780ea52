//! A generic reconciler runtime: watch, cache, queue, plan, act.
//!
//! ```text
//!  API server ── list, watch ──► cache ── a change wakes a key ──► queue
//!      ▲                           │                                │ one run of a key at a time
//!      │ requests                  │ snapshot                       ▼
//!   execute ◄── steps ─── plan ◄── snapshot ◄──────────────── reconcile: waits until the cache
//!      │                   ▲                                   shows what the last run wrote
//!      └──► effects ───────┘ outcomes of calls outside Kubernetes
//! ```
//!
//! A [`Controller`](controller::Controller) is a pure function. The runtime fills caches, takes from them the state that
//! concerns one object, its *snapshot*, and passes it to the controller. The controller returns a [`Plan`](plan::Plan): steps,
//! waits, events, and the time of the next run. The runtime executes the steps, waits until its caches show the writes, and
//! calls the controller again. So a test can check a decision in microseconds, replay it and print it. The runtime handles
//! retries, back-off, stale caches, lost answers and leadership.
//!
//! # A complete controller
//! It copies one ConfigMap into every namespace that has a label, keeps the copies equal to the source, and deletes them
//! again. To run it against your kubeconfig: `cargo run -p nodewright-runtime --example share`.
//!
#![doc = "```no_run"]
#![doc = include_str!("../examples/share.rs")]
#![doc = "```"]
//!
//! * `watch` declares the kinds, and the objects that a change wakes. A change has an old and a new side.
//! * `snapshot` takes from the caches the state that concerns one object. `plan` sees nothing else: no client, no clock.
//! * The fields that a controller owns on an object are a type ([`apply_configuration::ApplyConfiguration`]). If they are
//!   equal, no request is sent.
//! * [`plan::Step::create`] never changes an existing object; [`plan::Step::delete`] never deletes a namesake.
//! * A wait has a reason for people. The log shows it when it begins.
//!
//! # Writes that are not applies
//! * creation: an apply with `resourceVersion: "1"`. The answer is 201 if the name is free, and 409 if it is taken;
//! * deletion, eviction: with the UID from the snapshot as a precondition;
//! * finalizers, taints and other shared fields: a JSON patch that tests the values that it rests on ([`plan::Step::Edit`]);
//! * fields that an apply could not remove: one merge patch with the version of its answer ([`apply_configuration`]);
//! * the Lease: a PUT with its version, which is a compare-and-swap ([`leadership`]);
//! * events: a POST, and a patch of the count ([`events`]).

pub mod annotations;
pub mod apply_configuration;
pub mod cache;
pub mod clip;
pub mod controller;
pub mod counts;
pub mod effect;
mod effect_runner;
pub mod error;
pub mod events;
mod execute;
mod fair;
mod fair_groups;
pub mod finalizers;
pub mod json;
pub mod leadership;
pub mod manager;
pub mod object;
pub mod offload;
pub mod patch;
pub mod plan;
mod queue;
mod readiness;
mod reconcile;
pub mod request;
pub mod scoped_watch;
#[cfg(test)]
mod testing;
mod watch;
pub mod without_managed_fields;
