//! The table that `hack/bench-base` makes of the outputs of several runs.

use std::{fs, path::Path, process::Command};

/// What a run prints, as far as it is compared; `driver` is the line of a driver that is a process of its own.
fn output(processor: &str, writes: &str, memory: &str, driver: &str) -> String {
    let run = |direction: &str, processor: &str| {
        format!(
            "\n{direction}\n\nRESOURCE  VERB  REQUESTS\nmachines  patch  2000\n\n\
             per machine: {writes} writes, 0.00 for bootstrap tokens, 1.51 events, 0.02 reads\nwall time: 12.0 s\n\
             controllers: {processor} CPU s, 3.35 ms per machine{memory}\n{driver}Machines created: 0\n"
        )
    };
    let reference = run("0 -> 1000, for comparison", "99");
    let (up, down) = (run("0 -> 2000", processor), run("2000 -> 0", "8"));
    format!("Nodewright\n{reference}{up}{down}program text: 20.0 MB\n")
}

#[test]
fn medians_of_both_trees_are_compared() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| fs::write(directory.path().join(name), text).unwrap();
    for (turn, processor) in ["4", "9", "2"].into_iter().enumerate() {
        write(&format!("base-{turn}"), output(processor, "7.80", "\ncontrollers: 40.0 MiB of memory at the peak", ""));
    }
    for (turn, processor) in ["2", "3"].into_iter().enumerate() {
        let driver = "driver: 0.50 CPU s, 0.25 ms per machine, 8.0 MiB at the peak\n";
        write(&format!("this-{turn}"), output(processor, "7.02", ", 30.0 MiB at the peak", driver));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/bench-base");
    let printed = Command::new(script).arg("--summarize").arg(directory.path()).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let rows: Vec<String> = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        "up CPU of the manager, s 4.00 2.50 0.62",
        "up CPU with the driver, s 4.00 3.00 0.75",
        "up memory of the manager at its peak, MiB 40.00 30.00 0.75",
        "up memory with the driver, MiB 40.00 38.00 0.95",
        "up writes per machine 7.80 7.02 0.90",
        "down CPU of the manager, s 8.00 8.00 1.00",
        "down events per machine 1.51 1.51 1.00",
        "- program text, MB 20.00 20.00 1.00",
    ] {
        assert!(rows.iter().any(|printed| printed == row), "{row} is missing in\n{printed}");
    }
}
