//! What becomes of the MachineConfig of a pool.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::machine_config::MachineConfigSpec;
use nodewright_runtime::object::name;

use super::{
    call::{Generate, Outcome},
    memory::Context,
    refusal::Refusal,
    snapshot::Part,
};
use crate::shared::{
    generated::is_as_generated,
    rendering::{RenderState, render_state},
};

/// The pause after a call without a result.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

pub(super) enum Decision {
    /// It is what it has to be. The call, if what was made is still in memory.
    Keep(Option<Generate>),
    /// It becomes this, of inputs with this digest.
    Write(Arc<MachineConfigSpec>, String),
    /// Nothing can be made: what to correct.
    Refuse(Refusal),
    /// Its content is made first, now or at this time.
    Generate(Option<Generate>, Option<Timestamp>),
}

pub(super) fn decide(context: &Context<'_>, part: &Part) -> Decision {
    let call = match &part.content {
        Ok(call) => call.clone(),
        Err(refusal) => return Decision::Refuse(refusal.clone()),
    };
    let pool = name(part.pool.as_ref());
    let is_present = |digest: &str| part.existing.as_ref().is_some_and(|it| is_as_generated(it, pool, digest));
    match render_state(context, &call, |asked| asked.is_same(&call)) {
        RenderState::Later(at) => Decision::Generate(None, at),
        RenderState::Done(Outcome::Present(digest)) if is_present(digest) => Decision::Keep(None),
        // In the second case another writer has changed it.
        RenderState::Due | RenderState::Done(Outcome::Present(_)) => Decision::Generate(Some(call), None),
        RenderState::Done(Outcome::Content(_, digest)) if is_present(digest) => {
            Decision::Keep(Some(Generate { digest: Some(digest.clone()), ..call }))
        }
        RenderState::Done(Outcome::Content(spec, digest)) => Decision::Write(spec.clone(), digest.clone()),
        RenderState::Done(Outcome::Refused(text)) => Decision::Refuse(Refusal::Refused(text.clone())),
        RenderState::Done(Outcome::Failed) => {
            let ended = context.outcomes.latest().unwrap_or(context.now);
            let due = ended.checked_add(AGAIN).ok().filter(|due| *due > context.now);
            Decision::Generate(Some(call).filter(|_| due.is_none()), due)
        }
    }
}
