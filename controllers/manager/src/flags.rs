//! The flags: machine-controller-manager's, with its names and defaults, and a few of our own.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, Parser, Subcommand};
use nodewright_api::GoDuration;
use nodewright_controllers::machine::Settings;
use nodewright_observability::telemetry::{self, TelemetryConfig};
use nodewright_runtime::manager::Rate;

/// Keeps a fleet of Kubernetes worker machines as declared.
///
/// Machines, MachineSets, MachineDeployments and MachineClasses of machine.sapcloud.io/v1alpha1 live in the control
/// cluster; their nodes join the target cluster, which may be the same.
#[derive(Debug, Parser)]
#[command(name = "nodewright", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run all controllers, and the webhooks if asked for.
    Manager(Box<ManagerFlags>),
    /// Run what machine-controller-manager runs: the controllers of MachineDeployments and MachineSets.
    Mcm(Box<ManagerFlags>),
    /// Run what machine-controller runs: the controllers of Machines and MachineClasses.
    Mc(Box<ManagerFlags>),
    /// Run the admission webhooks alone.
    Webhook(Box<WebhookOnlyFlags>),
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    Crds,
}

/// The flags of a process with controllers.
#[derive(Clone, Debug, Args)]
pub(crate) struct ManagerFlags {
    #[command(flatten)]
    pub(crate) process: ProcessFlags,
    #[command(flatten)]
    pub(crate) election: ElectionFlags,
    #[command(flatten)]
    pub(crate) machine: MachineFlags,
    #[command(flatten)]
    pub(crate) provider: ProviderFlags,
    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
    #[command(flatten)]
    pub(crate) ignored: IgnoredFlags,
    /// Controllers to run: a comma separated list of names; `*` stands for all, `-name` leaves one out.
    /// [all: machine-deployment, machine-set, machine, machine-class]
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true, help_heading = "Process")]
    pub(crate) controllers: Vec<String>,
}

