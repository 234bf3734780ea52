//! Each plan is made twice from its snapshot, and the two are compared. The transcript of all plans is the same in any process.
//!
//! A plan that depends on more than its arguments differs at once, as with a counter, or in another process: there the hash maps
//! have another order, the computer's clock another time, and the environment another time zone.

use std::{cell::RefCell, fmt::Debug};

use nodewright_controllers::wiring::AddControllers;
use nodewright_runtime::{
    cache::Stores,
    controller::{Controller, Watches},
    effect::Effect,
    manager::Manager,
    object::{Cluster, ObjectRef},
    plan::{Context, Plan},
    scoped_watch::ScopedWatch,
};

use jiff::Timestamp;

thread_local! {
    static TRANSCRIPT: RefCell<Option<Transcript>> = const { RefCell::new(None) };
}

/// The plans of a run, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// The name of the controller, and the plan with all that it has, in one line.
    pub plans: Vec<String>,
    /// Plans that were another one when they were made again.
    pub differences: Vec<String>,
}

/// Executes a run on this thread, and returns its plans as well. In other runs plans are made once.
pub fn transcribed<R>(run: impl FnOnce() -> R) -> (R, Transcript) {
    TRANSCRIPT.set(Some(Transcript::default()));
    let result = run();
    (result, TRANSCRIPT.take().unwrap_or_default())
}

/// A manager whose controllers' plans are transcribed.
pub(super) struct Transcribing<'a>(pub(super) &'a mut Manager);

impl AddControllers for Transcribing<'_> {
    fn manager(&self) -> &Manager {
        self.0
    }

    fn add_with<C: Controller, F>(&mut self, controller: C, perform: impl Fn(C::Effect) -> F + Send + Sync + 'static)
    where
        F: Future<Output = <C::Effect as Effect>::Outcome> + Send + 'static,
    {
        self.0.add_with(Twice(controller), perform);
    }
}

/// A controller that makes each plan twice while there is a transcript.
struct Twice<C>(C);

impl<C: Controller> Controller for Twice<C> {
    const NAME: &'static str = C::NAME;
    const CALL_WAIT: &'static str = C::CALL_WAIT;
    type Primary = C::Primary;
    type Snapshot = C::Snapshot;
    type Effect = C::Effect;
    type Note = C::Note;

    fn watch(&self, on: &mut Watches<'_>) {
        self.0.watch(on);
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<C::Snapshot> {
        self.0.snapshot(stores, key)
    }

    fn tolerates_unavailable(&self, object: &C::Primary, cluster: Cluster, now: Timestamp) -> bool {
        self.0.tolerates_unavailable(object, cluster, now)
    }

    fn plans_unlisted(&self, object: &C::Primary, cluster: Cluster) -> bool {
        self.0.plans_unlisted(object, cluster)
    }

    fn is_outdated(&self, stores: &Stores, snapshot: &C::Snapshot) -> bool {
        self.0.is_outdated(stores, snapshot)
    }

    fn children(&self, snapshot: &C::Snapshot) -> usize {
        self.0.children(snapshot)
    }

    fn plan(context: &Context<'_, C::Effect, C::Note>, snapshot: &C::Snapshot) -> Plan<C::Effect, C::Note> {
        let plan = C::plan(context, snapshot);
        TRANSCRIPT.with_borrow_mut(|transcript| {
            let Some(transcript) = transcript else { return };
            let [first, again] = [&plan, &C::plan(context, snapshot)].map(|plan| format!("{} {}", C::NAME, text(plan)));
            if first != again {
                transcript.differences.push(format!("{first}, and made again {again}"));
            }
            transcript.plans.push(first);
        });
        plan
    }
}

/// All of a plan, in one line. A scoped watch has the address of a function as well, which is another one in each process.
fn text<E: Debug, N: Debug>(plan: &Plan<E, N>) -> String {
    let Plan {
        stages,
        waits,
        notes,
        events,
        spans,
        wake,
        scoped_watches,
        traceparent,
        extends_trace,
        forgets_outcomes,
    } = plan;
    let watches: Vec<_> = scoped_watches.iter().map(ScopedWatch::selector).collect();
    let rest = (notes, wake, watches, traceparent, extends_trace, forgets_outcomes);
    format!("{stages:?} {waits:?} {events:?} {spans:?} {rest:?}")
}
