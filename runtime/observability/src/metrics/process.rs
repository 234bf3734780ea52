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
#[derive(Debug, Default)]
pub(super) struct Process;

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
        Ok(())
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
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
    fn the_process_has_used_some_processor_time() {
        let text = super::super::Metrics::new().encode().unwrap();
        let line = text.lines().find(|line| line.starts_with("process_cpu_seconds_total ")).unwrap();
        assert!(line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() > 0.0);
    }
}
