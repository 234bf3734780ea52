//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use nodewright_api::GoDuration;

use crate::{
    names::{Target, TargetKind, name_of},
    output::Format,
    plan::{Apply, Takes},
};

const EXAMPLES: &str = "\
Examples:
  # What is there, and what is not as it should be?
  kubectl nodewright tree

  # Why is my node not there?
  kubectl nodewright why machinedeployment/worker
  kubectl nodewright why machine/worker-58vxm-nz7jc
  kubectl nodewright why node/worker-58vxm-nz7jc

  # What would happen to its pods? What would an apply replace, in which order, and for how long?
  kubectl nodewright plan drain worker-58vxm-nz7jc
  kubectl nodewright plan fleet.yaml

  # Follow a rollout, and take it back
  kubectl nodewright rollout status worker
  kubectl nodewright rollout undo worker

  # An archive for a bug report, without secrets
  kubectl nodewright report

tree, why, plan and report read MachineDeployments, MachineSets, Machines, MachineClasses, Nodes, MachineConfigPools, KubeletConfigs, \
ControllerConfigs, Events, Leases and webhook configurations, and write nothing. The ClusterRole nodewright-view has these rights; plan drain reads Pods and their volumes \
as well, for which there is nodewright-plan-drain, and report reads the manager's metrics, for which there is nodewright-report. \
Secrets are never read.

Exit codes: 0 if the command has succeeded; 1 for an error, and if a rollout has failed; 2 for wrong arguments.";

/// Explains and changes fleets of machines that Nodewright keeps.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-nodewright",
    bin_name = "kubectl nodewright",
    version,
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) cluster: ClusterFlags,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Clusters")]
pub(crate) struct ClusterFlags {
    /// Kubeconfig of the cluster of the machines. [default: the files of $KUBECONFIG, or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. [default: its current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Namespace of the machines. [default: that of the context]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Look into all namespaces. Only for tree and report.
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Kubeconfig of the cluster that the nodes join. [default: that of the machines]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) target_kubeconfig: Option<PathBuf>,
    /// Context of the cluster that the nodes join, in --target-kubeconfig or --kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) target_context: Option<String>,
    /// How long each request may take, such as 30s.
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) request_timeout: Duration,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    // kubectl takes a number for seconds.
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let duration: GoDuration = text.parse().map_err(|error: nodewright_api::ParseGoDurationError| error.to_string())?;
    if duration.is_negative() { Err("must not be negative".to_owned()) } else { Ok(duration.to_std()) }
}

/// kubectl's values of `--dry-run`.
fn dry_run(text: &str) -> Result<bool, String> {
    match text {
        "none" => Ok(false),
        "server" => Ok(true),
        "client" => Err("only the API server knows what a change does: server".to_owned()),
        _ => Err("server or none".to_owned()),
    }
}

fn deployment_name(text: &str) -> Result<String, String> {
    name_of(TargetKind::Deployment, text)
}

/// `machine/a`, `a`, or `node/n`.
fn machine_target(text: &str) -> Result<Target, String> {
    if text.contains('/') {
        text.parse()
    } else {
        Ok(Target::new(TargetKind::Machine, name_of(TargetKind::Machine, text)?))
    }
}

