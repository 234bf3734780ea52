//! `nodewright-bench hostile`: attacks by clients, users and clouds on a devcluster, one after the other.
//!
//! All attacks use the same devcluster with three running machines, except those on installations, which have control planes of their
//! own. Each prints one line with what was measured. After each attack the manager must be the same process, answer `/healthz`, and
//! have all its machines running.

mod connections;
mod input;
mod objects;
mod ownership;
mod rendering;
mod restore;
mod reviews;
mod statuses;
mod target;
mod time;
mod two_managers;

use std::time::Instant;

use nodewright_e2e_lab::{
    devcluster::{DevclusterOptions, etcd_restore, installation::attacks},
    process::command::Shutdown,
};
use nodewright_serving::raise_open_files;

use self::target::Target;
use crate::{error::BenchError, measure::print};

/// The result of an attack: the measured values. `Err` means harm.
type Measured = Result<String, String>;

/// Attack a devcluster through its ports, objects and cloud. Fails if an attack does harm.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostileArguments {
    /// Run only the attacks with one of these texts in their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Additional flags for the manager
    #[arg(last = true)]
    manager_flags: Vec<String>,
}

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    IdleConnections,
    BadInput,
    LargeReviews,
    TraceContext,
    Secrets,
    Percentages,
    MadeUpOwners,
    LargeStatuses,
    Clock,
    ShortTimeouts,
    Rendering,
    TwoManagers,
    Restore,
    EtcdRestore,
    CopiedSet,
    EditedLedger,
    FinalizersRemoved,
    Uninstall,
    Overlays,
    TokenSecrets,
}

impl Attack {
    const ALL: &'static [Self] = &[
        Self::IdleConnections,
        Self::BadInput,
        Self::LargeReviews,
        Self::TraceContext,
        Self::Secrets,
        Self::Percentages,
        Self::MadeUpOwners,
        Self::LargeStatuses,
        Self::Clock,
        Self::ShortTimeouts,
        Self::Rendering,
        Self::TwoManagers,
        Self::Restore,
        Self::EtcdRestore,
        Self::CopiedSet,
        Self::EditedLedger,
        Self::FinalizersRemoved,
        Self::Uninstall,
        Self::Overlays,
        Self::TokenSecrets,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::IdleConnections => "idle-connections",
            Self::BadInput => "bad-input",
            Self::LargeReviews => "large-reviews",
            Self::TraceContext => "trace-context",
            Self::Secrets => "secrets",
            Self::Percentages => "percentages",
            Self::MadeUpOwners => "made-up-owners",
            Self::LargeStatuses => "large-statuses",
            Self::Clock => "clock",
            Self::ShortTimeouts => "short-timeouts",
            Self::Rendering => "rendering",
            Self::TwoManagers => "two-managers",
            Self::Restore => "restore",
            Self::EtcdRestore => "etcd-restore",
            Self::CopiedSet => "copied-set",
            Self::EditedLedger => "edited-ledger",
            Self::FinalizersRemoved => "finalizers-removed",
            Self::Uninstall => "uninstall",
            Self::Overlays => "overlays",
            Self::TokenSecrets => "token-secrets",
        }
    }

    async fn run(self, target: &mut Target) -> Measured {
        match self {
            Self::IdleConnections => connections::idle(target).await,
            Self::BadInput => input::bad(target).await,
            Self::LargeReviews => reviews::large(target).await,
            Self::TraceContext => objects::trace_context(target).await,
            Self::Secrets => objects::secrets(target).await,
            Self::Percentages => objects::percentages(target).await,
            Self::MadeUpOwners => objects::made_up_owners(target).await,
            Self::LargeStatuses => statuses::large(target).await,
            Self::Clock => time::clock_ahead(target).await,
            Self::ShortTimeouts => time::short_timeouts(target).await,
            Self::Rendering => rendering::starving(target).await,
            Self::TwoManagers => two_managers::unelected(target).await,
            Self::Restore => restore::undone_generation(target).await,
            Self::EtcdRestore => Box::pin(etcd_restore::attack()).await,
            Self::CopiedSet => ownership::copied_set(target).await,
            Self::EditedLedger => ownership::edited_ledger(target).await,
            Self::FinalizersRemoved => ownership::finalizers_removed().await,
            Self::Uninstall => Box::pin(attacks::uninstall()).await,
            Self::Overlays => Box::pin(attacks::overlays()).await,
            Self::TokenSecrets => Box::pin(attacks::token_secrets()).await,
        }
    }
}

/// Runs the command. Fails if an attack did harm.
pub(crate) async fn run(arguments: HostileArguments) -> Result<(), BenchError> {
    let stop = Shutdown::listen()?.graceful;
    stop.run_until_cancelled(Box::pin(attack(arguments))).await.unwrap_or(Ok(()))
}

async fn attack(arguments: HostileArguments) -> Result<(), BenchError> {
    raise_open_files()
        .map_err(|error| BenchError::Failed(format!("failed to raise the limit of open files: {error}")))?;
    let is_chosen = |attack: &Attack| {
        arguments.only.is_empty() || arguments.only.iter().any(|part| attack.name().contains(part.as_str()))
    };
    let chosen: Vec<_> = Attack::ALL.iter().copied().filter(is_chosen).collect();
    // Short retry periods, so that an attack does not wait for retries of the one before.
    let flags = ["--provider-short-retry=1s", "--provider-medium-retry=5s"].map(str::to_owned);
    let options = DevclusterOptions {
        manager_flags: [&flags, &arguments.manager_flags[..]].concat(),
        ..DevclusterOptions::default()
    };
    let mut target = Target::start(&options).await?;
    let mut harmed = Vec::new();
    for attack in &chosen {
        let begun = Instant::now();
        let measured = attack.run(&mut target).await;
        // Lasting harm is attributed to this attack.
        let after = target.check().await;
        let seconds = begun.elapsed().as_secs();
        let (verdict, text) = match (measured, after) {
            (Ok(text), Ok(())) => ("ok", text),
            (Err(text), Ok(())) => ("HARM", text),
            (Ok(text) | Err(text), Err(lasting)) => ("HARM", format!("{text}; afterwards {lasting}")),
        };
        print(&format!("{verdict:<5}{:<18}{seconds:>4} s  {text}", attack.name()))?;
        if verdict != "ok" {
            harmed.push(attack.name());
        }
    }
    let tail = target.log_tail();
    target.stop().await?;
    if harmed.is_empty() {
        return print(&format!("{} attacks, no harm", chosen.len()));
    }
    eprintln!("the last lines of the manager's log:\n{tail}");
    Err(BenchError::Failed(format!("{} of {} attacks did harm: {}", harmed.len(), chosen.len(), harmed.join(", "))))
}
