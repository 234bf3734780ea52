//! A process with controllers: caches, leases, loops, and an ordered end.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cache::Stores,
    controller::{Controller, Sources, Watches},
    effect::{Never, NoEffects, Perform},
    effect_runner::EffectRunner,
    events::Recorder,
    execute::{Executor, agent},
    fair::FairSemaphore,
    leadership::{BootClock, Clock, Election, Leadership, LeadershipHandle},
    object::Cluster,
    queue::Queue,
    readiness::Readiness,
    reconcile::{Reconciler, Shared},
    request::Connection,
    scoped_watch::ScopedWatches,
    watch::{DecodeFailures, Watching},
};
use nodewright_observability::{metrics::Metrics, trace::Spans};

pub use crate::fair::Rate;

/// How long the end may take before what is still under way is dropped.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// After this a wait for a cache makes its watch list again.
const STALE_AFTER: Duration = Duration::from_secs(30);

/// What a manager is made of.
#[derive(Clone)]
pub struct Options {
    /// Name and version, for `User-Agent`: `nodewright/0.1.0`.
    pub product: String,
    /// Prefix of field managers: `nodewright`.
    pub field_manager: String,
    /// One client for each cluster, made by [`crate::request::client`]: one that does not retry by itself.
    pub clients: BTreeMap<Cluster, kube::Client>,
    /// The cluster that this process is not ready without.
    pub home: Cluster,
    /// How many requests may be under way at once in each cluster.
    pub requests_at_once: usize,
    /// How many requests may be sent to each cluster in a second; `None` leaves that to the server's own fairness.
    pub request_rate: Option<Rate>,
    /// How many calls outside Kubernetes may be under way at once, for each controller.
    pub effects_at_once: usize,
    /// Whose term it is to be. The clients are to be made with the same one, by [`crate::request::client`].
    pub leading: LeadershipHandle,
    /// Wall clock and the clock of terms.
    pub clock: Arc<dyn Clock>,
    /// Decides all jitter, that of elections among it.
    pub seed: u64,
    /// Where events go.
    pub recorder: Recorder,
    /// Where spans of object lives go.
    pub spans: Spans,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("product", &self.product).field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Options {
    /// One cluster, no events, no traces, no limit but 16 requests and 200 calls outside Kubernetes at once. `name` is the
    /// prefix of field managers; `name/version` stands in each request's `User-Agent`.
    pub fn new(name: &str, version: &str, home: Cluster, client: kube::Client) -> Self {
        Self {
            product: format!("{name}/{version}"),
            field_manager: name.to_owned(),
            clients: BTreeMap::from([(home, client)]),
            home,
            requests_at_once: 16,
            request_rate: None,
            effects_at_once: 200,
            leading: LeadershipHandle::default(),
            clock: Arc::new(BootClock),
            seed: fastrand::u64(..),
            recorder: Recorder::discarding(),
            spans: Spans::disabled(),
            metrics: Arc::new(Metrics::new()),
        }
    }
}

/// Why a manager ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// Another process may lead now. Nothing may be written any more; the process has to end.
    #[error("lost the lease: another process may lead now")]
    LostLease,
}

type Begin = Box<dyn FnOnce(&Shared, &Leadership) -> BoxFuture<'static, ()> + Send>;

/// Controllers that share caches and a term of leadership.
///
/// # Guarantees
/// * Each kind is watched once, whoever reads it; caches are warm before the lease is held.
/// * No plan sees a cache that has not shown a consistent list begun after the lease was gained. One whose cluster is
///   away holds up those objects whose worlds it belongs to, and nobody else.
/// * When the lease is lost nothing more is sent, and [`Manager::run`] ends with an error.
/// * When told to stop it takes no more work, lets requests that are under way end, and gives the lease back, within
///   five seconds.
///
/// # Assumptions
/// Safety rests on names, versions and UIDs, not on the lease: a late commit of a former leader is harmless.
pub struct Manager {
    options: Options,
    stores: Stores,
    sources: Sources,
    connections: BTreeMap<Cluster, Connection>,
    readiness: Readiness,
    begins: Vec<Begin>,
    queues: Vec<Arc<Queue>>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager without controllers.
    pub fn new(options: Options) -> Self {
        let connect = |(cluster, client): (&Cluster, &kube::Client)| {
            let agent = agent(&options.product, "cache");
            let gate = FairSemaphore::new(options.requests_at_once, options.request_rate);
            let connection =
                Connection::through(gate, client.clone(), agent, Leadership::unlimited(), options.metrics.clone());
            (*cluster, connection)
        };
        let connections: BTreeMap<_, Connection> = options.clients.iter().map(connect).collect();
        let contacts = connections.iter().map(|(cluster, connection)| (*cluster, connection.contact().clone()));
        let (stores, sources) = (Stores::with_contacts(contacts.collect()), Sources::default());
        let readiness = Readiness::new(options.home, stores.clone());
        Self { options, stores, sources, connections, readiness, begins: vec![], queues: vec![] }
    }

