//! The binary `kubectl-nodewright`, which kubectl runs as `kubectl nodewright`.
//!
//! ```text
//! arguments ──▶ client: paged lists, timeouts ──▶ read: snapshot ──▶ tree, why ──▶ output
//!                       ▲                                  └──────▶ redact ──▶ report
//!                       ├── patches ── rollout, machines
//!                       └── port-forwards ── port: metrics ──▶ report
//! ```
//!
//! # Guarantees
//! * No Secret is ever requested.
//! * The user's credentials are sent to API servers and nobody else.
//! * A command writes the fields that it names, of the object that it has read, and no others.

mod arguments;
mod client;
mod completion;
mod fault;
mod machines;
mod metrics;
mod names;
mod output;
mod plan;
mod port;
mod read;
mod redact;
mod report;
mod resources;
mod rollout;
mod snapshot;
#[cfg(test)]
mod tests;
mod trace;
mod tree;
mod why;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use jiff::Timestamp;
use nodewright_driver::panics;
use serde_json::json;

use crate::{
    arguments::{Arguments, ClusterFlags, Command, PlanArguments, PlanCommand, RolloutCommand},
    client::{Cluster, Connection},
    fault::{Outcome, fail},
    names::{Target, TargetKind, name_of},
    output::{Colours, Format, document, print},
    read::Scope,
    trace::Jaeger,
};

