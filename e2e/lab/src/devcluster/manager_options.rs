//! How a manager is started, and its command line.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// How a manager is started.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The command of `nodewright`: `manager`, `mcm` or `mc`.
    pub command: String,
    /// The name in errors and of the log.
    pub name: String,
    /// The kubeconfig of the cluster with the custom resources.
    pub control_kubeconfig: PathBuf,
    /// The kubeconfig of the cluster that nodes join. `None`: no such cluster.
    pub target_kubeconfig: Option<PathBuf>,
    /// The namespace of the custom resources.
    pub namespace: String,
    /// The URL of the fake cloud, for the driver `simulated`, unless flags name another driver.
    pub cloud_url: String,
    /// Whether it serves webhooks, registered by URL. Only the command `manager` can.
    pub webhooks: bool,
    /// Additional flags, each as `--name=value`. They override the default ones.
    pub flags: Vec<String>,
    /// Additional environment variables.
    pub environment: Vec<(String, String)>,
    /// The executable. `None`: that of [`BINARY_VARIABLE`], or the one beside the present executable.
    pub program: Option<PathBuf>,
    /// The file that its output is appended to. `None`: with [`ManagerProcess::start_on`] a file beside the logs of the
    /// control plane, else a temporary file.
    pub log: Option<PathBuf>,
    /// How long the manager may take until it is ready.
    pub start_timeout: Duration,
}

impl ManagerOptions {
    /// All controllers and webhooks, with one cluster as control and target cluster, in namespace `default`.
    pub fn new(kubeconfig: impl Into<PathBuf>, cloud_url: impl Into<String>) -> Self {
        let kubeconfig = kubeconfig.into();
        Self {
            command: "manager".to_owned(),
            name: "manager".to_owned(),
            control_kubeconfig: kubeconfig.clone(),
            target_kubeconfig: Some(kubeconfig),
            namespace: "default".to_owned(),
            cloud_url: cloud_url.into(),
            webhooks: true,
            flags: Vec::new(),
            environment: Vec::new(),
            program: None,
            log: None,
            // It takes two seconds, and many times that on a computer that also compiles.
            start_timeout: Duration::from_mins(1),
        }
    }

    /// Adds flags.
    #[must_use]
    pub fn with_flags(mut self, flags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// Without webhooks.
    #[must_use]
    pub fn without_webhooks(self) -> Self {
        Self { webhooks: false, ..self }
    }

    /// Whether the manager will serve webhooks. A flag overrides the option.
    pub(crate) fn serves_webhooks(&self) -> bool {
        self.webhooks && flag_value(&self.flags, "webhooks") != Some("false")
    }

    /// Whether it needs the driver `simulated`: it has controllers of machines or webhooks, and no other driver.
    pub(crate) fn needs_driver(&self) -> bool {
        let has_driver = ["driver", "driver-socket"].iter().any(|name| flag_value(&self.flags, name).is_some());
        !has_driver && (["manager", "mc"].contains(&self.command.as_str()) || self.serves_webhooks())
    }

    /// The command and all flags. Flags of the caller replace the default ones, because each flag may be given once.
    pub(crate) fn command_line(&self, port: u16, webhook_port: Option<u16>, driver: Option<&Path>) -> Vec<String> {
        let target = self.target_kubeconfig.as_deref().unwrap_or(Path::new("none"));
        let mut ours = vec![
            flag("control-kubeconfig", self.control_kubeconfig.display()),
            flag("target-kubeconfig", target.display()),
            flag("namespace", &self.namespace),
            flag("address", "127.0.0.1"),
            flag("port", port),
        ];
        ours.extend(driver.map(|driver| flag("driver", driver.display())));
        if let Some(port) = webhook_port {
            ours.extend([
                flag("webhooks", true),
                flag("webhook-address", "127.0.0.1"),
                flag("webhook-host", "127.0.0.1"),
                flag("webhook-port", port),
            ]);
        }
        ours.retain(|ours| !self.flags.iter().any(|given| name_of(given) == name_of(ours)));
        [vec![self.command.clone()], ours, self.flags.clone()].concat()
    }
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
        let line = options.command_line(1, Some(2), Some(Path::new("/d")));
        assert_eq!(line[0], "manager");
        assert_eq!(line.iter().filter(|flag| flag.starts_with("--port")).collect::<Vec<_>>(), ["--port=7"]);
        assert!(line.contains(&"--webhook-port=2".to_owned()) && line.contains(&"--driver=/d".to_owned()), "{line:?}");
        assert!(line.contains(&"--machine-health-timeout=30s".to_owned()), "{line:?}");
        assert_eq!(flag_value(&options.flags, "port"), Some("7"));
        assert_eq!(flag_value(&["--v".to_owned(), "2".to_owned()], "v"), Some("2"));
        assert_eq!(flag_value(&options.flags, "webhook-port"), None);
    }

    #[test]
    fn a_manager_without_a_target_cluster_has_none() {
        let options = ManagerOptions { target_kubeconfig: None, ..ManagerOptions::new("/k", "http://c") };
        let line = options.command_line(1, None, None);
        assert!(line.contains(&"--target-kubeconfig=none".to_owned()), "{line:?}");
        assert!(!line.iter().any(|flag| flag.starts_with("--webhook")), "{line:?}");
    }

    #[test]
    fn a_manager_without_a_driver_gets_the_simulated_one_if_it_needs_one() {
        for (command, flags, needs_driver) in [
            ("manager", &[][..], true),
            ("manager", &["--driver=/d"], false),
            ("mc", &["--driver-socket", "/s"], false),
            ("mc", &["--webhooks=false"], true),
            ("mcm", &["--webhooks=false"], false),
            ("mcm", &[], true),
        ] {
            let options = ManagerOptions::new("/k", "http://c").with_flags(flags.iter().copied());
            let options = ManagerOptions { command: command.to_owned(), ..options };
            assert_eq!(options.needs_driver(), needs_driver, "{command} {flags:?}");
        }
    }

    #[test]
    fn a_flag_can_switch_webhooks_off() {
        let options = ManagerOptions::new("/k", "http://c");
        assert!(options.serves_webhooks() && options.clone().with_flags(["--webhooks=true"]).serves_webhooks());
        assert!(!options.clone().with_flags(["--webhooks=false"]).serves_webhooks());
        assert!(!options.with_flags(["--webhooks", "false"]).serves_webhooks());
    }
}
