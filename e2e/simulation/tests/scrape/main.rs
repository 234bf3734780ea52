//! What a scrape of many machines costs: bytes and allocations, which are the same on each computer. `make bench-scrape` prints the
//! time as well.

mod fleet;

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nodewright_api::served::Served;
use nodewright_controllers::{
    machine::MachineSettings,
    machine_config_pool,
    orphan_vm::OrphanVmSettings,
    shared::{CONTROL, TARGET, fleet::FleetSettings, ownership::NodeProof},
    wiring::Wiring,
};
use nodewright_driver_simulated::{Options as DriverOptions, SimulatedDriver};
use nodewright_e2e_allocator::ObservedAllocator;
use nodewright_observability::{
    metrics::{Format, Metrics},
    trace::Spans,
};
use nodewright_runtime::{
    leadership::{Leadership, checked_clock, tokio_clock},
    manager::{Manager, Options},
};
use nodewright_testing::api_server::ApiServer;

type TestResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[global_allocator]
static ALLOCATOR: ObservedAllocator = ObservedAllocator(note);
static BLOCKS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

fn note(size: usize) {
    BLOCKS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size as u64, Ordering::Relaxed);
}

/// A manager that does not run, with its caches filled. Its metrics are read from them.
struct Filled {
    metrics: Arc<Metrics>,
    _manager: Manager,
}

/// A scrape, and what it has taken.
struct Scrape {
    text: String,
    took: Duration,
    blocks: u64,
    /// Of all blocks: no more was in memory at once.
    bytes: u64,
}

impl Filled {
    fn with(machines: usize) -> TestResult<Self> {
        let metrics = Arc::new(Metrics::new());
        let client = ApiServer::new().client();
        let mut manager = Manager::new(Options {
            clients: BTreeMap::from([(CONTROL, client.clone()), (TARGET, client.clone())]),
            metrics: metrics.clone(),
            ..Options::new("nodewright", "0", CONTROL, client)
        });
        let wiring = wiring(&metrics)?;
        for controller in ["machine-deployment", "machine-set", "machine", "machine-class"] {
            wiring.add(&mut manager, controller)?;
        }
        fleet::fill(&manager.stores(), machines)?;
        Ok(Self { metrics, _manager: manager })
    }

    fn scrape(&self, format: Format) -> TestResult<Scrape> {
        let (blocks, bytes, begun) = (BLOCKS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed), Instant::now());
        let text = self.metrics.encode_as(format)?;
        let took = begun.elapsed();
        let (blocks, bytes) = (BLOCKS.load(Ordering::Relaxed) - blocks, BYTES.load(Ordering::Relaxed) - bytes);
        Ok(Scrape { text, took, blocks, bytes })
    }
}

fn wiring(metrics: &Arc<Metrics>) -> TestResult<Wiring> {
    let served = Served {
        missing_kinds: vec![],
        machine_class_status: true,
        machine_set_selector: true,
        machine_deployment_selector: true,
    };
    Ok(Wiring {
        namespace: fleet::NAMESPACE.to_owned(),
        schemas: served.into(),
        driver: Some(Arc::new(SimulatedDriver::new(&DriverOptions::new("http://cloud"), &Leadership::unlimited())?)),
        settings: MachineSettings::default(),
        orphan_vms: OrphanVmSettings::default(),
        fleet: FleetSettings::default(),
        proof: NodeProof::Here,
        machine_config: machine_config_pool::PoolSettings::default(),
        machine_config_templates: None,
        clock: checked_clock(tokio_clock("2026-01-01T00:00:00Z".parse()?)),
        spans: Spans::disabled(),
        metrics: Arc::clone(metrics),
    })
}

/// Both tests count the allocations of the process: one after the other.
#[tokio::test]
async fn a_machine_takes_few_bytes_and_allocations_of_a_scrape() -> TestResult {
    for format in [Format::OpenMetrics, Format::Text] {
        let (few, many) = (Filled::with(500)?, Filled::with(1_500)?);
        // The first one does not know yet how long the text becomes.
        let (_, _) = (few.scrape(format)?, many.scrape(format)?);
        let (few, many) = (few.scrape(format)?, many.scrape(format)?);
        let each = (many.text.len() - few.text.len()) / 1_000;
        let families = many.text.matches("\nmcm_machine_status_condition{").count();
        assert_eq!(families, 1_500 * 15, "each condition of each machine is there");
        assert!(each < 3_000, "{each} bytes for each machine: 30 MB are the goal for 10,000");
        let blocks = (many.blocks - few.blocks) / 1_000;
        assert!(blocks <= MOST_BLOCKS, "{blocks} allocations for each machine");
        let excess = many.bytes.saturating_sub(many.text.len() as u64);
        assert!(excess < many.text.len() as u64 / 4, "{excess} bytes besides the text of {}", many.text.len());
    }
    Ok(())
}

/// Of a machine with its part of sets and a deployment.
const MOST_BLOCKS: u64 = 4;

/// The goal for so many machines.
const MACHINES: usize = 10_000;
const LONGEST: Duration = Duration::from_secs(1);
const MOST_BYTES: usize = 30_000_000;

#[tokio::test]
#[ignore = "measures time: make bench-scrape"]
async fn bench() -> TestResult {
    let filled = Filled::with(MACHINES)?;
    println!("a scrape of {MACHINES} machines with 15 conditions each, their sets and deployments");
    let mut is_missed = false;
    for (name, format) in [
        ("OpenMetrics, the first one", Format::OpenMetrics),
        ("OpenMetrics", Format::OpenMetrics),
        ("text", Format::Text),
    ] {
        let Scrape { text, took, blocks, bytes } = filled.scrape(format)?;
        let (length, series) = (text.len(), text.lines().filter(|line| !line.starts_with('#')).count());
        println!(
            "{name}: {} ms, {length} bytes, {series} series, {blocks} allocations of {bytes} bytes",
            took.as_millis()
        );
        is_missed |= took >= LONGEST || length >= MOST_BYTES;
    }
    let goals = format!("goals: {LONGEST:?} and {MOST_BYTES} bytes");
    if is_missed {
        Err(format!("missed {goals}").into())
    } else {
        println!("reached {goals}");
        Ok(())
    }
}
