//! What the kernel says of a process: its processor time and its memory. All threads count, those that ended as well.

use std::{fs, io, time::Duration};

/// The unit of times in `/proc/PID/stat`: Linux reports hundredths of a second on all machines that we build for,
/// whatever its own clock does.
const TICKS_PER_SECOND: u64 = 100;
/// Where user and system time stand among the fields behind the process' name.
const TIMES: [usize; 2] = [11, 12];
/// What `/proc/PID/clear_refs` takes for an order to forget the peak, see proc(5).
const FORGET_PEAK: &str = "5";

/// The processor time that a process has used, user and system.
pub(crate) fn processor_time(pid: u32) -> io::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    ticks(&fs::read_to_string(&path)?).map(of_ticks).ok_or_else(|| unclear(&path))
}

/// The most memory that a process had at once since its start, or since [`forget_peak`], in bytes: what is resident.
pub(crate) fn peak_memory(pid: u32) -> io::Result<u64> {
    let path = format!("/proc/{pid}/status");
    high_water(&fs::read_to_string(&path)?).ok_or_else(|| unclear(&path))
}

/// From now on the peak is counted anew; it starts with what is resident now.
pub(crate) fn forget_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), FORGET_PEAK)
}

fn unclear(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not as proc(5) says"))
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
}

/// The name stands in parentheses and may hold anything, parentheses and blanks included; what follows is numbers.
fn ticks(stat: &str) -> Option<u64> {
    let (_, behind) = stat.rsplit_once(')')?;
    let fields: Vec<_> = behind.split_whitespace().collect();
    TIMES.iter().map(|index| fields.get(*index)?.parse::<u64>().ok()).sum()
}

fn high_water(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_behind_the_name_whatever_that_is() {
        let behind = "S 1 42 42 0 -1 4194560 1906 99 0 7 153 28 1000 2000 20 0 5 0 19 1 2";
        for name in ["nodewright", "a b", "x) R 9 9 9 9 9 9 9 9 9 9 9 9 9 (y", "(", ")"] {
            assert_eq!(ticks(&format!("42 ({name}) {behind}\n")), Some(181), "{name}");
        }
        assert_eq!(of_ticks(181), Duration::from_millis(1_810));
    }

    #[test]
    fn what_is_cut_off_is_no_number() {
        assert_eq!(ticks("42 (nodewright) S 1 42 42 0 -1 4194560 1906 99 0 7 153"), None);
        assert_eq!(ticks("42 nodewright"), None);
        assert_eq!(high_water("VmPeak:\t  100 kB\nVmRSS:\t 50 kB\n"), None);
        assert_eq!(high_water("VmHWM:\t 5 pages\n"), None);
    }

    #[test]
    fn the_peak_is_in_kibibytes() {
        assert_eq!(high_water("Name:\tVmHWM: x\nVmPeak:\t  100 kB\nVmHWM:\t   41000 kB\n"), Some(41_984_000));
    }

    #[test]
    fn the_kernel_is_understood() {
        let pid = std::process::id();
        let peak = peak_memory(pid).unwrap();
        let block = vec![1_u8; 64 << 20];
        assert!(peak_memory(pid).unwrap() >= peak.max(block.len() as u64));
        drop(block);
        forget_peak(pid).unwrap();
        assert!(peak_memory(pid).unwrap() > 0);
        while processor_time(pid).unwrap().is_zero() {
            std::hint::black_box((0..1_000_000_u64).sum::<u64>());
        }
    }
}
