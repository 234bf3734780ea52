//! What is done for the agent of a Node.

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    machine_config::{DrainVerb, LAST_APPLIED_DRAIN},
    stored::{CONFIG_DRAIN, ConfigDrain, DrainRequest},
};
use nodewright_runtime::object::annotation;

use super::{
    memory::{Context, Note},
    snapshot::{Request, recorded_since},
};
use crate::shared::{
    drain::{Drain, DrainProgress, Owners, Rules},
    node::Node,
    node_agent::is_cordoned_for_agent,
};

/// The pause after a refused eviction, as in `kubectl drain`.
const RETRY: SignedDuration = SignedDuration::from_secs(5);
/// How long the next Pod with volumes waits for the detachment of the last one's, and for their attachment elsewhere: as for the Nodes
/// of Machines by default.
const DETACH_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);
const REATTACH_TIMEOUT: SignedDuration = SignedDuration::from_secs(90);

#[derive(Debug)]
pub(super) enum Decision {
    /// The Node is cordoned, and this is recorded.
    Cordon(ConfigDrain),
    /// Its Pods leave, or are gone.
    Drain(Box<Draining>),
    /// The agent may go on. `opens`: and the Node is uncordoned, because it was cordoned for the agent.
    Uncordon { opens: bool },
    /// The request is none that agents make.
    Reject,
}

#[derive(Debug)]
pub(super) struct Draining {
    /// When it began.
    pub(super) since: Timestamp,
    pub(super) progress: DrainProgress,
    /// When it will be forced, if it will.
    pub(super) forced_at: Option<Timestamp>,
}

pub(super) fn decide(context: &Context<'_>, node: &Node, request: &Request) -> Decision {
    match request.verb {
        None => Decision::Reject,
        Some(DrainVerb::Uncordon) => Decision::Uncordon { opens: node.is_cordoned() && is_opened(node) },
        Some(DrainVerb::Drain) => match begun(node, &request.asked, context.now).filter(|_| node.is_cordoned()) {
            None => Decision::Cordon(record(node, &request.asked, context.now)),
            Some(since) => Decision::Drain(Box::new(drain(context, node, request, since))),
        },
    }
}

/// When the drain for this request began. One that began in the future begins now: the clock was set back.
fn begun(node: &Node, asked: &str, now: Timestamp) -> Option<Timestamp> {
    recorded_since(node, asked).filter(|since| *since <= now)
}

/// Whether the agent's uncordon opens the Node. Without a record, and before the first drain, machine-config-operator opens it.
fn is_opened(node: &Node) -> bool {
    let is_known = CONFIG_DRAIN.of(node).is_some() || annotation(node, LAST_APPLIED_DRAIN).is_some();
    !is_known || is_cordoned_for_agent(node)
}

/// The record of a drain that begins or goes on. Who has closed the Node is decided when the first of several drains in a row begins.
fn record(node: &Node, asked: &str, now: Timestamp) -> ConfigDrain {
    let since = begun(node, asked, now).unwrap_or(now);
    let drain = DrainRequest { asked: asked.to_owned(), since };
    let is_ours = match CONFIG_DRAIN.of(node) {
        // Since it is open now, the user who had cordoned it has uncordoned it.
        _ if !node.is_cordoned() => true,
        Some(ConfigDrain::Closed(_) | ConfigDrain::Open) => false,
        Some(ConfigDrain::Cordoned(_)) | None => is_cordoned_for_agent(node),
    };
    if is_ours { ConfigDrain::Cordoned(drain) } else { ConfigDrain::Closed(drain) }
}

fn drain(context: &Context<'_>, node: &Node, request: &Request, since: Timestamp) -> Draining {
    let deadline = request.timeout.and_then(|timeout| since.checked_add(timeout).ok());
    let (is_over, forced_at) = (deadline.is_some_and(|at| at <= context.now), deadline.filter(|at| *at > context.now));
    let of_drain = |(note, since): (&Note, &Timestamp)| match note {
        Note::Drain(of_drain) => Some((of_drain.clone(), *since)),
        _ => None,
    };
    let drain = Drain {
        node,
        view: &request.view,
        owners: Owners::Unknown,
        rules: Rules {
            force: is_over.then_some("the drain timeout of the pool is over"),
            // A Pod whose eviction is refused is never deleted for that.
            grace_period: SignedDuration::MAX,
            retry: RETRY,
            detach_timeout: DETACH_TIMEOUT,
            reattach_timeout: REATTACH_TIMEOUT,
        },
        refusals: context.refusals,
        notes: context.notes.iter().filter_map(of_drain).collect(),
        traces: context.traces,
        now: context.now,
    };
    Draining { since, progress: drain.evictions(), forced_at }
}
