//! The command line of the manager.

use std::path::Path;

use crate::manager::ManagerOptions;

/// The command and all flags. Flags of the caller replace the default ones, because each flag may be given once.
pub(crate) fn manager(options: &ManagerOptions, port: u16, webhook_port: Option<u16>) -> Vec<String> {
    let target = options.target_kubeconfig.as_deref().unwrap_or(Path::new("none"));
    let mut ours = vec![
        flag("control-kubeconfig", options.control_kubeconfig.display()),
        flag("target-kubeconfig", target.display()),
        flag("namespace", &options.namespace),
        flag("address", "127.0.0.1"),
        flag("port", port),
        flag("simulated-cloud-url", &options.cloud_url),
    ];
    if let Some(port) = webhook_port {
        ours.extend([
            flag("webhooks", true),
            flag("webhook-address", "127.0.0.1"),
            flag("webhook-host", "127.0.0.1"),
            flag("webhook-port", port),
        ]);
    }
    ours.retain(|ours| !options.flags.iter().any(|given| name_of(given) == name_of(ours)));
    [vec![options.command.clone()], ours, options.flags.clone()].concat()
}

/// The value of a flag: `--name=value`, or `--name` and the next argument.
pub fn flag_value<'a>(flags: &'a [String], name: &str) -> Option<&'a str> {
    let mut rest = flags.iter().skip_while(|flag| name_of(flag) != name);
    match rest.next()?.split_once('=') {
        Some((_, value)) => Some(value),
        None => rest.next().map(String::as_str),
    }
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn name_of(flag: &str) -> &str {
    let name = flag.trim_start_matches('-');
    name.split_once('=').map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_caller_replace_the_default_ones() {
        let options = ManagerOptions::new("/k", "http://c").with_flags(["--port=7", "--machine-health-timeout=30s"]);
        let line = manager(&options, 1, Some(2));
        assert_eq!(line[0], "manager");
        assert_eq!(line.iter().filter(|flag| flag.starts_with("--port")).collect::<Vec<_>>(), ["--port=7"]);
        assert!(line.contains(&"--webhook-port=2".to_owned()), "{line:?}");
        assert!(line.contains(&"--machine-health-timeout=30s".to_owned()), "{line:?}");
        assert_eq!(flag_value(&options.flags, "port"), Some("7"));
        assert_eq!(flag_value(&["--v".to_owned(), "2".to_owned()], "v"), Some("2"));
        assert_eq!(flag_value(&options.flags, "webhook-port"), None);
    }

    #[test]
    fn a_manager_without_a_target_cluster_has_none() {
        let options = ManagerOptions { target_kubeconfig: None, ..ManagerOptions::new("/k", "http://c") };
        let line = manager(&options, 1, None);
        assert!(line.contains(&"--target-kubeconfig=none".to_owned()), "{line:?}");
        assert!(!line.iter().any(|flag| flag.starts_with("--webhook")), "{line:?}");
    }
}
