//! `nodewright render`: what the pools of a folder would run, without a cluster.
//!
//! ```text
//! files ──▶ folder: objects by kind ──▶ templates ──▶ KubeletConfigs ──▶ pools ──▶ nodewright_render ──▶ report
//!                                                                                    YAML, Ignition, provenance, differences
//! ```

pub(crate) mod folder;
pub(crate) mod kubelet;
pub(crate) mod report;
pub(crate) mod templates;

use std::{fmt, path::PathBuf, process::ExitCode};

use clap::Args;
use nodewright_api::{
    machine_config::{MachineConfig, MachineConfigPool},
    selector,
    validation::Validate,
};
use nodewright_render::{Input, LARGEST, Options, RenderError, Rendered, check_image_owner, render};

use crate::extensions::ExtensionFlags;
use folder::{Folder, Loaded};

/// What to do with it, and a few examples.
const EXAMPLES: &str = "\
The name of a configuration follows from its content. If `nodewright render` prints another name than before, each node of the
pool gets a new configuration, and perhaps reboots: --diff shows what differs and what it costs.

Examples:
  # What would the pools of this folder run?
  nodewright render -f machine-configs/

  # The same for a cluster
  kubectl get machineconfigs,machineconfigpools,controllerconfigs -o yaml | nodewright render -f - --pool worker

  # With what the controller generates of templates
  nodewright render -f machine-configs/ --templates templates/

  # Who has set this file, and over whom?
  nodewright render -f machine-configs/ --pool worker --explain 'spec.config.storage.files[/etc/chrony.conf]'

  # What would a change cost each node?
  kubectl get machineconfig rendered-worker-0123… -o yaml >now.yaml
  nodewright render -f machine-configs/ --pool worker --diff now.yaml

  # The config for a node that boots with Ignition
  nodewright render -f machine-configs/ --pool worker -o ignition >worker.ign

Exit codes: 0 if all is rendered; 1 for an error, with a line for each that names file, object and field; 2 for wrong flags.
Unknown fields of Ignition configs and of kubelets are warnings.";

#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RenderFlags {
    /// File, or folder whose files *.yaml, *.yml and *.json are read; `-` for standard input. May be repeated. Only objects
    /// of machineconfiguration.openshift.io/v1 count, and what --templates asks for.
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Folder of the templates of which the manager generates MachineConfigs (`--machine-config-templates`). What a cluster has
    /// generated before is left out of the files. Templates that print the pull secret need its Secret among the files, which
    /// spec.pullSecret of the ControllerConfig names. Ciphers are those of the object `cluster` of OpenShift's kind `APIServer`, if
    /// it is there.
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,
    /// Pool to render. [default: all]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Form of the output: MachineConfigs, or the Ignition config of one pool alone.
    #[arg(short, long, value_enum, default_value_t = Output::Yaml)]
    output: Output,
    /// Print who has set each key at and below a path of one pool, and over whom. Elements of lists have their keys:
    /// `spec.config.storage.files[/etc/a].mode`. `spec` is all.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["output", "diff"])]
    explain: Option<String>,
    /// Print what differs from the MachineConfig in this file, and what the change costs each node of one pool. It is an
    /// error if running nodes cannot be changed.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    diff: Option<PathBuf>,
    /// With `-o ignition`: print the config although the pool has more than it can express, such as kernel arguments.
    #[arg(long)]
    allow_incomplete: bool,
    #[command(flatten)]
    extensions: ExtensionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Rendered MachineConfigs, as they would be in the cluster.
    Yaml,
    /// The Ignition config, as JSON.
    Ignition,
}

/// Errors for users, a line each.
pub(crate) type Checked<T> = Result<T, Vec<String>>;

/// Renders, prints, and returns the exit code.
pub(crate) fn run(flags: &RenderFlags) -> ExitCode {
    finish(output(flags))
}

/// Prints a text, or errors; returns the exit code.
pub(crate) fn finish(output: Checked<String>) -> ExitCode {
    match output {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(errors) => {
            for error in errors {
                eprintln!("error: {}", error.replace('\n', " "));
            }
            ExitCode::FAILURE
        }
    }
}

