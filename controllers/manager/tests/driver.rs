//! The driver of a manager: there is no default.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::process::Command;

/// The exit code and the last line of a command that cannot start.
fn ends(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodewright")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn controllers_of_machines_do_not_start_without_a_driver_and_list_the_choices() {
    for command in [&["manager"][..], &["mc"], &["manager", "--controllers=machine", "--cloud-provider=aws"]] {
        let (code, line) = ends(command);
        assert_eq!(code, Some(1), "{command:?}: {line}");
        for choice in ["--driver=", "--driver-socket=", "nodewright-driver-aws", "config/components/driver-aws"] {
            assert!(line.starts_with("error: ") && line.contains(choice), "{command:?}: {choice} is missing in {line}");
        }
    }
}

#[test]
fn other_controllers_need_none() {
    for command in ["mcm", "machine-config"] {
        let flags = [command, "--port=0", "--address=127.0.0.1", "--target-kubeconfig=/none", "--vmodule=a=1"];
        let (code, line) = ends(&flags);
        assert!(code == Some(1) && line.contains("kubeconfig"), "{command}: {line}");
    }
}