/// How long completions may take: somebody waits at the keyboard.
const COMPLETION: Duration = Duration::from_secs(3);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    panics::withhold_messages();
    let Arguments { cluster, command } = Arguments::parse();
    match run(&cluster, command).await {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

/// The clusters and the namespace that the flags name.
async fn scope(flags: &ClusterFlags) -> Outcome<Scope> {
    let timeout = flags.request_timeout;
    let connection = Connection { kubeconfig: flags.kubeconfig.clone(), context: flags.context.clone(), timeout };
    let control = Cluster::connect(&connection).await?;
    let target = match (&flags.target_kubeconfig, &flags.target_context) {
        (None, None) => control.clone(),
        (file, context) => {
            let kubeconfig = file.clone().or_else(|| flags.kubeconfig.clone());
            Cluster::connect(&Connection { kubeconfig, context: context.clone(), timeout }).await?
        }
    };
    let own = flags.namespace.clone().unwrap_or_else(|| control.namespace.clone());
    let namespace = Some(own).filter(|_| !flags.all_namespaces);
    Ok(Scope { control, target, namespace, is_namespace_given: flags.namespace.is_some() })
}

/// Names of objects are unique within a namespace.
fn in_one_namespace(flags: &ClusterFlags) -> Outcome<()> {
    if flags.all_namespaces { fail("--all-namespaces is for tree and report: name a --namespace") } else { Ok(()) }
}

async fn run(flags: &ClusterFlags, command: Command) -> Outcome<String> {
    match command {
        Command::Completion { shell } => completion::script(&shell),
        Command::Complete { words } => {
            let flags = ClusterFlags { request_timeout: COMPLETION, ..flags.clone() };
            let scope_of = async |namespace: Option<String>| {
                let namespace = namespace.or_else(|| flags.namespace.clone());
                scope(&ClusterFlags { namespace, ..flags.clone() }).await
            };
            Ok(completion::answer(&words, scope_of).await)
        }
        Command::Tree { name, output } => tree::run(&scope(flags).await?, name, output).await,
        Command::Report { file } => report(&scope(flags).await?, file).await,
        other => {
            in_one_namespace(flags)?;
            run_in_namespace(&scope(flags).await?, other).await
        }
    }
}

async fn run_in_namespace(scope: &Scope, command: Command) -> Outcome<String> {
    match command {
        Command::Why { object, output } => {
            let explanation = why::explain(&scope.snapshot().await?, &object)?;
            match output {
                Some(format @ (Format::Json | Format::Yaml)) => document(&explanation, format),
                _ => Ok(explanation.text(Colours::detect())),
            }
        }
        Command::Trace { machine, jaeger, since, output } => {
            let jaeger = jaeger.map(|url| Jaeger::at(&url, scope.control.timeout)).transpose()?;
            trace(scope, &machine, (jaeger, since), output).await
        }
        Command::Rollout(command) => roll(scope, command).await,
        Command::Plan(arguments) => plan(scope, arguments).await,
        Command::Preserve { machine, now, dry } => machines::preserve(scope, &machine, now, dry.run).await,
        Command::Release { machine, dry } => machines::release(scope, &machine, dry.run).await,
        Command::Replace { machine, force, dry } => machines::replace(scope, &machine, force, dry.run).await,
        Command::Approve { object, render, dry } => machines::approve(scope, &object, render.as_deref(), dry.run).await,
        Command::Tree { .. } | Command::Report { .. } | Command::Completion { .. } | Command::Complete { .. } => {
            Ok(String::new())
        }
    }
}

async fn plan(scope: &Scope, arguments: PlanArguments) -> Outcome<String> {
    let PlanArguments { file, apply, takes, output, command } = arguments;
    match command {
        Some(PlanCommand::Drain { node, output }) => plan::drain(scope, &node, output).await,
        Some(PlanCommand::Pool { name, update_takes, output }) => {
            plan::pool(scope, &pool_name(&name)?, update_takes, output).await
        }
        Some(PlanCommand::Rollout { name, takes, output }) => plan::rollout(scope, &name, &takes, output).await,
        None => plan::file(scope, &file.unwrap_or_default(), (&apply, &takes), output).await,
    }
}

async fn trace(
    scope: &Scope,
    target: &Target,
    (jaeger, since): (Option<Jaeger>, Duration),
    format: Option<Format>,
) -> Outcome<String> {
    let snapshot = scope.snapshot().await?;
    let machine = match target.kind {
        TargetKind::Machine => snapshot.machine(&target.name),
        TargetKind::Node => {
            snapshot.machine_of_node(&target.name).map_or_else(|| fail(format!("{target} has no machine")), Ok)
        }
        _ => return fail(format!("{target} has no trace of its own: name a machine, or its node (node/NAME)")),
    };
    let mut life = match (machine, &jaeger) {
        (Ok(machine), _) => Some(trace::life(&snapshot, machine)),
        (Err(_), Some(_)) if target.kind == TargetKind::Machine => None,
        (Err(fault), _) => return Err(fault),
    };
    let mut spans = vec![];
    if let Some(jaeger) = &jaeger {
        let name = life.as_ref().map_or(target.name.as_str(), trace::Life::name);
        let namespace = scope.namespace.as_deref().unwrap_or_default();
        spans = match trace::traced(jaeger, life.as_ref(), (namespace, name), since).await {
            // The life follows from the objects.
            Err(fault) if life.is_some() => {
                eprintln!("note: the spans are not shown: {fault}");
                return without_spans(life.as_ref(), snapshot.now, format);
            }
            spans => spans?,
        };
    }
    if let Some(format @ (Format::Json | Format::Yaml)) = format {
        let Some(life) = &mut life else {
            return document(&json!({"machine": target.name, "spans": spans}), format);
        };
        life.spans = spans;
        return document(life, format);
    }
    let life = life.map(|life| life.text(snapshot.now));
    let spans = jaeger.map(|_| trace::text(&spans, format == Some(Format::Wide)));
    Ok(life.into_iter().chain(spans).collect::<Vec<_>>().join("\n"))
}

/// A life without the spans of a trace backend.
fn without_spans(life: Option<&trace::Life>, now: Timestamp, format: Option<Format>) -> Outcome<String> {
    match format {
        Some(format @ (Format::Json | Format::Yaml)) => document(&life, format),
        _ => Ok(life.map_or_else(String::new, |life| life.text(now))),
    }
}

fn pool_name(text: &str) -> Outcome<String> {
    name_of(TargetKind::Pool, text).or_else(fail)
}

async fn roll(scope: &Scope, command: RolloutCommand) -> Outcome<String> {
    match command {
        RolloutCommand::Status { name, watch, revision, timeout } => {
            rollout::status(scope, &name, (watch, revision, Some(timeout))).await?;
            Ok(String::new())
        }
        RolloutCommand::History { name, revision, output } => rollout::history(scope, &name, revision, output).await,
        RolloutCommand::Undo { name, to_revision, show, dry } => {
            rollout::undo(scope, &name, to_revision, (dry.run, show)).await
        }
        RolloutCommand::Pause(it) => rollout::pause(scope, &it.name, it.dry.run).await,
        RolloutCommand::Resume(it) => rollout::resume(scope, &it.name, it.dry.run).await,
        RolloutCommand::Restart(it) => rollout::restart(scope, &it.name, it.dry.run).await,
    }
}

async fn report(scope: &Scope, file: Option<PathBuf>) -> Outcome<String> {
    let entries = report::collect(scope).await?;
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let file = file.unwrap_or_else(|| PathBuf::from(format!("nodewright-report-{time}.tar")));
    report::write(&file, &entries)?;
    if file.as_os_str() == "-" {
        return Ok(String::new());
    }
    let listing = report::listing(&entries);
    Ok(format!("{} is written: {listing}\nLook through it before you publish it.\n", file.display()))
}