    /// The caches, for checks of readiness and for tests.
    pub fn stores(&self) -> Stores {
        self.stores.clone()
    }

    /// Whether this process could work, for `/readyz`: all caches of the home cluster are filled, and its API server has
    /// answered within the last eight seconds. A standby is ready as well: it could lead at once.
    pub fn readiness(&self) -> impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static {
        let readiness = self.readiness.clone();
        move || readiness.check()
    }

    /// A connection for requests that are no steps of a plan, such as those of a driver, named `name` in `User-Agent`.
    ///
    /// Through it, too, nothing is written before this process leads, nor after. What processes that stand by have to write
    /// as well goes through [`Connection::within`] a term of its own.
    pub fn connection(&self, cluster: Cluster, name: &str) -> Option<Connection> {
        let connection = self.connections.get(&cluster)?.as_agent(agent(&self.options.product, name));
        Some(connection.within_coming(self.options.leading.clone()))
    }

    /// Adds a controller that makes no calls outside Kubernetes.
    ///
    /// # Panics
    /// If there is a controller of that name.
    pub fn add(&mut self, controller: impl Controller<Effect = Never>) {
        self.add_with(controller, Arc::new(NoEffects));
    }

    /// Adds a controller, and what makes its calls outside Kubernetes.
    ///
    /// # Panics
    /// If there is a controller of that name.
    pub fn add_with<C: Controller>(&mut self, controller: C, performer: Arc<dyn Perform<C::Effect>>) {
        let is_new = self.queues.iter().all(|queue| queue.name() != C::NAME);
        assert!(is_new, "there are two controllers of the name {}", C::NAME);
        let seed = self.options.seed.wrapping_add(self.queues.len() as u64);
        let queue = Arc::new(Queue::new(C::NAME, seed, self.options.metrics.clone()));
        let probed = Arc::downgrade(&queue);
        self.options.metrics.queue_unfinished(C::NAME, move || Some(probed.upgrade()?.unfinished()));
        controller.watch(&mut Watches { sources: &mut self.sources, stores: &self.stores, queue: &queue });
        self.queues.push(queue.clone());
        let limit = self.options.effects_at_once;
        let user_agent = agent(&self.options.product, C::NAME);
        let manager: Arc<str> = format!("{}-{}", self.options.field_manager, C::NAME).into();
        self.begins.push(Box::new(move |shared, term| {
            let write = |(cluster, connection): (&Cluster, &Connection)| {
                (*cluster, connection.as_agent(user_agent.clone()).within(term.clone()))
            };
            let connections = Arc::new(shared.executor.connections.iter().map(write).collect());
            let recorder = shared.recorder.named(C::NAME, user_agent.clone()).within(term.clone());
            let shared = Shared { executor: Executor { connections, manager }, recorder, ..shared.clone() };
            let (tasks, metrics) = (shared.tasks.clone(), shared.metrics.clone());
            let effects = EffectRunner::new(performer, limit, term.clone(), tasks, metrics);
            Reconciler::new(controller, queue, effects, shared).run().boxed()
        }));
    }

    /// Runs until `stop`, or until a lease is lost. Without elections it leads from the start.
    pub async fn run(self, elections: Vec<Election>, stop: CancellationToken) -> Result<(), Ended> {
        let Self { options, stores, sources, connections, readiness, begins, queues: _queues } = self;
        let tasks = TaskTracker::new();
        let watching = Watching {
            metrics: options.metrics.clone(),
            poison: DecodeFailures::new(options.metrics.clone()),
            tasks: tasks.clone(),
            stop: CancellationToken::new(),
        };
        let looks = ScopedWatches::new(stores.clone(), connections.clone(), watching.clone());
        let process = Process {
            elections: Arc::new(elections.into_iter().map(|election| election.with_seed(options.seed)).collect()),
            tasks: tasks.clone(),
            watching: watching.stop.clone(),
            working: CancellationToken::new(),
            looks: looks.clone(),
        };
        let watch = || {
            sources.start(&connections, &stores, &watching);
            tasks.spawn(count(stores.clone(), options.metrics.clone(), process.watching.clone()));
            if let Some(home) = connections.get(&options.home) {
                tasks.spawn(readiness.clone().watch(home.clone(), process.watching.clone()));
            }
        };
        let Some((term, gained)) = process.gain(watch, &stop).await else { return process.end().await };
        let term = options.leading.begin(term);
        let lead = async {
            let manager = options.field_manager.as_str().into();
            let shared = Shared {
                stores: stores.clone(),
                executor: Executor { connections: Arc::new(connections.clone()), manager },
                looks,
                recorder: options.recorder,
                spans: options.spans,
                metrics: options.metrics.clone(),
                since: options.clock.elapsed(),
                gained,
                clock: options.clock,
                tasks: tasks.clone(),
                stop: process.working.clone(),
            };
            tracing::info!("leading");
            let recorder = shared.recorder.named("cache", agent(&options.product, "cache"));
            watching.poison.tell(recorder.within(term.clone()));
            for begin in begins {
                tasks.spawn(begin(&shared, term));
            }
            futures::future::join(list_since(&stores, gained), refresh_stale(&stores)).await;
        };
        tokio::select! {
            biased;
            () = term.ended() => process.lose(),
            () = stop.cancelled() => process.end().await,
            () = lead => process.end().await,
        }
    }
}

