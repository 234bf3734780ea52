//! The latency from event to plan: from the time when a line is in the watch's body to the call of the controller with the
//! content of the line. It includes the decoding, the cache, the queue, and all wake-ups in between.
//!
//! There are two controllers with equally many machines, each on its own runtime. The machines of one are idle; ten thousand
//! of the other's wait for an external call that takes minutes, and the events concern its other machines. Events come one at
//! a time, each after a pause in which all tasks fall asleep, to the two controllers in random order: so other load on this
//! computer slows both.
//!
//! Two parts are also measured alone: waking one task, and decoding one machine.

use std::{
    hint::black_box,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread::sleep,
    time::{Duration, Instant},
};

use futures::{
    StreamExt,
    channel::mpsc::{UnboundedSender, unbounded},
};
use nodewright_api::Machine;
use nodewright_runtime::object::resource_version;
use tokio::runtime::Runtime;

use crate::{
    contender::{Contender, Job},
    fixture::Fixture,
    memory::at_rest,
    report::{Numbers, quantile},
    server::Server,
};

/// The number of waiting machines, and of other machines.
const WAITING: usize = 10_000;
const OTHERS: usize = 1_000;
/// The number of events for each controller.
const EVENTS: usize = 2_000;
/// The pause before each event.
const PAUSE: Duration = Duration::from_micros(500);
/// The timeout for one event, after which the measure is broken.
const LONGEST: Duration = Duration::from_secs(30);

pub(crate) fn measure(who: Contender) -> Numbers {
    let (idle, waiting, mut chance) = (Subject::new(who), Subject::new(who), fastrand::Rng::with_seed(1));
    waiting.begin_to_wait();
    let others = WAITING..WAITING + OTHERS;
    let mut series = vec![("idle", &idle, others.clone(), vec![]), ("waiting", &waiting, others, vec![])];
    if who == Contender::Ours {
        series.push(("one that waits", &waiting, 0..WAITING, vec![]));
    }
    for _ in 0..EVENTS {
        // In random order: the processor is warmer for the second one.
        chance.shuffle(&mut series);
        for (_, subject, machines, micros) in &mut series {
            micros.push(subject.event(chance.usize(machines.clone())));
        }
    }
    let mut numbers: Numbers = series.into_iter().flat_map(|(name, _, _, micros)| quantiles(name, micros)).collect();
    if who == Contender::Ours {
        numbers.extend(alone(&idle.runtime));
    }
    numbers
}

fn quantiles(name: &str, micros: Vec<f64>) -> [(String, f64); 2] {
    [(format!("{name} p50"), quantile(micros.clone(), 0.5)), (format!("{name} p99"), quantile(micros, 0.99))]
}

/// The parts of the latency alone: waking a task, and decoding a machine.
fn alone(runtime: &Runtime) -> Numbers {
    let mut numbers = Numbers::new();
    let wake = wake_alone(runtime);
    numbers.extend(quantiles("wake", (0..EVENTS).map(|_| wake()).collect()));
    for (name, fixture) in [("decode", Fixture::without(&[])), ("decode bare", Fixture::bare())] {
        numbers.extend(quantiles(name, (0..EVENTS).map(|number| decode_alone(&fixture, number)).collect()));
    }
    numbers
}

/// A controller, and the machines that it has read: which version, and when.
struct Subject {
    runtime: Runtime,
    server: Server,
    job: Arc<Job>,
    seen: mpsc::Receiver<(u64, Instant)>,
}

impl Subject {
    fn new(who: Contender) -> Self {
        let (runtime, server) = (Runtime::new().expect("a runtime"), Server::new(WAITING + OTHERS));
        let (saw, seen) = mpsc::channel();
        let job = Job::new(move |machine| saw.send((resource_version(machine), Instant::now())).unwrap_or_default());
        let this = Self { runtime, server, job, seen };
        this.runtime.block_on(async {
            who.control(&this.server, this.job.clone());
            this.server.watched_all().await;
        });
        this.settle();
        this
    }

    /// Waits until the controller has read each machine and is idle.
    fn settle(&self) {
        for _ in 0..WAITING + OTHERS {
            self.seen.recv_timeout(LONGEST).expect("a look at each machine");
        }
        self.runtime.block_on(at_rest());
    }

    /// Makes most machines wait. One change wakes all of them.
    fn begin_to_wait(&self) {
        self.job.slow_below.store(WAITING, Relaxed);
        self.server.touch();
        let begun = Instant::now();
        while self.job.waiting.load(Relaxed) < WAITING {
            assert!(begun.elapsed() < LONGEST, "{} machines wait", self.job.waiting.load(Relaxed));
            sleep(Duration::from_millis(10));
        }
        self.settle();
    }

    /// Microseconds from the event of a machine to its plan.
    fn event(&self, machine: usize) -> f64 {
        let (line, version) = self.server.event(machine);
        sleep(PAUSE);
        let sent = Instant::now();
        self.server.send(&line);
        loop {
            let (looked_at, when) = self.seen.recv_timeout(LONGEST).expect("a plan for each event");
            if looked_at == version {
                return micros(when - sent);
            }
        }
    }
}

/// Microseconds until a task that waits for a stream runs.
fn wake_alone(runtime: &Runtime) -> impl Fn() -> f64 + use<> {
    let (sender, mut stream): (UnboundedSender<()>, _) = unbounded();
    let (saw, seen) = mpsc::channel();
    runtime.spawn(async move {
        while stream.next().await.is_some() {
            saw.send(Instant::now()).unwrap_or_default();
        }
    });
    move || {
        sleep(PAUSE);
        let sent = Instant::now();
        sender.unbounded_send(()).expect("the task reads");
        micros(seen.recv_timeout(LONGEST).expect("the task wakes") - sent)
    }
}

/// Microseconds to decode a machine, also after a pause.
fn decode_alone(fixture: &Fixture, number: usize) -> f64 {
    let mut text = String::new();
    fixture.write(number, 1, 1, &mut text);
    sleep(PAUSE);
    let begun = Instant::now();
    let decoded = serde_json::from_str::<Machine>(black_box(&text));
    let took = begun.elapsed();
    drop(decoded.expect("a Machine"));
    micros(took)
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
