//! Nodewright's runtime, used as the product uses it: a manager with a controller.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use nodewright_api::Machine;
use nodewright_runtime::{
    cache::{Store, Stores},
    controller::{Controller, Watches},
    effect::{Effect, Never},
    manager::{Manager, Options},
    object::{Cluster, ObjectRef, uid},
    plan::{Context, Plan, Step},
};
use tokio_util::sync::CancellationToken;

use crate::{contender::Job, server::Server};

const HOME: Cluster = Cluster::new("home");

/// Caches machines and does nothing.
struct Keeps;

impl Controller for Keeps {
    const NAME: &'static str = "keeps";
    type Primary = Machine;
    type Snapshot = ();
    type Effect = Never;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.kind::<Machine>(HOME, "").sharing(Machine::share);
    }

    fn snapshot(&self, _: &Stores, _: &ObjectRef) -> Option<()> {
        None
    }

    fn plan(_: &Context<'_, Never>, (): &()) -> Plan<Never> {
        Plan::idle()
    }
}

/// Does a [`Job`].
struct Works(Arc<Job>);

impl Controller for Works {
    const NAME: &'static str = "works";
    type Primary = Machine;
    type Snapshot = (Arc<Machine>, Arc<Job>);
    type Effect = Slow;
    type Note = Never;

    fn watch(&self, on: &mut Watches<'_>) {
        on.primary::<Machine>(HOME, "").sharing(Machine::share);
        on.kind::<ConfigMap>(HOME, "").wakes(|_, stores, wake| {
            let machines = stores.of::<Machine>(HOME).all();
            for machine in machines {
                wake(ObjectRef::of(HOME, machine.as_ref()));
            }
        });
    }

    fn snapshot(&self, stores: &Stores, key: &ObjectRef) -> Option<Self::Snapshot> {
        Some((stores.of::<Machine>(key.cluster).get(key)?, self.0.clone()))
    }

    fn plan(context: &Context<'_, Slow>, (machine, job): &Self::Snapshot) -> Plan<Slow> {
        (job.look)(machine);
        let mut plan = Plan::idle();
        if job.is_slow(machine) {
            let slow = Slow { uid: uid(machine.as_ref()).into(), job: job.clone() };
            if !context.outcomes.is_running(&slow) {
                plan.then("it has to be asked for", Step::Call(slow));
            }
        }
        plan
    }
}

/// An external call that takes minutes.
#[derive(Clone)]
struct Slow {
    uid: Arc<str>,
    job: Arc<Job>,
}

impl std::fmt::Debug for Slow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slow").field(&self.uid).finish()
    }
}

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for Slow {}

impl Hash for Slow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

impl Effect for Slow {
    type Outcome = ();
    fn serialization_key(&self) -> Arc<str> {
        self.uid.clone()
    }
    fn name(&self) -> &'static str {
        "slow"
    }
    fn deadline(&self) -> Duration {
        Duration::from_hours(1)
    }
    fn timeout_outcome(&self) {}
    fn succeeded((): &()) -> bool {
        true
    }
}

/// Starts a cache of the machines of a server.
pub(crate) fn cache(server: &Server) -> Arc<Store<Machine>> {
    let mut manager = manager(server);
    manager.add(Keeps);
    let store = manager.stores().of(HOME);
    start(manager);
    store
}

/// Starts a controller.
pub(crate) fn control(server: &Server, job: Arc<Job>) {
    let mut manager = manager(server);
    manager.add_with(Works(job), |effect| async move { effect.job.wait().await });
    start(manager);
}

fn manager(server: &Server) -> Manager {
    // As many calls as machines wait in the measures, so that all of them are in progress.
    Manager::new(Options {
        requests_at_once: 64,
        effects_at_once: 10_000,
        ..Options::new("bench", "1", HOME, server.client())
    })
}

fn start(manager: Manager) {
    tokio::spawn(manager.run(vec![], CancellationToken::new()));
}