/// What has to be ended, one way or the other.
struct Process {
    elections: Arc<Vec<Election>>,
    tasks: TaskTracker,
    watching: CancellationToken,
    working: CancellationToken,
    looks: Arc<ScopedWatches>,
}

impl Process {
    /// Starts the watches and waits for the leases, in the better order: whoever can lead at once lists once, after
    /// the lease; whoever has to wait keeps warm caches meanwhile. Tells when the leases were gained; `None` when told
    /// to stop before.
    async fn gain(&self, watch: impl FnOnce(), stop: &CancellationToken) -> Option<(Leadership, Instant)> {
        let mut acquiring = acquire(self.elections.clone()).boxed();
        let at_once = timeout(Duration::from_secs(1), &mut acquiring).await;
        let gained = Instant::now();
        watch();
        if let Ok(term) = at_once {
            return Some((term, gained));
        }
        tracing::info!("the leases are not to be had at once; standing by with warm caches");
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            term = &mut acquiring => Some((term, Instant::now())),
        }
    }

    fn stop_working(&self) {
        self.working.cancel();
        self.watching.cancel();
        self.looks.stop();
    }

    /// Another process may lead: nothing more is begun, and nothing is waited for.
    fn lose(&self) -> Result<(), Ended> {
        self.stop_working();
        Err(Ended::LostLease)
    }

    /// What is under way is finished, as far as the time goes, and the leases are given back.
    async fn end(&self) -> Result<(), Ended> {
        self.stop_working();
        self.tasks.close();
        if timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            let tasks = self.tasks.len();
            tracing::warn!(tasks, "stopped with work under way; it is taken up again by whoever leads next");
        }
        futures::future::join_all(self.elections.iter().map(Election::release)).await;
        Ok(())
    }
}

async fn acquire(elections: Arc<Vec<Election>>) -> Leadership {
    let mut terms = Vec::new();
    // In their order, so that two processes cannot hold one lease each and wait for the other's.
    for (place, election) in elections.iter().enumerate() {
        let later = elections[place + 1..].iter().map(Election::observe);
        tokio::select! {
            biased;
            term = election.acquire() => terms.push(term),
            _ = futures::future::join_all(later), if place + 1 < elections.len() => {}
        }
    }
    if terms.is_empty() { Leadership::unlimited() } else { Leadership::all(&terms) }
}

/// Sees to it that every store completes a list that was begun after `gained`, and tells of those that do not.
async fn list_since(stores: &Stores, gained: Instant) {
    let (mut missing, mut told) = (stores.lasting(), Instant::now());
    let mut asked = vec![];
    loop {
        missing.retain(|store| !store.is_listed_since(gained));
        if missing.is_empty() {
            return;
        }
        // A first list that was under way when the lease was gained ends too old: its store is asked once it has ended.
        for store in missing.iter().filter(|store| store.is_synced()) {
            if !asked.iter().any(|other| Arc::ptr_eq(other, store)) {
                store.relist();
                asked.push(store.clone());
            }
        }
        if told.elapsed() > Duration::from_secs(10) {
            let names: Vec<String> =
                missing.iter().map(|store| format!("{} ({})", store.resource(), store.cluster())).collect();
            tracing::warn!(waiting_for = ?names, "the caches are not complete yet; are the CRDs installed and may this process list them?");
            told = Instant::now();
        }
        let first = missing.iter().map(|store| store.next_list());
        let mut first: FuturesUnordered<_> = first.collect();
        let _ = timeout(Duration::from_secs(1), first.next()).await;
    }
}

/// Counts what the caches hold, for as long as they are watched.
async fn count(stores: Stores, metrics: Arc<Metrics>, watching: CancellationToken) {
    while timeout(Duration::from_secs(5), watching.cancelled()).await.is_err() {
        for store in stores.lasting() {
            metrics.cached_objects(store.cluster(), store.resource(), store.len());
            metrics.store_version(store.cluster(), store.resource(), store.version().0);
            let waited = store.oldest_wait().map_or(Duration::ZERO, |since| since.elapsed());
            metrics.store_longest_wait(store.cluster(), store.resource(), waited);
        }
    }
}

/// A wait for a cache that lasts too long makes the watch list again; the wait goes on.
async fn refresh_stale(stores: &Stores) {
    loop {
        sleep(Duration::from_secs(5)).await;
        for store in stores.all() {
            let is_long = |since: Instant| since.elapsed() > STALE_AFTER;
            if store.oldest_wait().is_some_and(is_long) && store.listed().is_some_and(is_long) {
                tracing::warn!(resource = %store.resource(), cluster = %store.cluster(),
                    "a write has not come back through the watch for 30 s; listing again");
                store.relist();
            }
        }
    }
}