fn output(flags: &RenderFlags) -> Checked<String> {
    let mut folder = Folder::of(&folder::read(&flags.files)?)?;
    if let Some(templates) = &flags.templates {
        templates::generate(&mut folder, templates)?;
    }
    kubelet::generate(&mut folder)?;
    let pools = folder.pools(flags.pool.as_deref())?;
    let rendered = render_all(&folder, &pools, flags.extensions.allowed().as_deref())?;
    if flags.output == Output::Yaml && flags.explain.is_none() && flags.diff.is_none() {
        return report::yaml(pools.iter().map(|pool| pool.name.as_str()).zip(&rendered));
    }
    let ([pool], [rendered]) = (pools.as_slice(), rendered.as_slice()) else {
        let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
        return Err(vec![format!("there are several pools, choose one with --pool: {}", names.join(", "))]);
    };
    match (&flags.explain, &flags.diff) {
        (Some(path), _) => report::explain(path, rendered),
        (_, Some(file)) => report::diff(&folder::one::<MachineConfig>(file)?, &pool.name, rendered),
        _ => report::ignition(&pool.name, rendered, flags.allow_incomplete),
    }
}

/// Renders all pools, so that all errors are shown at once. Prints warnings; those of a MachineConfig of two pools once.
pub(crate) fn render_all(
    folder: &Folder,
    pools: &[&Loaded<MachineConfigPool>],
    extensions: Option<&[String]>,
) -> Checked<Vec<Rendered>> {
    let (mut rendered, mut errors, mut warned) = (Vec::new(), Vec::new(), kubelet::unknown_fields(folder));
    for pool in pools {
        match render_pool(folder, pool, extensions) {
            Ok(one) => {
                warned.extend(warnings(folder, &one));
                rendered.push(one);
            }
            Err(found) => errors.extend(found.into_iter().filter(|error| !errors.contains(error)).collect::<Vec<_>>()),
        }
    }
    for warning in warned {
        eprintln!("warning: {warning}");
    }
    if errors.is_empty() { Ok(rendered) } else { Err(errors) }
}

/// What has no effect on a pool, though its author may think so.
fn warnings(folder: &Folder, rendered: &Rendered) -> Vec<String> {
    let unused = rendered.unused.iter().map(|(name, path)| {
        let file = folder.machine_configs().find(|loaded| loaded.name == *name).map_or("", |loaded| &loaded.file);
        format!(
            "{file}: MachineConfig {name}: {path}: is no field of this version of Ignition configs, and has no effect"
        )
    });
    unused.collect()
}

fn render_pool(folder: &Folder, pool: &Loaded<MachineConfigPool>, extensions: Option<&[String]>) -> Checked<Rendered> {
    let machine_configs = selected(folder, pool)?;
    let inputs: Vec<_> = machine_configs.iter().map(|loaded| Input::from(&loaded.object)).collect();
    check_image_owner(&pool.object.spec, inputs.iter().copied())
        .map_err(|error| vec![format!("{}: MachineConfigPool {}: {error}", pool.file, pool.name)])?;
    let options = Options::of(folder.controller_config()?.map(|loaded| &loaded.object));
    let options = Options { extensions: extensions.map(<[String]>::to_vec), ..options };
    let file_of =
        |name: &str| machine_configs.iter().find(|loaded| loaded.name == name).map_or("", |loaded| &loaded.file);
    let rendered = render(&inputs, &options).map_err(|errors| {
        let line = |error: &RenderError| match &error.machine_config {
            Some(name) => format!("{}: {error}", file_of(name)),
            None => format!("{}: MachineConfigPool {}: {error}", pool.file, pool.name),
        };
        errors.iter().map(line).collect::<Vec<_>>()
    })?;
    let size = serde_json::to_string(&rendered.spec).map_or(usize::MAX, |text| text.len());
    if size > LARGEST {
        let text = format!("it has {size} bytes, and an API server takes at most {LARGEST}: make files smaller");
        return Err(vec![format!("{}: MachineConfigPool {}: {text}", pool.file, pool.name)]);
    }
    Ok(rendered)
}

/// The MachineConfigs that a pool selects.
fn selected<'a>(folder: &'a Folder, pool: &Loaded<MachineConfigPool>) -> Checked<Vec<&'a Loaded<MachineConfig>>> {
    let selector = pool.object.spec.machine_config_selector.as_ref();
    let line = |error: &dyn fmt::Display| format!("{}: MachineConfigPool {}: {error}", pool.file, pool.name);
    let errors = pool.object.validate();
    if !errors.is_empty() {
        return Err(errors.iter().map(|error| line(error)).collect());
    }
    // A cluster that is read as files has rendered ones as well. They have no role, which a selector may ask for.
    let matches = |loaded: &&Loaded<MachineConfig>| {
        !loaded.object.is_rendered() && selector::matches(selector, loaded.object.metadata.labels.as_ref())
    };
    let machine_configs: Vec<_> = folder.machine_configs().filter(matches).collect();
    if machine_configs.is_empty() {
        return Err(vec![line(&"spec.machineConfigSelector: Invalid value: no MachineConfig has these labels")]);
    }
    Ok(machine_configs)
}
