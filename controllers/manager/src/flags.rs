//! The flags: those of machine-controller-manager, with its names and defaults, and ours.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use http::HeaderValue;
use jiff::SignedDuration;
use nodewright_api::GoDuration;
use nodewright_controllers::{
    machine::{BrakeSettings, CallLimits, CloudNodeMode as Mode, CloudNodeSettings, MachineSettings},
    machine_config_pool,
    orphan_vm::OrphanVmSettings,
    shared::fleet::{CreationTimeouts, FleetSettings, OvershootSettings},
};
use nodewright_observability::telemetry::{self, TelemetryConfig};

use crate::{extensions::ExtensionFlags, plan::PlanCommand, render::RenderFlags};

/// Manages Kubernetes worker machines.
///
/// The control cluster has the Machines, MachineSets, MachineDeployments and MachineClasses of
/// machine.sapcloud.io/v1alpha1. Their Nodes join the target cluster, which may be the same.
#[derive(Debug, Parser)]
// As with Go's flags, the last one counts: manifests set some, and a user may add others behind them.
#[command(name = "nodewright", version, propagate_version = true, max_term_width = 110, args_override_self = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run all controllers, and the webhooks with --webhooks.
    Manager(Box<ManagerFlags>),
    /// Run the controllers of machine-controller-manager: MachineDeployments and MachineSets.
    Mcm(Box<ManagerFlags>),
    /// Run the controllers of machine-controller: Machines and MachineClasses.
    Mc(Box<ManagerFlags>),
    /// Run the controllers of node configuration: MachineConfigPools, KubeletConfigs and ControllerConfigs.
    ///
    /// They need the kinds of machineconfiguration.openshift.io in the target cluster, and no others. Their Lease is in --namespace.
    MachineConfig(Box<ManagerFlags>),
    /// Run the admission webhooks alone.
    Webhook(Box<WebhookOnlyFlags>),
    /// Print the CustomResourceDefinitions, for `kubectl apply -f -`.
    Crds,
    /// Print the configuration that the nodes of a MachineConfigPool would run, from files and without a cluster.
    ///
    /// A pool selects MachineConfigs; their merge is what its nodes run. Shows validation errors, which config has set what, and what
    /// a change would cost.
    Render(RenderFlags),
    /// Print what would happen in a cluster, which is only read.
    #[command(subcommand)]
    Plan(PlanCommand),
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
    pub(crate) cloud_node: CloudNodeFlags,
    #[command(flatten)]
    pub(crate) orphans: OrphanFlags,
    #[command(flatten)]
    pub(crate) fleet: FleetFlags,
    #[command(flatten)]
    pub(crate) machine_config: MachineConfigFlags,
    #[command(flatten)]
    pub(crate) provider: ProviderFlags,
    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
    #[command(flatten)]
    pub(crate) ignored: IgnoredFlags,
    /// Controllers to run, separated by commas: names, `*` for all, `-name` to exclude one.
    /// [all: machine-deployment (with rollout-node), machine-set, machine (with orphan-vm, orphan-node, node-lifecycle and
    /// unowned-node), machine-class (with machine-class-secret), controller-config, kubelet-config, machine-config-pool,
    /// node-drain]
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true, help_heading = "Process")]
    pub(crate) controllers: Vec<String>,
}

