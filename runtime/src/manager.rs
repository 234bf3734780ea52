//! A process with controllers: caches, leases, reconcile loops, and an ordered shutdown.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join, join_all},
    stream::FuturesUnordered,
};
use http::HeaderValue;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cache::Stores,
    controller::{Controller, Sources, Watches},
    effect::{Effect, Never},
    effect_runner::EffectRunner,
    events::{Event, Recorder},
    execute::{Executor, agent},
    fair::{FairSemaphore, Rate},
    leadership::{Clock, Election, Leadership, NOTICEABLE_SKEW, boot_clock, checked_clock},
    object::Cluster,
    queue::Queue,
    readiness::Readiness,
    reconcile::{Reconciler, Shared},
    request::{Connection, client},
    scoped_watch::ScopedWatches,
    watch::{DecodeFailures, Watching},
};
use nodewright_observability::{metrics::Metrics, trace::Spans};

/// How long shutdown waits for work in progress.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// A wait for a cache that lasts longer makes its watch list again.
const STALE_AFTER: Duration = Duration::from_secs(30);

/// The configuration of a manager.
#[derive(Clone)]
pub struct Options {
    /// Name and version, for `User-Agent`: `nodewright/0.1.0`.
    pub product: String,
    /// Prefix of field managers: `nodewright`.
    pub field_manager: String,
    /// One client for each cluster, made by [`crate::request::client`], which does not retry by itself.
    pub clients: BTreeMap<Cluster, kube::Client>,
    /// The cluster that readiness depends on.
    pub home: Cluster,
    /// The users as whom controllers write to the other clusters, by the names of the controllers (`Impersonate-User`). The client's
    /// own user may impersonate them, and watches. They need the right to get what they write: a write whose answer was lost is read.
    pub users: BTreeMap<&'static str, HeaderValue>,
    /// How many requests may be in progress at once in each cluster.
    pub requests_at_once: usize,
    /// How many requests may be sent to each cluster per second; 0: no limit but API priority and fairness.
    pub qps: f64,
    /// How many requests may exceed that rate after idle time.
    pub burst: u32,
    /// How many evictions may wait for their answers at once in each cluster; fewer than `requests_at_once`, so that slow ones
    /// leave room for other requests.
    pub evictions_at_once: usize,
    /// How many calls outside Kubernetes may be in progress at once, for each controller.
    pub effects_at_once: usize,
    /// The leadership of this process, which [`Manager::run`] begins. Make the clients with it, by [`crate::request::client`].
    pub leadership: Leadership,
    /// The wall clock and the monotonic clock of leadership and plans. The manager compares it with those of the API servers.
    pub clock: Arc<dyn Clock>,
    /// The object that an event names when this clock differs from that of an API server, such as the Lease of this process.
    pub clock_events_on: Option<ObjectReference>,
    /// Seeds all jitter, that of elections included.
    pub seed: u64,
    /// The destination of events.
    pub recorder: Recorder,
    /// The destination of spans about the lives of objects.
    pub spans: Spans,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
}

