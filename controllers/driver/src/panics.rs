//! What a process prints when it panics.
//!
//! # Guarantees
//! * The place is printed, and the message if it is a constant of the source. A message that was formatted is withheld: it may quote
//!   user data, credentials or a configuration. The standard library itself quotes: a slice of a text at a wrong byte, or `unwrap` of
//!   an error, prints the text.
//! * `RUST_BACKTRACE` works as usual: a backtrace has names of functions and no values.
//!
//! # Caveats
//! * A core dump has all that is in memory.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    panic::{self, PanicHookInfo},
    thread,
};

const WITHHELD: &str = "(the message is withheld: it was formatted, and may quote a secret)";

/// Withholds formatted messages of panics, in all threads of this process. The first line of a `main`.
pub fn withhold_messages() {
    panic::set_hook(Box::new(|info| {
        // Ignore the error: a panic in here would abort the process.
        let _ = io::stderr().write_all(text(info).as_bytes());
    }));
}

/// In the format of the standard library.
fn text(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let message = info.payload().downcast_ref::<&'static str>().unwrap_or(&WITHHELD);
    let backtrace = Some(Backtrace::capture()).filter(|it| it.status() == BacktraceStatus::Captured);
    let backtrace = backtrace.map(|it| format!("{it}\n")).unwrap_or_default();
    format!("thread '{}' panicked at {place}:\n{message}\n{backtrace}", thread.name().unwrap_or("<unnamed>"))
}

#[cfg(test)]
mod tests {
    use std::{env, process::Command};

    use super::*;

    const CASE: &str = "NODEWRIGHT_TEST_PANIC";

    /// What a process prints that panics in this way: this test in a process of its own.
    fn printed(case: &str) -> String {
        let test = ["--exact", "panics::tests::what_was_formatted_is_withheld", "--nocapture"];
        let mut command = Command::new(env::current_exe().unwrap());
        let output = command.args(test).env(CASE, case).env_remove("RUST_BACKTRACE").output().unwrap();
        assert!(!output.status.success(), "{case} has not panicked");
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    }

    #[allow(clippy::panic, reason = "it is what is tested")]
    fn panics(case: &str) {
        let secret = String::from("é-hunter2");
        match case {
            "constant" => panic!("there is no machine"),
            "formatted" => panic!("failed to read {secret}"),
            "slice" => drop(secret[1..].to_owned()),
            "unwrap" => secret.is_empty().then_some(()).ok_or(secret).unwrap(),
            _ => panic::panic_any(secret),
        }
    }

    #[test]
    fn what_was_formatted_is_withheld() {
        if let Ok(case) = env::var(CASE) {
            withhold_messages();
            return panics(&case);
        }
        assert!(printed("constant").contains("\nthere is no machine\n"));
        for case in ["formatted", "slice", "unwrap", "any"] {
            let printed = printed(case);
            assert!(!printed.contains("hunter2"), "{case}: {printed}");
            assert!(printed.contains("panicked at ") && printed.contains("panics.rs:"), "{case}: {printed}");
            assert!(printed.contains(WITHHELD), "{case}: {printed}");
        }
    }
}
