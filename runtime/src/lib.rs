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
//! A [`Controller`](controller::Controller) is a pure function. The runtime fills caches, takes from them what
//! concerns one object, its *snapshot*, and hands it to the controller. The controller answers with a [`Plan`](plan::Plan):
//! steps, waits, events, and the time of the next run. The runtime executes the steps, waits until its caches show what
//! was written, and asks again. So a test can check a decision in microseconds, replay it and print it. Retries, back-off,
//! stale caches, lost answers and leadership are the runtime's task.
//!
//! # A complete controller
//! It copies one ConfigMap into every namespace that has a label, keeps the copies equal to the source, and deletes them
//! again. To run it against your kubeconfig: `cargo run -p nodewright-runtime --example share`.
//!
#![doc = "```no_run"]
#![doc = include_str!("../examples/share.rs")]
#![doc = "```"]
//!
//! * `watch` names the kinds, and which objects a change wakes. A change has both sides, old and new.
//! * `snapshot` takes from the caches what concerns one object. `plan` sees nothing else: no client, no clock.
//! * The fields that a controller owns of an object are a type ([`apply_configuration::ApplyConfiguration`]). Equal fields cause no request.
//! * [`plan::Step::create`] never changes an object that exists; [`plan::Step::delete`] never hits a namesake.
//! * A wait has a reason for people. The log shows it when it begins.
//!
//! # Modules
//! | module | content |
//! |---|---|
//! | [`controller`], [`plan`] | the contract: snapshots in, plans out |
//! | [`object`] | names of objects: cluster, key, UID, version |
//! | [`apply_configuration`] | closed sets of fields with one writer, sent by server-side apply |
//! | [`annotations`], [`finalizers`] | JSON patches for fields with several writers |
//! | [`cache`], [`scoped_watch`] | stores with indexes, one watch for each kind; watches for single objects, as long as a plan asks |
//! | [`effect`] | calls outside Kubernetes, as data |
//! | [`request`] | the one way to an API server |
//! | [`leadership`] | leader election, and the right to write that it gives |
//! | [`manager`] | a process: caches, leases, loops, and an ordered end |
//! | [`events`], [`error`], [`clip`], [`without_managed_fields`] | events, errors with their causes, texts of bounded length, decoding without managedFields |
//!
//! # Writes that are not applies
//! * creation: an apply with `resourceVersion: "1"`. The answer is 201 if the name is free, and 409 if it is taken;
//! * deletion, eviction: with the UID that was seen as a precondition;
//! * finalizers, taints and other shared fields: a JSON patch that tests what was read ([`plan::Step::Edit`]);
//! * fields that an apply could not remove: one merge patch with the version of its answer ([`apply_configuration`]);
//! * the Lease: a PUT with its version, which is a compare-and-swap ([`leadership`]);
//! * events: a POST, and a patch of the count ([`events`]).

pub mod annotations;
pub mod apply_configuration;
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
pub mod manager;
pub mod object;
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