/// `node/n`, `n`, or `machine/a`.
fn node_target(text: &str) -> Result<Target, String> {
    if text.contains('/') { text.parse() } else { Ok(Target::new(TargetKind::Node, name_of(TargetKind::Node, text)?)) }
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Show deployments, sets, machines and nodes, and pools: unhealthy first, equal ones in one line.
    ///
    /// Each line says what is awaited, and since when. -o wide has a line for each object.
    #[command(after_help = "Examples:
  kubectl nodewright tree
  kubectl nodewright tree machinedeployment/worker -o wide
  kubectl nodewright tree -A -o json")]
    Tree {
        /// MachineDeployment or MachineConfigPool. [default: all]
        name: Option<String>,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Explain why an object is not as desired: at most ten lines, the cause in the first.
    ///
    /// For each wait there is the field, flag or command that changes it.
    #[command(after_help = "Examples:
  kubectl nodewright why machinedeployment/worker
  kubectl nodewright why mc/worker-58vxm-nz7jc
  kubectl nodewright why node/worker-58vxm-nz7jc -o json")]
    Why {
        /// machine/NAME, machineset/, machinedeployment/, machineclass/, node/, machineconfigpool/ or kubeletconfig/NAME.
        object: Target,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Show the life of a machine as a waterfall: when each part of it began, and how long it took.
    ///
    /// It follows from the object and its node. With --jaeger the spans of its traces are below, and a machine that is gone has them, too.
    #[command(after_help = "Examples:
  kubectl nodewright trace worker-58vxm-nz7jc
  kubectl nodewright trace node/worker-58vxm-nz7jc --jaeger=http://localhost:16686
  kubectl nodewright trace worker-58vxm-gone1 --jaeger=http://localhost:16686 --since=24h")]
    Trace {
        /// Machine, or node/NAME.
        #[arg(value_parser = machine_target)]
        machine: Target,
        /// Where Jaeger's query service listens, such as `http://localhost:16686`.
        #[arg(long, value_name = "URL")]
        jaeger: Option<String>,
        /// How long ago the traces of a machine that is gone may have begun, at most.
        #[arg(long, value_name = "DURATION", default_value = "168h", value_parser = duration)]
        since: Duration,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Follow and change rollouts of a MachineDeployment, with the words and exit codes of kubectl rollout.
    #[command(
        after_help = "Examples:
  kubectl nodewright rollout status worker --timeout=30m
  kubectl nodewright rollout history worker --revision=2
  kubectl nodewright rollout undo worker --to-revision=2 --dry-run",
        subcommand
    )]
    Rollout(RolloutCommand),
    /// Print what would be done, by the decisions of the manager. Nothing is written.
    ///
    /// With a file: what an apply of it would create, replace and delete. The API server says by a dry run what the objects
    /// would be, so that it needs the right to patch them, and defaults and webhooks have their say.
    #[command(after_help = "Examples:
  kubectl nodewright plan fleet.yaml
  kustomize build overlays/production | kubectl nodewright plan - --field-manager=kustomize-controller --force-conflicts
  kubectl nodewright plan rollout worker --creation-takes=4m
  kubectl nodewright plan drain worker-58vxm-nz7jc
  kubectl nodewright plan pool worker")]
    Plan(PlanArguments),
    /// Keep a machine for diagnosis once it has failed, by the annotation node.machine.sapcloud.io/preserve.
    #[command(after_help = "Examples:
  kubectl nodewright preserve worker-58vxm-nz7jc
  kubectl nodewright preserve node/worker-58vxm-nz7jc --now
  kubectl nodewright release worker-58vxm-nz7jc")]
    Preserve {
        /// Machine, or node/NAME.
        #[arg(value_parser = machine_target)]
        machine: Target,
        /// Keep it at once, in any phase.
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        dry: Dry,
    },
    /// End the preservation of a machine. One that has failed is replaced then.
    Release {
        /// Machine, or node/NAME.
        #[arg(value_parser = machine_target)]
        machine: Target,
        #[command(flatten)]
        dry: Dry,
    },
    /// Delete a machine, which its set replaces. Its node is drained first.
    #[command(after_help = "Examples:
  kubectl nodewright plan drain machine/worker-58vxm-nz7jc
  kubectl nodewright replace worker-58vxm-nz7jc --dry-run
  kubectl nodewright replace node/worker-58vxm-nz7jc")]
    Replace {
        /// Machine, or node/NAME.
        #[arg(value_parser = machine_target)]
        machine: Target,
        /// Without a drain, and without waiting for anything in the cluster of the node (label force-deletion).
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        dry: Dry,
    },
    /// Approve what waits for a user: the update in place of a node, or a pool whose target would lose much.
    #[command(after_help = "Examples:
  kubectl nodewright approve node/worker-58vxm-nz7jc
  kubectl nodewright approve machineconfigpool/worker --render=rendered-worker-5d41402abc")]
    Approve {
        /// node/NAME: it is updated in place next. machineconfigpool/NAME: it may take the MachineConfig of --render.
        object: Target,
        /// Name of the rendered MachineConfig that is accepted.
        #[arg(long, value_name = "NAME")]
        render: Option<String>,
        #[command(flatten)]
        dry: Dry,
    },
    /// Write an archive for a bug report: objects, events, flags and metrics of the manager, versions. Without secrets.
    ///
    /// Secrets are never read. Values in `providerSpec`, in specs of node configuration, and in annotations and labels of other
    /// domains are removed, also from messages that quote them. Look through the archive before you publish it.
    #[command(after_help = "Examples:
  kubectl nodewright report
  kubectl nodewright report -A --filename=- | tar tv")]
    Report {
        /// File to write, which must not exist; - for standard output. [default: nodewright-report-TIME.tar]
        #[arg(short = 'f', long = "filename", value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print the completion script of a shell for kubectl-nodewright, or, with kubectl, the program by which kubectl completes.
    #[command(after_help = "Examples:
  kubectl nodewright completion kubectl > ~/.local/bin/kubectl_complete-nodewright
  chmod +x ~/.local/bin/kubectl_complete-nodewright
  source <(kubectl-nodewright completion bash)")]
    Completion {
        /// bash, zsh, fish, elvish, powershell, or kubectl.
        shell: String,
    },
    /// Answers kubectl's questions for completions.
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Dry {
    /// Let the API server check the change, without making it: the same as server. [possible values: none, server]
    #[arg(long = "dry-run", value_name = "WHERE", value_parser = dry_run, action = clap::ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "none", default_missing_value = "server", hide_default_value = true)]
    pub(crate) run: bool,
}

#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct PlanArguments {
    /// File with MachineDeployments, MachineClasses, MachineConfigs and MachineConfigPools in YAML or JSON; - for standard input.
    #[arg(required = true)]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) apply: Apply,
    #[command(flatten)]
    pub(crate) takes: Takes,
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Format>,
    #[command(subcommand)]
    pub(crate) command: Option<PlanCommand>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Print which machines of a MachineDeployment would be created and deleted, in which order, and how long that takes.
    Rollout {
        #[arg(value_parser = deployment_name)]
        name: String,
        #[command(flatten)]
        takes: Takes,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Print which pods of a node would leave if it were drained, in which turns, and what would hold them back.
    Drain {
        /// Node, or machine/NAME.
        #[arg(value_parser = node_target)]
        node: Target,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Print which nodes of a pool would move to its target, in which rounds. `nodewright plan pool` knows files and costs, too.
    Pool {
        /// Name of the MachineConfigPool.
        name: String,
        /// How long an update of a node takes: the drain, and the program on the node. No object remembers it. [default: 10m]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        update_takes: Option<Duration>,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Wait until a rollout has ended. Exits with 1 if its progress deadline is exceeded. What is awaited is on standard error.
    Status {
        #[arg(value_parser = deployment_name)]
        name: String,
        /// Wait for the end.
        #[arg(short, long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        watch: bool,
        /// Exit with 1 if another revision runs. 0: any.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        revision: i64,
        /// How long to wait; 0s: for ever.
        #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = duration)]
        timeout: Duration,
    },
    /// List the revisions, or print the template of one.
    History {
        #[arg(value_parser = deployment_name)]
        name: String,
        /// Print the template of this revision.
        #[arg(long, default_value_t = 0, value_name = "NUMBER")]
        revision: i64,
        #[arg(short, long, value_enum)]
        output: Option<Format>,
    },
    /// Restore the template of a former revision.
    Undo {
        #[arg(value_parser = deployment_name)]
        name: String,
        /// 0: the one before the newest.
        #[arg(long, default_value_t = 0, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
        to_revision: i64,
        /// Print the template that would be restored.
        #[arg(long)]
        show: bool,
        #[command(flatten)]
        dry: Dry,
    },
    /// Pause: no machine is replaced for another template. Scaling continues.
    Pause(Named),
    /// Resume a paused rollout.
    Resume(Named),
    /// Replace all machines within the budget, by an annotation of the template.
    Restart(Named),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Named {
    /// Name of the MachineDeployment.
    #[arg(value_parser = deployment_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) dry: Dry,
}

/// The shell of a completion script.
pub(crate) fn shell(text: &str) -> Result<Shell, String> {
    text.parse()
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
    fn flags_stand_before_and_behind_commands() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' '));
        let parsed = parse("kubectl-nodewright -n shoot why mc/a --context c").unwrap();
        assert_eq!(
            (parsed.cluster.namespace.as_deref(), parsed.cluster.context.as_deref()),
            (Some("shoot"), Some("c"))
        );
        let watch = |line: &str| match parse(line).unwrap().command {
            Command::Rollout(RolloutCommand::Status { watch, timeout, .. }) => (watch, timeout.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(watch("kubectl-nodewright rollout status mcd/a"), (true, 0));
        assert_eq!(watch("kubectl-nodewright rollout status a --watch=false --timeout=2m"), (false, 120));
        assert_eq!(watch("kubectl-nodewright rollout status a -w=false --timeout 5"), (false, 5));
        let plan = |line: &str| match parse(line).unwrap().command {
            Command::Plan(PlanArguments { file, command, .. }) => (file, command.is_some()),
            other => panic!("{other:?}"),
        };
        assert_eq!(plan("kubectl-nodewright plan fleet.yaml --creation-takes=4m"), (Some("fleet.yaml".into()), false));
        assert_eq!(plan("kubectl-nodewright plan -"), (Some("-".into()), false));
        assert_eq!(plan("kubectl-nodewright plan rollout mcd/a --deletion-takes 90s"), (None, true));
        let dry = |line: &str| match parse(line).unwrap().command {
            Command::Release { dry, .. } => dry.run,
            other => panic!("{other:?}"),
        };
        for (flag, expected) in
            [("", false), (" --dry-run", true), (" --dry-run=server", true), (" --dry-run=none", false)]
        {
            assert_eq!(dry(&format!("kubectl-nodewright release a{flag}")), expected, "{flag}");
        }
        for wrong in [
            "release a --dry-run=client",
            "plan",
            "plan a.yaml pool b",
            "plan rollout mc/a",
            "plan rollout a --creation-takes=-1m",
            "why a",
            "why pod/a",
            "rollout undo a --to-revision=-1",
            "rollout pause mc/a",
            "tree -A -n a",
        ] {
            assert!(parse(&format!("kubectl-nodewright {wrong}")).is_err(), "{wrong}");
        }
    }
}
