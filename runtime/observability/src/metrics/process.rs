//! Metrics of the process itself, with the standard names of Prometheus clients.

use std::fmt;
use std::fs;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::scrape;

/// Read at each scrape. Without `/proc` only the processor time is served.
#[derive(Debug)]
pub(super) struct Process {
    start: Option<f64>,
}

impl Process {
    pub(super) fn new() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        let start = || {
            let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?;
            start_time(&read("/proc/self/stat")?, &read("/proc/stat")?, ticks.into())
        };
        Self { start: start() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let time = ConstCounter::new(processor_time().as_secs_f64());
        let help = "Processor time used, in user and system mode";
        time.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, time.metric_type())?)?;
        if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().and_then(|text| resident_bytes(&text)) {
            scrape(&mut encoder, "process_resident_memory_bytes", "Memory in use", &ConstGauge::new(bytes))?;
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            let count = super::saturating(entries.count());
            scrape(&mut encoder, "process_open_fds", "Open file descriptors", &ConstGauge::new(count))?;
        }
        // Without a limit there is no number to compare with.
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            let most = ConstGauge::new(super::saturating(most));
            scrape(&mut encoder, "process_max_fds", "How many file descriptors may be open", &most)?;
        }
        if let Some(start) = self.start {
            let help = "When the process began, in seconds since 1970";
            scrape(&mut encoder, "process_start_time_seconds", help, &ConstGauge::new(start))?;
        }
        Ok(())
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// When a process began: its 22nd field has the ticks since the computer did, and `btime` the second of that. The second field is
/// the name of the program, which may have spaces and parentheses.
fn start_time(of_process: &str, of_computer: &str, ticks_per_second: f64) -> Option<f64> {
    let (_, fields) = of_process.rsplit_once(')')?;
    let ticks: f64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let boot: f64 = of_computer.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + ticks / ticks_per_second)
}

/// The line reads `VmRSS:     5120 kB`.
fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_bytes("VmPeak:\t  9000 kB\nVmRSS:\t    5120 kB\n"), Some(5_242_880));
        assert_eq!(resident_bytes("VmPeak:\t  9000 kB\n"), None);
    }

    #[test]
    fn the_start_is_that_of_the_computer_and_the_ticks_until_the_process_began() {
        let fields: Vec<_> =
            (3..30).map(|field| if field == 22 { "250".to_owned() } else { field.to_string() }).collect();
        let stat = format!("7 (a (b) c) {}", fields.join(" "));
        assert_eq!(start_time(&stat, "cpu  1 2\nbtime 1700000000\nprocesses 9\n", 100.0), Some(1_700_000_002.5));
        assert_eq!(start_time(&stat, "cpu  1 2\n", 100.0), None);
    }

    #[test]
    fn the_process_has_a_start_and_a_limit_of_descriptors() {
        let text = super::super::Metrics::new().encode().unwrap();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap().parse::<f64>().unwrap()
        };
        let now = jiff::Timestamp::now().as_duration().as_secs_f64();
        let start = value("process_start_time_seconds");
        // The test has begun, and not days ago; clocks of computers are set while they run.
        assert!((now - 86_400.0..now + 60.0).contains(&start), "{start} at {now}");
        assert!(value("process_max_fds") >= value("process_open_fds"));
    }

    #[test]
    fn the_process_has_used_some_processor_time() {
        let text = super::super::Metrics::new().encode().unwrap();
        let line = text.lines().find(|line| line.starts_with("process_cpu_seconds_total ")).unwrap();
        assert!(line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() > 0.0);
    }
}
