//! Processor time and memory of a process, as the kernel reports them. All threads count, including those that ended.

use std::{fmt, fs, io, iter::Sum, time::Duration};

/// The unit of times in `/proc/PID/stat`: on all platforms that we build for, hundredths of a second.
const TICKS_PER_SECOND: u64 = 100;
/// The indexes of user and system time among the fields after the name of the process.
const TIMES: [usize; 2] = [11, 12];
/// The index of the parent's process id there.
const PARENT: usize = 1;
/// The value for `/proc/PID/clear_refs` that resets the peak; see proc(5).
const RESET_PEAK: &str = "5";

/// The name of the largest resident memory in `/proc/PID/status`.
const PEAK: &str = "VmHWM:";

/// The processes that a process has started and that have not ended.
pub(crate) fn children(pid: u32) -> io::Result<Vec<u32>> {
    let mut children = vec![];
    for entry in fs::read_dir("/proc")? {
        let Some(child) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since.
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        if parent(&stat) == Some(pid) {
            children.push(child);
        }
    }
    Ok(children)
}

/// The processor time of a process, user and system.
pub(crate) fn processor_time(pid: u32) -> io::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    ticks(&fs::read_to_string(&path)?).map(of_ticks).ok_or_else(|| unclear(&path))
}

/// The largest resident memory of a process since its start or [`reset_peak_memory`], in bytes.
pub(crate) fn peak_memory(pid: u32) -> io::Result<u64> {
    let path = format!("/proc/{pid}/status");
    bytes_of(&fs::read_to_string(&path)?, PEAK).ok_or_else(|| unclear(&path))
}

/// Resident memory, by what backs it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Pages of the program and its libraries, which the kernel can drop, and which processes share.
    pub(crate) file: u64,
    /// Data.
    pub(crate) anonymous: u64,
}

impl Sum for Resident {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, each| Self {
            file: sum.file + each.file,
            anonymous: sum.anonymous + each.anonymous,
        })
    }
}

impl fmt::Display for Resident {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} MiB of files, {:.1} MiB of data", mebibytes(self.file), mebibytes(self.anonymous))
    }
}

/// Memory in MiB, the unit of the goals.
#[allow(clippy::cast_precision_loss, reason = "no process has 2^52 bytes")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The present resident memory of a process.
pub(crate) fn resident(pid: u32) -> io::Result<Resident> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path)?;
    let of = |name| bytes_of(&status, name).ok_or_else(|| unclear(&path));
    Ok(Resident { file: of("RssFile:")?, anonymous: of("RssAnon:")? })
}

/// Resets the peak to the present resident memory.
pub(crate) fn reset_peak_memory(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), RESET_PEAK)
}

fn unclear(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} has an unexpected format, see proc(5)"))
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// The name of the process stands in parentheses and may contain any character. Its state and numbers follow it.
fn fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace().collect())
}

fn parent(stat: &str) -> Option<u32> {
    fields(stat)?.get(PARENT)?.parse().ok()
}

fn ticks(stat: &str) -> Option<u64> {
    let fields = fields(stat)?;
    TIMES.iter().map(|index| fields.get(*index)?.parse::<u64>().ok()).sum()
}

/// A number of `/proc/PID/status`, which has kibibytes.
fn bytes_of(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_the_name() {
        let behind = "S 1 42 42 0 -1 4194560 1906 99 0 7 153 28 1000 2000 20 0 5 0 19 1 2";
        for name in ["nodewright", "a b", "x) R 9 9 9 9 9 9 9 9 9 9 9 9 9 (y", "(", ")"] {
            assert_eq!(ticks(&format!("42 ({name}) {behind}\n")), Some(181), "{name}");
            assert_eq!(parent(&format!("42 ({name}) {behind}\n")), Some(1), "{name}");
        }
        assert_eq!(of_ticks(181), Duration::from_millis(1_810));
    }

    #[test]
    fn truncated_text_has_no_number() {
        assert_eq!(ticks("42 (nodewright) S 1 42 42 0 -1 4194560 1906 99 0 7 153"), None);
        assert_eq!(ticks("42 nodewright"), None);
        assert_eq!(bytes_of("VmPeak:\t  100 kB\nVmRSS:\t 50 kB\n", PEAK), None);
        assert_eq!(bytes_of("VmHWM:\t 5 pages\n", PEAK), None);
    }

    #[test]
    fn the_peak_is_in_kibibytes() {
        assert_eq!(bytes_of("Name:\tVmHWM: x\nVmPeak:\t  100 kB\nVmHWM:\t   41000 kB\n", PEAK), Some(41_984_000));
    }

    #[test]
    fn children_are_found_until_they_end() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(std::process::id()).unwrap().contains(&child.id()));
        child.kill().and(child.wait()).unwrap();
        assert!(!children(std::process::id()).unwrap().contains(&child.id()));
    }

    #[test]
    fn the_values_of_the_kernel_are_read() {
        let pid = std::process::id();
        let peak = peak_memory(pid).unwrap();
        let block = vec![1_u8; 64 << 20];
        assert!(peak_memory(pid).unwrap() >= peak.max(block.len() as u64));
        assert!(resident(pid).unwrap().anonymous >= block.len() as u64);
        drop(block);
        reset_peak_memory(pid).unwrap();
        assert!(peak_memory(pid).unwrap() > 0);
        while processor_time(pid).unwrap().is_zero() {
            std::hint::black_box((0..1_000_000_u64).sum::<u64>());
        }
    }
}