/// The flags of a process with the webhooks alone.
#[derive(Clone, Debug, Args)]
pub(crate) struct WebhookOnlyFlags {
    #[command(flatten)]
    pub(crate) process: ProcessFlags,
    #[command(flatten)]
    pub(crate) provider: ProviderFlags,
    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessFlags {
    /// Kubeconfig of the control cluster, where the custom resources live. Empty: that of the target cluster;
    /// `inClusterConfig`: the cluster that this process runs in.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub(crate) control_kubeconfig: String,
    /// Kubeconfig of the target cluster, where the nodes join. Empty: the cluster that this process runs in;
    /// `none`: there is no target cluster, and machines end in phase Available.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub(crate) target_kubeconfig: String,
    /// Namespace of the custom resources in the control cluster.
    #[arg(long, default_value = "default")]
    pub(crate) namespace: String,
    /// Port for metrics, health and readiness over HTTP. [default: 10258, and 10259 for `mc`]
    #[arg(long)]
    pub(crate) port: Option<u16>,
    /// Address for metrics, health and readiness.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    pub(crate) address: IpAddr,
    /// Serve --port over HTTPS, and `/metrics` and `/debug/log-level` to those only whom the control cluster lets: a bearer
    /// token is reviewed (`TokenReview`), and its user's right to the path (`SubjectAccessReview`).
    #[arg(long, action = ArgAction::Set, default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) secure_metrics: bool,
    /// Port of its own for `/healthz`, `/livez` and `/readyz` over HTTP. --port serves them as well.
    #[arg(long, value_name = "PORT")]
    pub(crate) health_probe_port: Option<u16>,
    /// What is logged: a level, or directives such as `info,nodewright_runtime=debug`.
    #[arg(long, default_value = "info", env = "NODEWRIGHT_LOG")]
    pub(crate) log_level: String,
    /// How it is logged.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// OTLP endpoint (gRPC) that traces are sent to, such as `http://localhost:4317`. Empty: no traces.
    #[arg(long, default_value = "", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: String,
    /// Part of the traces that is kept, 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    pub(crate) trace_ratio: f64,
}

impl ProcessFlags {
    pub(crate) fn telemetry(&self) -> TelemetryConfig {
        TelemetryConfig {
            service: "nodewright".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            attributes: vec![("k8s.namespace.name", self.namespace.clone())],
            format: match self.log_format {
                LogFormat::Text => telemetry::LogFormat::Text,
                LogFormat::Json => telemetry::LogFormat::Json,
            },
            levels: self.log_level.clone(),
            endpoint: Some(self.otlp_endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
            ratio: self.trace_ratio,
            ..TelemetryConfig::default()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[allow(clippy::struct_field_names)] // they are the names of the flags
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct ElectionFlags {
    /// Act only while holding the leases `machine-controller-manager` and `machine-controller`.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) leader_elect: bool,
    /// After how long without a renewal another process may lead.
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_lease_duration: Duration,
    /// After how long without a renewal this process stops leading.
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_renew_deadline: Duration,
    /// Pause between two attempts.
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_retry_period: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Machines")]
pub(crate) struct MachineFlags {
    /// From the creation of a machine until its node has to be healthy.
    #[arg(long, default_value = "20m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_creation_timeout: Duration,
    /// From phase Unknown to Failed.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_health_timeout: Duration,
    /// From the deletion of a machine until its pods are deleted by force.
    #[arg(long, default_value = "2h", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_drain_timeout: Duration,
    /// How often the eviction of a pod is tried before the pod is deleted.
    #[arg(long, default_value_t = 360)]
    pub(crate) machine_max_evict_retries: u32,
    /// How long the volumes of a drained node may take to be detached.
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_pv_detach_timeout: Duration,
    /// Node conditions that make a machine unhealthy unless they are False.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable"
    )]
    pub(crate) node_conditions: Vec<String>,
    /// Groups that bootstrap tokens belong to besides system:bootstrappers.
    #[arg(long, default_value = "")]
    pub(crate) bootstrap_token_auth_extra_groups: String,
    /// Pause after a failed creation for lack of capacity or quota.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) resource_exhausted_retry: Duration,
    /// First pause after a provider failure that may pass by itself; it doubles up to a minute.
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub(crate) provider_short_retry: Duration,
    /// Pause after any other provider failure.
    #[arg(long, default_value = "3m", value_parser = duration, value_name = "DURATION")]
    pub(crate) provider_medium_retry: Duration,
    /// How long a node may be not ready before its pods are deleted instead of evicted.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) node_not_ready_limit: Duration,
    /// Pause between two attempts to evict a pod that a disruption budget holds back.
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub(crate) evict_retry: Duration,
    /// How long a node that is being deleted and that no machine claims keeps its finalizer.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) orphaned_node_grace: Duration,
}

impl MachineFlags {
    pub(crate) fn settings(&self, has_target: bool) -> Settings {
        Settings {
            creation_timeout: self.machine_creation_timeout,
            health_timeout: self.machine_health_timeout,
            drain_timeout: self.machine_drain_timeout,
            max_evict_retries: self.machine_max_evict_retries,
            detach_timeout: self.machine_pv_detach_timeout,
            node_conditions: self.node_conditions.iter().filter(|name| !name.is_empty()).cloned().collect(),
            exhausted_retry: self.resource_exhausted_retry,
            short_retry: self.provider_short_retry,
            medium_retry: self.provider_medium_retry,
            not_ready_limit: self.node_not_ready_limit,
            evict_retry: self.evict_retry,
            orphaned_node_grace: self.orphaned_node_grace,
            bootstrap_groups: self.bootstrap_token_auth_extra_groups.clone(),
            has_target,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Provider")]
pub(crate) struct ProviderFlags {
    /// The driver that makes VMs.
    #[arg(long, default_value = "simulated", value_parser = ["simulated"])]
    pub(crate) cloud_provider: String,
    /// URL of the simulated cloud.
    #[arg(long, default_value = "http://127.0.0.1:8080", env = "NODEWRIGHT_CLOUD_URL", value_name = "URL")]
    pub(crate) simulated_cloud_url: String,
    /// How many provider calls may be under way at once.
    #[arg(long, default_value_t = 200)]
    pub(crate) provider_concurrency: usize,
    /// How many API requests may be under way at once in each cluster. Each has a connection of its own meanwhile.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) request_concurrency: u16,
    /// How many API requests may be sent to each cluster in a second; watches, leases and events do not count. 0: as many as
    /// the API server's own fairness lets through.
    #[arg(long, default_value_t = 0.0, value_parser = rate, value_name = "REQUESTS")]
    pub(crate) kube_api_qps: f64,
    /// How many of them may be sent at once after a rest; counts only with --kube-api-qps.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..), value_name = "REQUESTS")]
    pub(crate) kube_api_burst: u32,
}

impl ProviderFlags {
    /// The limit of requests, if one is set.
    pub(crate) fn request_rate(&self) -> Option<Rate> {
        let rate = Rate { per_second: self.kube_api_qps, burst: self.kube_api_burst };
        (rate.per_second > 0.0).then_some(rate)
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Webhooks")]
pub(crate) struct WebhookFlags {
    /// Serve the admission webhooks in this process.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) webhooks: bool,
    /// Address of the webhook server.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    pub(crate) webhook_address: IpAddr,
    /// Port of the webhook server; 0 takes any free one.
    #[arg(long, default_value_t = 9443)]
    pub(crate) webhook_port: u16,
    /// Host under which the API server reaches this process directly. Then the webhook configurations are written by
    /// this process, with URLs. Empty: the API server goes through the Service.
    #[arg(long, default_value = "", value_name = "HOST")]
    pub(crate) webhook_host: String,
    /// Name of the Service in front of the webhook server.
    #[arg(long, default_value = "nodewright-webhook")]
    pub(crate) webhook_service: String,
    /// Namespace of the Service and of the Secret with the certificate. [default: the namespace of the custom resources]
    #[arg(long)]
    pub(crate) webhook_namespace: Option<String>,
    /// Folder with tls.crt, tls.key and ca.crt, for certificates that somebody else makes. Without it this process
    /// makes its own, and keeps them in a Secret.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) webhook_cert_dir: Option<PathBuf>,
}

/// Flags of machine-controller-manager that have nothing to set here. They are accepted, so that its command lines
/// work, and each one that is given is named in a warning.
#[derive(Clone, Debug, Args)]
pub(crate) struct IgnoredFlags {
    #[arg(long, hide = true)]
    concurrent_syncs: Option<String>,
    #[arg(long, hide = true)]
    min_resync_period: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    profiling: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    contention_profiling: Option<String>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    controller_start_interval: Option<String>,
    #[arg(long, hide = true)]
    leader_elect_resource_lock: Option<String>,
    #[arg(long, hide = true)]
    safety_up: Option<String>,
    #[arg(long, hide = true)]
    safety_down: Option<String>,
    #[arg(long, hide = true)]
    machine_safety_overshooting_period: Option<String>,
    #[arg(long, hide = true)]
    machine_safety_orphan_vms_period: Option<String>,
    #[arg(long, hide = true)]
    machine_safety_apiserver_statuscheck_timeout: Option<String>,
    #[arg(long, hide = true)]
    machine_safety_apiserver_statuscheck_period: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    autoscaler_scaledown_annotation_during_rollout: Option<String>,
    #[arg(long, hide = true)]
    machine_inplace_update_timeout: Option<String>,
    #[arg(long, hide = true)]
    machine_preserve_timeout: Option<String>,
    #[arg(long, hide = true)]
    machine_pv_reattach_timeout: Option<String>,
    #[arg(short = 'v', long = "v", hide = true)]
    verbosity: Option<String>,
}

impl IgnoredFlags {
    /// The names of those that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--concurrent-syncs", &self.concurrent_syncs),
            ("--min-resync-period", &self.min_resync_period),
            ("--profiling", &self.profiling),
            ("--contention-profiling", &self.contention_profiling),
            ("--kube-api-content-type", &self.kube_api_content_type),
            ("--controller-start-interval", &self.controller_start_interval),
            ("--leader-elect-resource-lock", &self.leader_elect_resource_lock),
            ("--safety-up", &self.safety_up),
            ("--safety-down", &self.safety_down),
            ("--machine-safety-overshooting-period", &self.machine_safety_overshooting_period),
            ("--machine-safety-orphan-vms-period", &self.machine_safety_orphan_vms_period),
            ("--machine-safety-apiserver-statuscheck-timeout", &self.machine_safety_apiserver_statuscheck_timeout),
            ("--machine-safety-apiserver-statuscheck-period", &self.machine_safety_apiserver_statuscheck_period),
            ("--autoscaler-scaledown-annotation-during-rollout", &self.autoscaler_scaledown_annotation_during_rollout),
            ("--machine-inplace-update-timeout", &self.machine_inplace_update_timeout),
            ("--machine-preserve-timeout", &self.machine_preserve_timeout),
            ("--machine-pv-reattach-timeout", &self.machine_pv_reattach_timeout),
            ("--v", &self.verbosity),
        ];
        all.into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect()
    }
}

/// Times a second, not negative.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("a rate is a number of requests a second, such as 20 or 0.5; 0 sets no limit".to_owned()),
    }
}

/// A duration in Go's syntax, not negative.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration =
        text.parse().map_err(|error| format!("{error}; a duration looks like 90s, 20m or 1h30m"))?;
    if parsed.is_negative() {
        return Err("a duration must not be negative".to_owned());
    }
    Ok(parsed.to_std())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn command_lines_of_machine_controller_manager_are_accepted() {
        let line = "nodewright mcm --control-kubeconfig=inClusterConfig --delete-me";
        assert!(Arguments::try_parse_from(line.split(' ')).is_err(), "unknown flags are refused");
        let line = "nodewright mcm --control-kubeconfig=inClusterConfig --machine-safety-overshooting-period=1m \
                    --namespace=shoot--a --port=10258 --safety-up=2 --safety-down=1 --target-kubeconfig=/t --concurrent-syncs=3 --v=3";
        let Command::Mcm(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else { panic!() };
        assert_eq!(flags.process.namespace, "shoot--a");
        assert_eq!(flags.ignored.given().len(), 5);
        let line = "nodewright mc --machine-creation-timeout=20m --machine-drain-timeout=2h --leader-elect=false \
                    --node-conditions=ReadonlyFilesystem,KernelDeadlock --bootstrap-token-auth-extra-groups=system:x -v 3";
        let Command::Mc(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else { panic!() };
        assert!(!flags.election.leader_elect);
        assert_eq!(flags.machine.settings(true).drain_timeout, Duration::from_hours(2));
    }

    #[test]
    fn a_rate_counts_only_when_it_is_set() {
        let rate_of = |flags: &str| {
            let line = format!("nodewright mcm {flags}");
            let Command::Mcm(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!()
            };
            flags.provider.request_rate()
        };
        assert_eq!(rate_of("--kube-api-burst=50"), None);
        assert_eq!(rate_of("--kube-api-qps=20"), Some(Rate { per_second: 20.0, burst: 30 }));
        assert!(rate("-1").is_err() && rate("NaN").is_err() && rate("many").is_err());
    }

    #[test]
    fn durations_are_gos() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        assert!(duration("-1s").is_err() && duration("10").is_err());
    }
}