/// The flags of a process with the webhooks alone.
#[derive(Clone, Debug, Args)]
pub(crate) struct WebhookOnlyFlags {
    #[command(flatten)]
    pub(crate) process: ProcessFlags,
    #[command(flatten)]
    pub(crate) extensions: ExtensionFlags,
    #[command(flatten)]
    pub(crate) provider: ProviderFlags,
    #[command(flatten)]
    pub(crate) webhook: WebhookFlags,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Process")]
pub(crate) struct ProcessFlags {
    /// Kubeconfig of the control cluster, which has the custom resources. Empty: that of the target cluster.
    /// `inClusterConfig`: the cluster that this process runs in.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub(crate) control_kubeconfig: String,
    /// Kubeconfig of the target cluster, which the Nodes join. Empty: the cluster that this process runs in.
    /// `none`: there is no target cluster, and machines stay in phase Available.
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
    /// Serve --port over HTTPS, and `/metrics` and `/debug/log-level` only to clients that the control cluster authorizes: by a
    /// `TokenReview` of the bearer token and a `SubjectAccessReview` of the path.
    #[arg(long, action = ArgAction::Set, default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) secure_metrics: bool,
    /// Additional port for `/healthz`, `/livez` and `/readyz` over HTTP. --port serves them too.
    #[arg(long, value_name = "PORT")]
    pub(crate) health_probe_port: Option<u16>,
    /// Log level, or directives such as `info,nodewright_runtime=debug`.
    #[arg(long, default_value = "info", env = "NODEWRIGHT_LOG")]
    pub(crate) log_level: String,
    /// Log format.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// OTLP endpoint (gRPC) for traces, such as `http://localhost:4317`. Empty: no traces.
    #[arg(long, default_value = "", env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub(crate) otlp_endpoint: String,
    /// Fraction of the traces to keep, from 0 to 1.
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    pub(crate) trace_ratio: f64,
}

impl ProcessFlags {
    pub(crate) fn telemetry(&self) -> TelemetryConfig {
        TelemetryConfig {
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
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

#[allow(clippy::struct_field_names)] // they are the names of the flags
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct ElectionFlags {
    /// Run controllers only while this process holds their leases: `machine-controller-manager`, `machine-controller` and
    /// `nodewright-machine-config`.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) leader_elect: bool,
    /// Time without a renewal after which another process may lead.
    #[arg(long, default_value = "15s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_lease_duration: Duration,
    /// Time without a renewal after which this process stops leading.
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_renew_deadline: Duration,
    /// Wait between two attempts to acquire or renew the lease.
    #[arg(long, default_value = "2s", value_parser = duration, value_name = "DURATION")]
    pub(crate) leader_elect_retry_period: Duration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Machines")]
pub(crate) struct MachineFlags {
    /// Time from the creation of a machine until its Node must be healthy.
    #[arg(long, default_value = "20m", value_parser = period, value_name = "DURATION")]
    pub(crate) machine_creation_timeout: Duration,
    /// Time from phase Unknown to Failed.
    #[arg(long, default_value = "10m", value_parser = period, value_name = "DURATION")]
    pub(crate) machine_health_timeout: Duration,
    /// Time from the deletion of a machine until its Pods are deleted by force.
    #[arg(long, default_value = "2h", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_drain_timeout: Duration,
    /// Time for the program on a Node to answer once it may update the Node in place. A field of the machine takes precedence.
    #[arg(long, default_value = "20m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_inplace_update_timeout: Duration,
    /// Time for another configuration to be applied to a drained Node, until which its machine does not fail for its health.
    #[arg(long, default_value = "30m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_config_update_timeout: Duration,
    /// A Pod is deleted once its eviction has been refused for this many waits of --evict-retry.
    #[arg(long, default_value_t = 360)]
    pub(crate) machine_max_evict_retries: u32,
    /// Time for a volume to be detached once its Pod has left.
    #[arg(long, default_value = "2m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_pv_detach_timeout: Duration,
    /// Time for a volume to be attached to another Node, before the next Pod with volumes is evicted.
    #[arg(long, default_value = "90s", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_pv_reattach_timeout: Duration,
    /// Node conditions that make a machine unhealthy unless they are False.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable"
    )]
    pub(crate) node_conditions: Vec<String>,
    /// Groups of bootstrap tokens, besides system:bootstrappers.
    #[arg(long, default_value = "")]
    pub(crate) bootstrap_token_auth_extra_groups: String,
    /// Wait after a creation that failed because capacity or quota was exhausted.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) resource_exhausted_retry: Duration,
    /// Wait after the first transient failure of the provider, or of a deletion. It doubles up to a minute, or ten if lasting.
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub(crate) provider_short_retry: Duration,
    /// Wait after the first other failure of a creation. It doubles up to ten minutes.
    #[arg(long, default_value = "3m", value_parser = duration, value_name = "DURATION")]
    pub(crate) provider_medium_retry: Duration,
    /// Time that a Node may be not ready before its Pods are deleted instead of evicted.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) node_not_ready_limit: Duration,
    /// Wait between two attempts to evict a Pod that a disruption budget protects.
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub(crate) evict_retry: Duration,
    /// Time that a Node without a machine keeps its finalizer while it is being deleted.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) orphaned_node_grace: Duration,
    /// While more than this percentage of all machines are unhealthy at once, and three at least, one is replaced at a time;
    /// above half of the way from there to 100, none whose VM exists. 100: no brake.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "PERCENT")]
    pub(crate) fleet_brake_percent: u8,
    /// The same for the machines of a zone: `nodeTemplate.zone` of their class. With `--cloud-node` no Node of a zone is deleted while more
    /// than this percentage of them are not ready. 100: no brake.
    #[arg(long, default_value_t = 55, value_parser = clap::value_parser!(u8).range(1..=100), value_name = "PERCENT")]
    pub(crate) fleet_brake_zone_percent: u8,
    /// Time after which an unhealthy machine is replaced although the brake lets none be, one at a time. 0: never.
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub(crate) fleet_brake_timeout: Duration,
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

impl MachineFlags {
    pub(crate) fn settings(&self, fleet: &FleetFlags, limits: CallLimits, has_target: bool) -> MachineSettings {
        MachineSettings {
            creation_timeout: self.machine_creation_timeout,
            health_timeout: self.machine_health_timeout,
            drain_timeout: self.machine_drain_timeout,
            update_timeout: self.machine_inplace_update_timeout,
            config_update_timeout: self.machine_config_update_timeout,
            max_evict_retries: self.machine_max_evict_retries,
            detach_timeout: self.machine_pv_detach_timeout,
            reattach_timeout: self.machine_pv_reattach_timeout,
            node_conditions: self.node_conditions.iter().filter(|name| !name.is_empty()).cloned().collect(),
            exhausted_retry: self.resource_exhausted_retry,
            short_retry: self.provider_short_retry,
            medium_retry: self.provider_medium_retry,
            not_ready_limit: self.node_not_ready_limit,
            evict_retry: self.evict_retry,
            orphaned_node_grace: self.orphaned_node_grace,
            brake: BrakeSettings {
                zone_percent: self.fleet_brake_zone_percent,
                fleet_percent: self.fleet_brake_percent,
                timeout: signed(self.fleet_brake_timeout),
            },
            bootstrap_groups: self.bootstrap_token_auth_extra_groups.clone(),
            limits,
            has_target,
            cloud_node: CloudNodeSettings::default(),
            has_pools: false,
            preserve_timeout: signed(fleet.machine_preserve_timeout),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CloudNodeMode {
    /// Another program does it, or kubelets run without `--cloud-provider=external`.
    Off,
    /// This manager does it.
    On,
    /// This manager does it once a Node has kept its taint for a while, if no other program has ever initialized a Node of the cluster,
    /// and until one does.
    Auto,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Nodes without a cloud controller manager")]
pub(crate) struct CloudNodeFlags {
    /// Do the node part of a cloud controller manager: initialize Nodes, and delete those whose VM is gone. Never beside a cloud controller
    /// manager. Its service and route controllers have no counterpart here.
    #[arg(long, value_enum, default_value_t = CloudNodeMode::Off)]
    pub(crate) cloud_node: CloudNodeMode,
    /// With --cloud-node=auto: how long a Node has to have kept the taint of an uninitialized Node until this manager initializes it and
    /// others. A twentieth of that time each further Node is left to other programs.
    #[arg(long, default_value = "10m", value_parser = period, value_name = "DURATION")]
    pub(crate) cloud_node_auto_after: Duration,
    /// Time between two questions for the addresses of a Node.
    #[arg(long, default_value = "5m", value_parser = period, value_name = "DURATION")]
    pub(crate) node_status_update_frequency: Duration,
    /// Time between the two answers without a VM after which a Node that is not ready is deleted.
    #[arg(long, default_value = "30s", value_parser = period, value_name = "DURATION")]
    pub(crate) node_deletion_grace: Duration,
    /// Time after its start, and after an outage of an API server, in which this process deletes no Node whose VM is gone.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub(crate) node_deletion_after_start: Duration,
    /// Delete Nodes whose VM is gone as this service account of the target cluster, as [NAMESPACE/]NAME: the audit log names it. This
    /// manager's account has to have the right to impersonate it. The default namespace is this manager's.
    #[arg(long, default_value = "", value_parser = service_account, value_name = "SERVICE_ACCOUNT")]
    pub(crate) node_deletion_service_account: String,
}

/// Parses a service account, with or without its namespace.
fn service_account(text: &str) -> Result<String, String> {
    let is_name = |part: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        !part.is_empty() && part.len() <= 253 && part.bytes().all(is_allowed)
    };
    let is_valid = text.is_empty() || text.splitn(2, '/').all(is_name);
    if is_valid { Ok(text.to_owned()) } else { Err("it is [NAMESPACE/]NAME of a service account".to_owned()) }
}

impl CloudNodeFlags {
    /// The user as whom Nodes are deleted, if that is not this manager's.
    pub(crate) fn deletion_user(&self, namespace: &str) -> Option<HeaderValue> {
        let account = Some(self.node_deletion_service_account.as_str()).filter(|account| !account.is_empty())?;
        let (namespace, name) = account.split_once('/').unwrap_or((namespace, account));
        HeaderValue::from_str(&format!("system:serviceaccount:{namespace}:{name}")).ok()
    }

    pub(crate) fn settings(&self) -> CloudNodeSettings {
        CloudNodeSettings {
            mode: match self.cloud_node {
                CloudNodeMode::Off => Mode::Off,
                CloudNodeMode::On => Mode::On,
                CloudNodeMode::Auto => Mode::Auto(self.cloud_node_auto_after),
            },
            update_frequency: self.node_status_update_frequency,
            deletion_grace: self.node_deletion_grace,
            deletion_after_start: self.node_deletion_after_start,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Orphaned VMs")]
pub(crate) struct OrphanFlags {
    /// Wait between two lists of the provider's VMs, to find those without a machine.
    #[arg(long, default_value = "15m", value_parser = period, value_name = "DURATION")]
    pub(crate) machine_safety_orphan_vms_period: Duration,
    /// Time from the first list that shows a VM without a machine to the one that confirms it.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "DURATION")]
    pub(crate) orphan_vms_grace: Duration,
    /// Age below which no VM is deleted; since the first list that shows it if the provider reports no age.
    #[arg(long, default_value = "30m", value_parser = duration, value_name = "DURATION")]
    pub(crate) orphan_vms_minimum_age: Duration,
    /// How long a VM is kept whose machine vanished without a deletion that the manager knows of.
    #[arg(long, default_value = "24h", value_parser = duration, value_name = "DURATION")]
    pub(crate) orphan_vms_vanished_pause: Duration,
    /// How many VMs without a machine are deleted after one list at most. 0: none.
    #[arg(long, default_value_t = 5, value_name = "NUMBER")]
    pub(crate) orphan_vms_per_pass: usize,
    /// Only report VMs without a machine.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) orphan_vms_dry_run: bool,
}

impl OrphanFlags {
    pub(crate) fn settings(&self) -> OrphanVmSettings {
        OrphanVmSettings {
            period: self.machine_safety_orphan_vms_period,
            grace: self.orphan_vms_grace,
            minimum_age: self.orphan_vms_minimum_age,
            vanished_pause: self.orphan_vms_vanished_pause,
            per_pass: self.orphan_vms_per_pass,
            dry_run: self.orphan_vms_dry_run,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Deployments and sets")]
pub(crate) struct FleetFlags {
    /// Time that a failed machine is kept if its preservation was asked for, unless its spec sets a time.
    #[arg(long, default_value = "96h", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_preserve_timeout: Duration,
    /// Count machines as available only minReadySeconds after they became ready. machine-controller-manager ignores that field.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) honor_min_ready_seconds: bool,
    /// Keep the cluster autoscaler from removing Nodes of a deployment while a rollout replaces its machines.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) autoscaler_scaledown_annotation_during_rollout: bool,
    /// Let the creation timeout of a set grow up to this: it doubles with each round of machines that do not join in time. 0: it
    /// does not grow.
    #[arg(long, default_value = "0", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_creation_timeout_max: Duration,
    /// How many machines more than replicas and surge a set may have before it is frozen: it then creates none.
    #[arg(long, default_value_t = 2, value_name = "NUMBER")]
    pub(crate) safety_up: usize,
    /// How many fewer machines than that end the freeze of a set.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) safety_down: usize,
    /// How often a frozen set looks again.
    #[arg(long, default_value = "1m", value_parser = duration, value_name = "DURATION")]
    pub(crate) machine_safety_overshooting_period: Duration,
    /// Create no machine while this many exist, those in deletion included.
    #[arg(long, default_value_t = 20_000, value_name = "NUMBER")]
    pub(crate) max_machines: usize,
    /// Create no machine of a deployment that has this many, those in deletion included.
    #[arg(long, default_value_t = 10_000, value_name = "NUMBER")]
    pub(crate) max_machines_per_deployment: usize,
}

impl FleetFlags {
    pub(crate) fn settings(&self, creation_timeout: Duration) -> FleetSettings {
        FleetSettings {
            preserve_timeout: signed(self.machine_preserve_timeout),
            honor_min_ready_seconds: self.honor_min_ready_seconds,
            annotates_nodes_in_rollouts: self.autoscaler_scaledown_annotation_during_rollout,
            creation_timeouts: CreationTimeouts {
                default: signed(creation_timeout),
                longest: signed(self.machine_creation_timeout_max),
            },
            overshoot: OvershootSettings {
                up: self.safety_up,
                down: self.safety_down,
                period: signed(self.machine_safety_overshooting_period),
            },
            max_machines: self.max_machines,
            max_machines_per_deployment: self.max_machines_per_deployment,
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Node configuration")]
pub(crate) struct MachineConfigFlags {
    /// Time that a rendered MachineConfig is kept after the last pool or Node has named it. The newest ten of a pool stay.
    #[arg(long, default_value = "72h", value_parser = duration, value_name = "DURATION")]
    pub(crate) rendered_retention: Duration,
    /// Folder of templates: `<role>/<name>/<variant>/{files,units,extensions}/<file>.yaml`. Of them and of the ControllerConfig
    /// MachineConfigs are generated.
    #[arg(long, value_name = "DIR")]
    pub(crate) machine_config_templates: Option<PathBuf>,
    /// Name of the Node that this process runs on: its pool moves it last, so that the manager moves only once.
    #[arg(long, env = "NODE_NAME", value_name = "NODE")]
    pub(crate) node_name: Option<String>,
    #[command(flatten)]
    pub(crate) extensions: ExtensionFlags,
}

impl MachineConfigFlags {
    pub(crate) fn settings(&self) -> machine_config_pool::PoolSettings {
        let extensions = self.extensions.allowed();
        let own_node = self.node_name.clone().filter(|node| !node.is_empty());
        machine_config_pool::PoolSettings {
            rendered_retention: self.rendered_retention,
            extensions,
            own_node,
            ..machine_config_pool::PoolSettings::default()
        }
    }
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Provider")]
pub(crate) struct ProviderFlags {
    /// Program of the driver, which creates the VMs. The controllers of machines need this or --driver-socket. This process starts
    /// it with --socket=FILE --stop-with-stdin and its own environment, and again when it ends.
    #[arg(long, value_name = "FILE")]
    pub(crate) driver: Option<PathBuf>,
    /// Unix socket of a driver that another program serves.
    #[arg(long, value_name = "FILE", conflicts_with = "driver")]
    pub(crate) driver_socket: Option<PathBuf>,
    /// Maximum number of concurrent calls of the provider. Half of them may be other calls than creations and deletions.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) provider_concurrency: u16,
    /// Maximum number of concurrent creations of VMs. [default: 40 % of --provider-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) creation_concurrency: Option<u16>,
    /// Maximum number of concurrent deletions of VMs. [default: 40 % of --provider-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) deletion_concurrency: Option<u16>,
    /// Maximum number of concurrent creations for one MachineDeployment; as many deletions, and as many other calls.
    /// [default: 20 % of --provider-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) deployment_concurrency: Option<u16>,
    /// The same for one MachineClass. [default: 30 % of --provider-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) class_concurrency: Option<u16>,
    /// Maximum number of concurrent calls of the provider with the same credentials. [default: 80 % of --provider-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) credentials_concurrency: Option<u16>,
    /// Maximum number of concurrent API requests to each cluster. Each uses a connection.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) request_concurrency: u16,
    /// Maximum number of evictions whose requests the API server of a cluster has yet to answer.
    /// [default: half of --request-concurrency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) eviction_concurrency: Option<u16>,
    /// Maximum number of API requests per second to each cluster, without watches, leases and events. 0: no limit besides the
    /// API server's own priority and fairness.
    #[arg(long, default_value_t = 0.0, value_parser = rate, value_name = "REQUESTS")]
    pub(crate) kube_api_qps: f64,
    /// Maximum burst of API requests. Only used with --kube-api-qps.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..), value_name = "REQUESTS")]
    pub(crate) kube_api_burst: u32,
}

impl ProviderFlags {
    /// The limits of the provider's calls.
    pub(crate) fn limits(&self) -> CallLimits {
        let usual = CallLimits::of(self.provider_concurrency.into());
        let or = |flag: Option<u16>, usual| flag.map_or(usual, usize::from);
        CallLimits {
            creations: or(self.creation_concurrency, usual.creations),
            deletions: or(self.deletion_concurrency, usual.deletions),
            per_deployment: or(self.deployment_concurrency, usual.per_deployment),
            per_class: or(self.class_concurrency, usual.per_class),
            per_credentials: or(self.credentials_concurrency, usual.per_credentials),
            ..usual
        }
    }

    /// The limit of evictions. By default they leave half of the requests to others.
    pub(crate) fn evictions(&self) -> usize {
        self.eviction_concurrency.unwrap_or(self.request_concurrency / 2).max(1).into()
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
    /// Port of the webhook server. 0 takes a free one.
    #[arg(long, default_value_t = 9443)]
    pub(crate) webhook_port: u16,
    /// Host under which the API server reaches this process directly. This process then writes the webhook configurations,
    /// with URLs. Empty: the API server uses the Service.
    #[arg(long, default_value = "", value_name = "HOST")]
    pub(crate) webhook_host: String,
    /// Name of the Service in front of the webhook server.
    #[arg(long, default_value = "nodewright-webhook")]
    pub(crate) webhook_service: String,
    /// Namespace of the Service and of the Secret with the certificate. [default: the namespace of the custom resources]
    #[arg(long)]
    pub(crate) webhook_namespace: Option<String>,
    /// Directory with tls.crt, tls.key and ca.crt that another program writes. Without it, this process creates certificates
    /// and keeps them in a Secret.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) webhook_cert_dir: Option<PathBuf>,
}

/// Flags of machine-controller-manager and its logging library klog that have no effect here, each with its other spelling. They
/// are accepted so that its command lines work.
const IGNORED: &str = "concurrent-syncs controller-start-interval kube-api-content-type leader-elect-resource-lock \
    machine-safety-apiserver-statuscheck-period machine-safety-apiserver-statuscheck-timeout \
    min-resync-period \
    alsologtostderrthreshold log-backtrace-at|log_backtrace_at log-dir|log_dir log-file|log_file \
    log-file-max-size|log_file_max_size log-flush-frequency stderrthreshold vmodule";
/// More such flags, which need no value.
const IGNORED_SWITCHES: &str = "contention-profiling profiling add-dir-header|add_dir_header alsologtostderr \
    legacy-stderr-threshold-behavior|legacy_stderr_threshold_behavior logtostderr one-output|one_output \
    skip-headers|skip_headers skip-log-headers|skip_log_headers";
/// Another one. It is in the help because its name promises a choice of the driver.
const CLOUD_PROVIDER: &str = "cloud-provider";

/// The names of the flags without effect that the user has set.
#[derive(Clone, Debug)]
pub(crate) struct IgnoredFlags(pub(crate) Vec<&'static str>);

impl FromArgMatches for IgnoredFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let all = spellings(IGNORED).chain(spellings(IGNORED_SWITCHES)).map(|(name, _)| name);
        let all = all.chain(["v", CLOUD_PROVIDER]);
        Ok(Self(all.filter(|name| matches.contains_id(name)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for IgnoredFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag =
            |(name, other): (&'static str, Option<&'static str>)| Arg::new(name).long(name).aliases(other).hide(true);
        let switch = |names| flag(names).num_args(0..=1).default_missing_value("true").require_equals(true);
        let cloud_provider = Arg::new(CLOUD_PROVIDER).long(CLOUD_PROVIDER).value_name("NAME").help_heading("Provider");
        let help = "Accepted as machine-controller-manager accepts it: without effect. --driver chooses the driver";
        command
            .args(spellings(IGNORED).map(flag))
            .args(spellings(IGNORED_SWITCHES).map(switch))
            .arg(flag(("v", None)).short('v'))
            .arg(cloud_provider.help(help))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// The names in such a list, and their other spellings.
fn spellings(list: &'static str) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    list.split_whitespace().map(|word| word.split_once('|').map_or((word, None), |(name, other)| (name, Some(other))))
}

/// Parses a rate that is not negative.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("a rate is a number of requests per second, such as 20 or 0.5; 0 sets no limit".to_owned()),
    }
}

/// Parses a duration in Go's syntax that is not negative.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: GoDuration =
        text.parse().map_err(|error| format!("{error}; a duration looks like 90s, 20m or 1h30m"))?;
    if parsed.is_negative() {
        return Err("a duration must not be negative".to_owned());
    }
    Ok(parsed.to_std())
}

/// Parses a duration of at least a second, after which something is done again and again.
fn period(text: &str) -> Result<Duration, String> {
    let period = duration(text)?;
    if period < Duration::from_secs(1) { Err("it must be at least 1s".to_owned()) } else { Ok(period) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::driver;
    use nodewright_render::rules::EXTENSIONS;

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
        assert_eq!(flags.ignored.0.len(), 2);
        let overshoot = flags.fleet.settings(flags.machine.machine_creation_timeout).overshoot;
        assert_eq!((overshoot.up, overshoot.down, overshoot.period), (2, 1, SignedDuration::from_mins(1)));
        let line = "nodewright mc --machine-creation-timeout=20m --machine-drain-timeout=2h --leader-elect=false \
                    --node-conditions=ReadonlyFilesystem,KernelDeadlock --bootstrap-token-auth-extra-groups=system:x -v 3";
        let Command::Mc(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else { panic!() };
        assert!(!flags.election.leader_elect);
        let settings = flags.machine.settings(&flags.fleet, flags.provider.limits(), true);
        assert_eq!((settings.drain_timeout, settings.limits.creations), (Duration::from_hours(2), 80));
    }

    #[test]
    fn there_is_no_rate_by_default() {
        let rate_of = |flags: &str| {
            let line = format!("nodewright mcm {flags}");
            let Command::Mcm(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!()
            };
            (flags.provider.kube_api_qps, flags.provider.kube_api_burst)
        };
        assert_eq!(rate_of("--kube-api-burst=50"), (0.0, 50));
        assert_eq!(rate_of("--kube-api-qps=20"), (20.0, 30));
        assert!(rate("-1").is_err() && rate("NaN").is_err() && rate("many").is_err());
    }

    fn parsed(line: &str) -> Result<ManagerFlags, clap::Error> {
        match Arguments::try_parse_from(["nodewright"].into_iter().chain(line.split_whitespace()))?.command {
            Command::Manager(flags) | Command::Mcm(flags) | Command::Mc(flags) => Ok(*flags),
            command => panic!("{command:?}"),
        }
    }

    #[test]
    fn the_last_one_of_a_flag_counts() {
        let flags =
            parsed("manager --secure-metrics --cloud-node=on --secure-metrics=false --cloud-node=auto").unwrap();
        assert!(!flags.process.secure_metrics);
        assert!(matches!(flags.cloud_node.cloud_node, CloudNodeMode::Auto));
    }

    #[test]
    fn there_is_at_most_one_driver() {
        for (line, driver, socket) in [
            ("manager", None, None),
            ("manager --driver=/d", Some("/d"), None),
            ("manager --driver-socket=/s", None, Some("/s")),
            ("mc --driver=/d --cloud-provider=aws", Some("/d"), None),
        ] {
            let provider = parsed(line).unwrap().provider;
            let found = (provider.driver, provider.driver_socket);
            assert_eq!(found, (driver.map(PathBuf::from), socket.map(PathBuf::from)), "{line}");
        }
        for line in ["--driver=/d --driver-socket=/s", "--simulated-cloud-url=http://c", "--local-docker-socket=/d"] {
            assert!(parsed(&format!("manager {line}")).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_without_effect_are_accepted_as_machine_controller_manager_accepts_them() {
        for (line, expected) in [
            ("--cloud-provider=", &["cloud-provider"][..]),
            ("--cloud-provider openstack", &["cloud-provider"]),
            ("--vmodule=machine*=4,drain=2 --log-flush-frequency=5s", &["log-flush-frequency", "vmodule"]),
            ("-v=4", &["v"]),
            ("--logtostderr --alsologtostderr=false", &["alsologtostderr", "logtostderr"]),
            (
                "--log_dir=/l --log-file-max-size 7 --stderrthreshold=2",
                &["log-dir", "log-file-max-size", "stderrthreshold"],
            ),
            ("--skip_headers --contention-profiling=true", &["contention-profiling", "skip-headers"]),
        ] {
            let ignored = parsed(&format!("mc {line}")).unwrap().ignored.0;
            assert_eq!(ignored.len(), expected.len(), "{line}: {ignored:?}");
            assert!(expected.iter().all(|name| ignored.contains(name)), "{line}: {ignored:?}");
        }
    }

    #[test]
    fn controllers_of_machines_need_a_driver() {
        let error = |line: &str, controllers: &[&str]| {
            driver::check(&parsed(line).unwrap().provider, controllers).map_err(|error| error.to_string())
        };
        for controllers in [&["machine"][..], &["machine-class"], &["machine-set", "machine"]] {
            assert_eq!(error("manager --driver=/d", controllers), Ok(()));
            assert_eq!(error("manager --driver-socket=/s", controllers), Ok(()));
            let text = error("manager --cloud-provider=aws", controllers).unwrap_err();
            for choice in ["--driver=", "--driver-socket=", "nodewright-driver-simulated", "driver-process.md"] {
                assert!(text.contains(choice), "{choice} is missing in {text}");
            }
        }
        for controllers in [&["machine-set", "machine-deployment"][..], &["machine-config-pool"]] {
            assert_eq!(error("manager", controllers), Ok(()));
        }
    }

    #[test]
    fn the_allowed_extensions_are_a_list_or_any() {
        let extensions_of = |flags: &str| {
            let line = format!("nodewright manager {flags}");
            let Command::Manager(flags) = Arguments::try_parse_from(line.split_whitespace()).unwrap().command else {
                panic!()
            };
            flags.machine_config.settings().extensions
        };
        assert_eq!(extensions_of(""), Some(EXTENSIONS.map(str::to_owned).to_vec()));
        assert_eq!(extensions_of("--machine-config-extensions=a,b"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(extensions_of("--machine-config-extensions="), Some(vec![]));
        assert_eq!(extensions_of("--machine-config-extensions=*"), None);
    }

    #[test]
    fn a_service_account_may_have_a_namespace() {
        let user = |account: &str| {
            let flag = format!("--node-deletion-service-account={account}");
            let Command::Manager(flags) = Arguments::try_parse_from(["nodewright", "manager", &flag]).ok()?.command
            else {
                return None;
            };
            Some(flags.cloud_node.deletion_user("own").map(|user| user.to_str().unwrap_or_default().to_owned()))
        };
        assert_eq!(user(""), Some(None));
        assert_eq!(user("a"), Some(Some("system:serviceaccount:own:a".to_owned())));
        assert_eq!(user("other/a"), Some(Some("system:serviceaccount:other:a".to_owned())));
        for invalid in ["a/b/c", "/a", "a/", "A", "a:b"] {
            assert_eq!(user(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn durations_are_gos() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_mins(90)));
        assert!(duration("-1s").is_err() && duration("10").is_err());
    }
}