impl Options {
    /// One cluster, no events, no traces, and no limits except 16 requests, 8 of them evictions, and 200 calls outside Kubernetes at once. `name` is
    /// the prefix of field managers; `name/version` is the `User-Agent` of each request.
    pub fn new(name: &str, version: &str, home: Cluster, client: kube::Client) -> Self {
        Self {
            product: format!("{name}/{version}"),
            field_manager: name.to_owned(),
            clients: BTreeMap::from([(home, client)]),
            home,
            users: BTreeMap::new(),
            requests_at_once: 16,
            evictions_at_once: 8,
            qps: 0.0,
            burst: 30,
            effects_at_once: 200,
            leadership: Leadership::default(),
            clock: checked_clock(boot_clock()),
            clock_events_on: None,
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
    /// Another process may be the leader now. This process must not write any more and must end.
    #[error("lost a lease: another process may lead now; restart this one to wait for leader election")]
    LostLease,
}

type Begin = Box<dyn FnOnce(&Shared, &Leadership) -> BoxFuture<'static, ()> + Send>;

/// Controllers that share caches and leadership.
///
/// # Guarantees
/// * Each kind is watched once for all controllers.
/// * No plan sees a cache without a consistent list that began after this process gained the lease. A cache of an unreachable
///   cluster delays only the objects that read it.
/// * After the loss of the lease the manager sends nothing more, and [`Manager::run`] returns an error.
/// * On stop it takes no more work, lets requests in progress end, and releases the lease, within five seconds.
///
/// # Assumptions
/// Safety rests on names, versions and UIDs, not on the lease: a late write of a former leader is harmless.
pub struct Manager {
    options: Options,
    stores: Stores,
    sources: Sources,
    connections: BTreeMap<Cluster, Connection>,
    readiness: Readiness,
    begins: Vec<Begin>,
    queues: Vec<Arc<Queue>>,
}

impl Manager {
    /// A manager without controllers for the cluster of `KUBECONFIG`, `~/.kube/config` or the pod; see [`Options::new`].
    pub async fn connect(name: &str, version: &str, home: Cluster) -> Result<Self, kube::Error> {
        let config = kube::Config::infer().await.map_err(kube::Error::InferConfig)?;
        let leadership = Leadership::default();
        let client = client(config, &leadership)?;
        Ok(Self::new(Options { leadership, ..Options::new(name, version, home, client) }))
    }

    /// A manager without controllers.
    pub fn new(options: Options) -> Self {
        let rate = Rate { per_second: options.qps, burst: options.burst };
        let connect = |(cluster, client): (&Cluster, &kube::Client)| {
            let (at_once, agent) = (options.requests_at_once, agent(&options.product, "cache"));
            let (leadership, metrics) = (Leadership::unlimited(), options.metrics.clone());
            let mut connection = Connection::new(client.clone(), agent, leadership, at_once, metrics);
            connection.limits = FairSemaphore::new(at_once, Some(rate));
            connection.evictions = FairSemaphore::new(options.evictions_at_once, None);
            (*cluster, connection.comparing(*cluster, &options.clock))
        };
        let connections: BTreeMap<_, _> = options.clients.iter().map(connect).collect();
        let contacts = connections.iter().map(|(cluster, connection)| (*cluster, connection.contact.clone()));
        let stores = Stores::with_contacts(contacts.collect());
        let readiness = Readiness::new(options.home, stores.clone());
        Self { options, stores, sources: Sources::default(), connections, readiness, begins: vec![], queues: vec![] }
    }

    /// The caches, for checks of readiness and for tests.
    pub fn stores(&self) -> Stores {
        self.stores.clone()
    }

    /// Whether this process could work, for `/readyz`: all caches of the home cluster are filled, and its API server has
    /// answered within the last eight seconds. A standby is ready as well.
    pub fn readiness(&self) -> impl Fn() -> Result<(), String> + Clone + Send + Sync + 'static {
        let readiness = self.readiness.clone();
        move || readiness.check()
    }

    /// A connection for requests that are no steps of a plan, such as those of a driver; `name` appears in `User-Agent`. It
    /// refuses writes while this process does not lead.
    pub fn connection(&self, cluster: Cluster, name: &str) -> Option<Connection> {
        let connection = self.connections.get(&cluster)?.as_agent(agent(&self.options.product, name));
        Some(connection.within(self.options.leadership.clone()))
    }

    /// Adds a controller that makes no calls outside Kubernetes, as [`Manager::add_with`] does.
    pub fn add(&mut self, controller: impl Controller<Effect = Never>) {
        self.add_with(controller, |effect| async move { match effect {} });
    }

    /// Adds a controller whose calls outside Kubernetes `perform` makes.
    ///
    /// # Panics
    /// If a controller of that name exists.
    pub fn add_with<C: Controller, F>(
        &mut self,
        controller: C,
        perform: impl Fn(C::Effect) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = <C::Effect as Effect>::Outcome> + Send + 'static,
    {
        let is_new = self.queues.iter().all(|queue| queue.name != C::NAME);
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
        let (home, user) = (self.options.home, self.options.users.get(C::NAME).cloned().map(Arc::new));
        self.begins.push(Box::new(move |shared, leadership| {
            let write = |(cluster, connection): (&Cluster, &Connection)| {
                let mut connection = connection.as_agent(user_agent.clone()).within(leadership.clone());
                connection.user = user.clone().filter(|_| *cluster != home);
                (*cluster, connection)
            };
            let connections = Arc::new(shared.executor.connections.iter().map(write).collect());
            let recorder = shared.recorder.named(C::NAME, user_agent.clone()).within(leadership.clone());
            let shared = Shared { executor: Executor { connections, manager }, recorder, ..shared.clone() };
            let (tasks, metrics) = (shared.tasks.clone(), shared.metrics.clone());
            let effects = EffectRunner::new(
                Arc::new(move |effect| perform(effect).boxed()),
                limit,
                leadership.clone(),
                tasks,
                metrics,
            );
            Reconciler::new(controller, queue, effects, shared).run().boxed()
        }));
    }

    /// Runs until `stop`, or until it loses a lease. Without elections it leads from the start.
    pub async fn run(self, elections: Vec<Election>, stop: CancellationToken) -> Result<(), Ended> {
        let Self { options, stores, sources, connections, readiness, begins, queues: _queues } = self;
        let (tasks, end, metrics) = (TaskTracker::new(), CancellationToken::new(), options.metrics.clone());
        let undecodable = DecodeFailures::new(metrics.clone());
        let watching = Watching { metrics, undecodable, tasks: tasks.clone(), stop: end.clone() };
        let scoped_watches = ScopedWatches::new(stores.clone(), connections.clone(), watching.clone());
        let prepare = |it: Election| it.in_manager(options.seed, options.clock.clone(), options.metrics.clone());
        let elections = elections.into_iter().map(prepare).collect();
        let process = Process { elections: Arc::new(elections), tasks: tasks.clone(), end: end.clone() };
        let watch = || {
            sources.start(&connections, &stores, &watching);
            tasks.spawn(count(stores.clone(), options.metrics.clone(), end.clone()));
            tasks.spawn(report_contact(stores.clone(), end.clone()));
            tasks.spawn(report_clock(ClockReport::of(&options), end.clone()));
            if let Some(home) = connections.get(&options.home) {
                tasks.spawn(readiness.clone().watch(home.clone(), end.clone()));
            }
        };
        let Some((elected, gained)) = process.gain(watch, &stop).await else {
            process.end().await;
            return Ok(());
        };
        let leadership = &options.leadership;
        leadership.begin(&elected);
        let lead = async {
            let manager = options.field_manager.as_str().into();
            let shared = Shared {
                stores: stores.clone(),
                executor: Executor { connections: Arc::new(connections.clone()), manager },
                scoped_watches,
                recorder: options.recorder,
                spans: options.spans,
                metrics: options.metrics.clone(),
                since: options.clock.elapsed(),
                gained,
                clock: options.clock,
                tasks: tasks.clone(),
                stop: end.clone(),
            };
            tracing::info!("leading");
            let recorder = shared.recorder.named("cache", agent(&options.product, "cache"));
            watching.undecodable.publish_to(recorder.within(leadership.clone()));
            for begin in begins {
                tasks.spawn(begin(&shared, leadership));
            }
            join(list_since(&stores, gained), refresh_stale(&stores)).await;
        };
        tokio::select! {
            biased;
            // Another process may lead: stop at once, without waiting for work in progress.
            () = leadership.ended() => {
                end.cancel();
                return Err(Ended::LostLease);
            }
            () = stop.cancelled() => {}
            () = lead => {}
        }
        process.end().await;
        Ok(())
    }
}

struct Process {
    elections: Arc<Vec<Election>>,
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Process {
    /// Acquires the leases and starts the watches; `None` if it was stopped before. A process that can lead at once lists only
    /// after that; one that must wait keeps warm caches.
    async fn gain(&self, watch: impl FnOnce(), stop: &CancellationToken) -> Option<(Leadership, Instant)> {
        let mut acquiring = acquire(self.elections.clone()).boxed();
        let at_once = timeout(Duration::from_secs(1), &mut acquiring).await;
        let gained = Instant::now();
        watch();
        if let Ok(elected) = at_once {
            return Some((elected, gained));
        }
        tracing::info!("waiting for leader election; the caches are kept up to date");
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            elected = &mut acquiring => Some((elected, Instant::now())),
        }
    }

    async fn end(&self) {
        self.end.cancel();
        self.tasks.close();
        if timeout(STOP_WITHIN, self.tasks.wait()).await.is_err() {
            let tasks = self.tasks.len();
            tracing::warn!(tasks, "shutting down with reconciles in progress; the next leader resumes");
        }
        join_all(self.elections.iter().map(Election::release)).await;
    }
}

async fn acquire(elections: Arc<Vec<Election>>) -> Leadership {
    let mut held = Vec::new();
    // Acquire in order, so that two processes cannot hold one lease each and wait for the other's.
    for (place, election) in elections.iter().enumerate() {
        let later = elections[place + 1..].iter().map(Election::observe);
        tokio::select! {
            biased;
            leadership = election.acquire() => held.push(leadership),
            _ = join_all(later), if place + 1 < elections.len() => {}
        }
    }
    if held.is_empty() { Leadership::unlimited() } else { Leadership::all(&held) }
}

/// Waits until every store has completed a list that began after `gained`, and logs those that do not.
async fn list_since(stores: &Stores, gained: Instant) {
    let (mut missing, mut logged) = (stores.lasting(), Instant::now());
    let mut asked = vec![];
    loop {
        missing.retain(|store| !store.is_listed_since(gained));
        if missing.is_empty() {
            return;
        }
        // A first list that was in progress when the lease was acquired is too old: request another one once it has ended.
        for store in missing.iter().filter(|store| store.is_synced()) {
            if !asked.iter().any(|other| Arc::ptr_eq(other, store)) {
                store.relist();
                asked.push(store.clone());
            }
        }
        if logged.elapsed() > Duration::from_secs(10) {
            let names: Vec<String> =
                missing.iter().map(|store| format!("{} ({})", store.resource(), store.cluster())).collect();
            tracing::warn!(waiting_for = ?names, "waiting for caches to sync; are the CRDs installed, and may this process list them?");
            logged = Instant::now();
        }
        let mut lists: FuturesUnordered<_> = missing.iter().map(|store| store.next_list()).collect();
        let _ = timeout(Duration::from_secs(1), lists.next()).await;
    }
}

async fn count(stores: Stores, metrics: Arc<Metrics>, watching: CancellationToken) {
    while timeout(Duration::from_secs(5), watching.cancelled()).await.is_err() {
        for store in stores.lasting() {
            metrics.cached_objects(store.cluster(), store.resource(), store.len());
            metrics.store_version(store.cluster(), store.resource(), store.version());
            let waited = store.oldest_wait().map_or(Duration::ZERO, |since| since.elapsed());
            metrics.store_longest_wait(store.cluster(), store.resource(), waited);
        }
    }
}

/// Logs when an API server is out of reach, and when it is back.
async fn report_contact(stores: Stores, end: CancellationToken) {
    let mut lost = BTreeMap::new();
    while timeout(Duration::from_secs(1), end.cancelled()).await.is_err() {
        for cluster in stores.clusters() {
            let is_lost = !stores.has_contact(cluster);
            // Nothing is lost that was not there: the start logs what it waits for.
            if is_lost && !lost.contains_key(&cluster) {
                continue;
            }
            match (lost.insert(cluster, is_lost), is_lost) {
                (Some(false), true) => {
                    tracing::warn!(%cluster, "the API server is out of reach; its last reports are not evaluated");
                }
                (Some(true), false) => {
                    tracing::info!(%cluster, "the API server is reachable again; unhealthy reports from before are ignored at first");
                }
                _ => {}
            }
        }
    }
}

/// Where it shows that the clock of this computer differs from that of an API server.
struct ClockReport {
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    recorder: Recorder,
    events_on: Option<ObjectReference>,
}

impl ClockReport {
    fn of(options: &Options) -> Self {
        let recorder = options.recorder.named("clock", agent(&options.product, "clock"));
        Self {
            clock: options.clock.clone(),
            metrics: options.metrics.clone(),
            recorder: recorder.within(options.leadership.clone()),
            events_on: options.clock_events_on.clone(),
        }
    }

    fn warn(&self, cluster: Cluster, skew: SignedDuration) {
        let (direction, effect) = if skew.is_negative() {
            ("behind", "timeouts end that much later")
        } else {
            ("ahead of", "the time of that server counts")
        };
        let seconds = skew.abs().as_secs();
        let text = format!(
            "the clock of this computer is {seconds} s {direction} that of the API server of the {cluster} cluster: {effect}; set the clock"
        );
        tracing::warn!("{text}");
        if let Some(regarding) = self.events_on.clone() {
            self.recorder.publish(Event::warning(regarding, CLOCK_SKEW, text));
        }
    }
}

/// Event reason: the clocks of this computer and of an API server differ.
const CLOCK_SKEW: &str = "ClockSkew";
/// How often it is reported again.
const REPORT_INTERVAL: Duration = Duration::from_mins(10);

async fn report_clock(report: ClockReport, end: CancellationToken) {
    let mut reported: BTreeMap<Cluster, Instant> = BTreeMap::new();
    while timeout(Duration::from_secs(5), end.cancelled()).await.is_err() {
        for (cluster, skew) in report.clock.skews() {
            report.metrics.clock_skew(cluster, skew.as_secs_f64());
            if skew.abs() <= NOTICEABLE_SKEW {
                if reported.remove(&cluster).is_some() {
                    tracing::info!(%cluster, "the clocks of this computer and of the API server agree again");
                }
            } else if reported.get(&cluster).is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
                reported.insert(cluster, Instant::now());
                report.warn(cluster, skew);
            }
        }
    }
}

/// Makes the watch of a cache list again when a wait for it lasts too long; the wait continues.
async fn refresh_stale(stores: &Stores) {
    loop {
        sleep(Duration::from_secs(5)).await;
        for store in stores.all() {
            let is_long = |since: Instant| since.elapsed() > STALE_AFTER;
            if store.oldest_wait().is_some_and(is_long) && store.listed().is_some_and(is_long) {
                tracing::warn!(resource = %store.resource(), cluster = %store.cluster(),
                    "the cache has not shown a write for 30 s, relisting");
                store.relist();
            }
        }
    }
}
