//! The drain of a Machine's Node: before its VM is deleted, before it is updated in place, and while the failed Machine is preserved.
//!
//! [`force_drain`](super::force_drain) decides when it is forced. Apart from that, the drain module deletes a single Pod whose eviction
//! was refused for too long ([`Rules::grace_period`]).

use jiff::{SignedDuration, Timestamp};
use nodewright_api::reasons;
use nodewright_runtime::{object::is_deleting, plan::Step};

use super::{force_drain::Limit, memory::Note, partial_plan::PartialPlan, scope::Scope, trace, volumes};
use crate::shared::{
    drain::{Blocker, Drain, DrainProgress, Rules, Wait},
    node::Node,
};

pub(super) fn drain<'a>(scope: &Scope<'a>, node: &'a Node, limit: Limit) -> Drain<'a> {
    let (machine, settings) = (scope.machine, scope.settings);
    let signed = |span| SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    let retries = machine.spec.max_evict_retries.and_then(|retries| u32::try_from(retries).ok());
    let retries = retries.unwrap_or(settings.max_evict_retries).max(1);
    let of_drain = |(note, since): (&Note, &Timestamp)| match note {
        Note::Drain(of_drain) => Some((of_drain.clone(), *since)),
        _ => None,
    };
    Drain {
        node,
        view: &scope.snapshot.drain,
        owners: volumes::owners(scope),
        rules: Rules {
            force: limit.force(scope, node),
            grace_period: signed(settings.evict_retry.saturating_mul(retries)),
            retry: signed(settings.evict_retry),
            detach_timeout: signed(settings.detach_timeout),
            reattach_timeout: signed(settings.reattach_timeout),
        },
        refusals: scope.context.refusals,
        notes: scope.context.notes.iter().filter_map(of_drain).collect(),
        // The drain of a Machine that stays belongs to no span.
        traces: scope.traces() && is_deleting(machine),
        now: scope.now(),
    }
}

/// The part of the plan that makes progress with a drain, and what it waits for unless it is over.
pub(super) fn part(scope: &Scope<'_>, progress: DrainProgress) -> (PartialPlan, Option<Wait>) {
    let mut part = PartialPlan { is_over: progress.end.is_some(), ..PartialPlan::default() };
    part.plan.spans = trace::drained(scope, &progress);
    if !progress.question.is_empty() {
        let call = Step::Call(volumes::question(scope, progress.question));
        part = part.beside("the drain waits for the provider's volumes alone", call);
    }
    part.plan.notes = progress.notes.into_iter().map(Note::Drain).collect();
    for removal in progress.removals {
        part = part.beside(removal.why, removal.step());
    }
    part = progress.watches.into_iter().fold(part, PartialPlan::scoped_watch).waking_at(progress.wake);
    let forced = progress.forced.map(|forced| scope.warning(reasons::machine::DRAIN_FORCED, forced.to_string()));
    part = part.event(forced);
    if part.is_over {
        return (part, None);
    }
    let wait = Wait::of(&progress.blockers);
    let refused = progress.blockers.first().filter(|_| matches!(wait, Wait::Refused(_)));
    (refusal_reported(scope, part, refused), Some(wait))
}

/// Reports the first eviction of a drain that is refused. The condition `Drained` names those that follow: of Pods that wait for their
/// turn, each is refused for a time, and an object may cause few events, among which is the one that says that a drain is forced.
fn refusal_reported(scope: &Scope<'_>, part: PartialPlan, refused: Option<&Blocker>) -> PartialPlan {
    let is_reported = scope.context.noted_since(&Note::EvictionRefused).is_some();
    if refused.is_none() && !is_reported {
        return part;
    }
    let warning = |refused: &Blocker| scope.warning(reasons::machine::EVICTION_REFUSED, refused.to_string());
    part.noting(Note::EvictionRefused).event(refused.filter(|_| !is_reported).map(warning))
}

/// The drain of a Node whose VM stays, which began then: what it does and waits for, or `None` if it is over.
pub(super) fn of_kept(scope: &Scope<'_>, node: &Node, since: Timestamp) -> Option<PartialPlan> {
    let limit = Limit::of_kept(scope, since);
    let progress = drain(scope, node, limit).evictions();
    let (part, wait) = part(scope, progress);
    let (reason, message) = wait?.text("PodsLeft");
    Some(part.waking_at(limit.forced_at(scope, node)).and_wait(reason, message))
}
