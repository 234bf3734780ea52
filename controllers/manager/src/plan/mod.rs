//! `nodewright plan pool`: which nodes of a pool would move, in which rounds, and what that costs each.
//!
//! ```text
//! cluster, files ──▶ overlay ──▶ render: what a controller generates ──▶ machine_config_pool::preview ──▶ costs ──▶ report
//! ```

mod cluster;
mod costs;
mod overlay;
mod report;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use nodewright_api::machine_config::API_VERSION;
use nodewright_controllers::machine_config_pool::{PoolSettings, preview};
use nodewright_render::Rendered;

use self::{cluster::ClusterFlags, report::Plan};
use crate::{
    extensions::ExtensionFlags,
    render::{
        Checked, finish,
        folder::{self, Folder},
        kubelet, render_all, templates,
    },
};

/// What it takes for granted, and a few examples.
const EXAMPLES: &str = "\
A plan takes for granted that all goes well: a node that is given the target runs it and is ready before the next round. Nodes \
that are unavailable, have failed or are about to go stay so, and count against maxUnavailable. Disruption budgets are not read.

More than 40 nodes are printed by group: those of one zone that run the same, and those that stay for the same reason. -o json has each \
node.

The command lists Nodes, MachineConfigPools, MachineConfigs, KubeletConfigs and ControllerConfigs, and writes nothing.

Examples:
  # What is left to do in the cluster as it is?
  nodewright plan pool worker

  # What would this change do, before it is applied?
  nodewright plan pool worker -f machine-configs/

  # How many rounds would it take with another maxUnavailable?
  nodewright plan pool worker -f pool.yaml -f machine-configs/ --context production

  # The nodes that would reboot
  nodewright plan pool worker -f machine-configs/ -o json | jq -r '.rounds[][] | select(.reboots).node'

Exit codes: 0 if there is a plan, also if no node moves; 1 for an error, with a line for each, also if the pool would not take \
what is in the files; 2 for wrong flags.";

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Print which nodes of a MachineConfigPool would move to its target, in which rounds, and what that costs each.
    ///
    /// With -f, for the cluster as it would be once the objects in files are applied. Costs are those of `nodewright render --diff`:
    /// `reboot` (after a drain), `drain` and what is reloaded, or `none`; `unknown` if what a node runs does not exist any more.
    Pool(PoolFlags),
}

#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PoolFlags {
    /// Name of the MachineConfigPool.
    name: String,
    /// File, or folder whose files *.yaml, *.yml and *.json are read; `-` for standard input. May be repeated. A MachineConfig,
    /// MachineConfigPool, KubeletConfig or ControllerConfig replaces that of the cluster of its name, or is added. A pool keeps its
    /// annotations, and `paused` if the file does not say.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder of the templates of which the manager generates MachineConfigs, as for `nodewright render`. Without it, those that are
    /// in the cluster count, whatever the ControllerConfig in a file is.
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// Form of the output. [default: text]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Name of the Node that the leading manager runs on, which is moved last.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(flatten)]
    extensions: ExtensionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
    Yaml,
}

/// Plans, prints, and returns the exit code.
pub(crate) async fn run(command: &PlanCommand) -> ExitCode {
    let PlanCommand::Pool(flags) = command;
    finish(output(flags).await)
}

async fn output(flags: &PoolFlags) -> Checked<String> {
    let files = folder::read(&flags.files)?;
    if !flags.files.is_empty() && !files.iter().any(|(_, object)| object["apiVersion"] == API_VERSION) {
        return Err(vec![format!("there is no object of {API_VERSION} in the files")]);
    }
    let client = flags.cluster.client().await?;
    let now = Timestamp::now();
    let objects = overlay::lay_over(cluster::objects(&client).await?, files, flags.templates.is_some(), now)?;
    let mut folder = Folder::of(&objects)?;
    let rendered = generate(&mut folder, flags)?;
    let mut objects = folder.into_objects();
    objects.nodes = cluster::nodes(&client).await?;
    let settings = PoolSettings {
        extensions: flags.extensions.allowed(),
        own_node: flags.node_name.clone(),
        ..PoolSettings::default()
    };
    let preview = preview(&objects, &flags.name, &settings, now).map_err(|error| vec![error])?;
    if let Some(why) = preview.target.held.as_ref().filter(|_| rendered.is_some()) {
        return Err(vec![format!("MachineConfigPool {}: {why}", flags.name)]);
    }
    let pool = objects.pools.iter().find(|pool| pool.metadata.name.as_deref() == Some(flags.name.as_str()));
    let costs = costs::of(&preview, &objects.machine_configs, rendered.as_ref().map(|it| &it.provenance));
    let plan = Plan { name: &flags.name, spec: pool.map(|pool| pool.spec.clone()).unwrap_or_default(), preview, costs };
    match flags.output {
        None => Ok(plan.text()),
        Some(Output::Json) => serde_json::to_string_pretty(&plan.value())
            .map(|text| format!("{text}\n"))
            .map_err(|error| vec![format!("failed to write JSON: {error}")]),
        Some(Output::Yaml) => {
            serde_saphyr::to_string(&plan.value()).map_err(|error| vec![format!("failed to write YAML: {error}")])
        }
    }
}

/// Makes what a controller would generate of changed objects, and finds what is wrong with them, file by file. What the pool renders
/// to; `None` for the cluster as it is, which the manager has generated.
fn generate(folder: &mut Folder, flags: &PoolFlags) -> Checked<Option<Rendered>> {
    let names: Vec<_> = folder.pools(None).unwrap_or_default().iter().map(|pool| pool.name.clone()).collect();
    if !names.contains(&flags.name) {
        let known =
            if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", names.join(", ")) };
        return Err(vec![format!("MachineConfigPool {}: not found: {known}", flags.name)]);
    }
    if flags.files.is_empty() && flags.templates.is_none() {
        return Ok(None);
    }
    if let Some(templates) = &flags.templates {
        templates::generate(folder, templates)?;
    }
    kubelet::generate(folder)?;
    let pools = folder.pools(Some(&flags.name))?;
    Ok(render_all(folder, &pools, flags.extensions.allowed().as_deref())?.pop())
}
