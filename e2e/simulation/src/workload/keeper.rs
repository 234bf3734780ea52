//! The task that reconciles pods, volumes and budgets after each change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nodewright_testing::{api_server::ApiServer, stand_in};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Notify, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Storage, Workload,
    objects::{
        AGENT, BUDGETS, CLAIMS, OWNERS, VOLUMES, app_name, budget, budget_name, claim, claim_name, name, owner, volume,
    },
};

/// From a change until the controllers act.
const REACTION: Duration = Duration::from_millis(50);

/// The running controllers. Dropping it ends them.
pub struct Keeper {
    stale_until: Arc<Mutex<Option<Instant>>>,
    server: ApiServer,
    changed: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

/// What the controllers know.
pub(super) struct State {
    pub(super) server: ApiServer,
    pub(super) workload: Workload,
    /// The owner of the pods of each app.
    pub(super) owners: Vec<Value>,
    pub(super) daemon_set: Option<Value>,
    /// The number of the last pod that has a name of its own.
    pub(super) serial: u32,
    /// When the Node of pods was first missing.
    pub(super) missing: BTreeMap<String, Instant>,
    /// When an attachment or a detachment began, by the name of the `VolumeAttachment`.
    pub(super) attaching: BTreeMap<String, Instant>,
    pub(super) detaching: BTreeMap<String, Instant>,
    stale_until: Arc<Mutex<Option<Instant>>>,
    /// When to look again without a change.
    wake: Option<Instant>,
}

impl Keeper {
    /// Creates the objects of a workload, and starts the controllers. `changed` has to tell them of changes. Needs a tokio
    /// runtime.
    pub fn start(server: ApiServer, workload: Workload, changed: Arc<Notify>) -> Self {
        let (stale_until, own): (Arc<Mutex<_>>, _) = (Arc::default(), server.clone());
        let mut state = State {
            owners: seed_apps(&server, &workload),
            daemon_set: workload.daemons.then(|| server.seed(OWNERS[2].1, owner(OWNERS[2].0, AGENT, 0))),
            server,
            workload,
            serial: 0,
            missing: BTreeMap::new(),
            attaching: BTreeMap::new(),
            detaching: BTreeMap::new(),
            stale_until: Arc::clone(&stale_until),
            wake: None,
        };
        let woken = Arc::clone(&changed);
        let task = tokio::spawn(stand_in::polled(async move {
            loop {
                state.round();
                tokio::select! {
                    biased;
                    () = woken.notified() => {}
                    () = sleep_until(state.wake) => {}
                }
                tokio::time::sleep(REACTION).await;
            }
        }));
        Self { stale_until, server: own, changed, _task: AbortOnDropHandle::new(task) }
    }

    /// Stops the disruption controller for a while.
    pub(in super::super) fn stop_counting(&self, time: Duration) {
        *self.stale_until.lock() = Some(Instant::now() + time);
        self.changed.notify_one();
    }

    /// Changes the specs of all budgets.
    pub(in super::super) fn edit_budgets(&self) {
        for object in self.server.objects(BUDGETS) {
            let policy = &object["spec"]["unhealthyPodEvictionPolicy"];
            let other = if *policy == "IfHealthyBudget" { "AlwaysAllow" } else { "IfHealthyBudget" };
            let path = format!("{BUDGETS}/{}", name(&object));
            self.server.change(&path, |budget| budget["spec"]["unhealthyPodEvictionPolicy"] = other.into());
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Creates the owners, the budgets and the volumes of all apps. Returns the owners.
fn seed_apps(server: &ApiServer, workload: &Workload) -> Vec<Value> {
    let mut owners = vec![];
    for (number, app) in workload.apps.iter().enumerate() {
        let name = app_name(number);
        let (kind, collection) = OWNERS[usize::from(app.volume.is_some())];
        owners.push(server.seed(collection, owner(kind, &name, app.pods)));
        for (place, one) in app.budgets.iter().enumerate() {
            server.seed(BUDGETS, budget(&budget_name(&name, place), &name, *one));
        }
        for pod in (0..app.pods).map(|pod| format!("{name}-{pod}")) {
            if let Some(volume) = app.volume {
                seed_claim(server, &pod, volume.storage);
            }
        }
    }
    owners
}

/// Creates the claim of a pod, and the volume that it is bound to.
pub(super) fn seed_claim(server: &ApiServer, pod: &str, storage: Storage) {
    let (claim_name, volume_name) = (claim_name(pod), format!("pv-{pod}"));
    server.seed(VOLUMES, volume(&volume_name, storage));
    server.seed(CLAIMS, claim(&claim_name, &volume_name));
}

impl State {
    fn round(&mut self) {
        self.wake = None;
        self.collect();
        self.detach();
        self.attach();
        self.replace();
        self.bind();
        self.keep_daemons();
        let stale_until = *self.stale_until.lock();
        match stale_until.filter(|until| *until > Instant::now()) {
            Some(until) => self.wake_at(until),
            None => self.count(),
        }
    }

    /// Looks again then at the latest.
    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = self.wake.into_iter().chain([at]).min();
    }
}
