//! What is desired of a pool: what it selects, and what that renders to.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{annotations::RENDER_INPUTS, machine_config::MachineConfig};
use nodewright_runtime::{
    cache::Lookup,
    object::{annotation, controller_uid, name, uid},
    scoped_watch::ScopedWatch,
};

use super::{
    call::{Outcome, Render, Rendering as Result},
    memory::Context,
    snapshot::{Selection, Snapshot, is_as_created},
};
use crate::shared::{
    machine_config::{CachedConfig, target_ref},
    rendering::{RenderState, render_state},
};

/// The pause after a rendering without a result.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// What the pool selects, and what that renders to.
#[derive(Clone, Debug)]
pub(super) enum Rendering {
    /// The selector is empty.
    SelectsAll,
    /// Nothing has the labels.
    Empty,
    /// What may be an input cannot be read.
    Unreadable(String),
    /// It is not rendered yet; the call, if it is to be made now, or when to look again.
    Pending(Option<Render>, Option<Timestamp>),
    /// The target was rendered of the same. The call, if a rendering is still in memory.
    Settled(Option<Render>),
    /// What is desired, and the digest of its inputs.
    Done(Arc<Result>, Arc<str>),
    /// What an earlier release has rendered of the same inputs, which was the target before: its name.
    Former(String),
}

impl Rendering {
    fn of(context: &Context<'_>, snapshot: &Snapshot) -> Self {
        let inputs = match &snapshot.selection {
            Selection::All => return Self::SelectsAll,
            Selection::Unreadable(text) => return Self::Unreadable(text.clone()),
            Selection::Empty => return Self::Empty,
            Selection::Inputs(inputs) => inputs.clone(),
        };
        let pool = snapshot.pool.as_ref();
        let is_ours = |config: &&Arc<CachedConfig>| controller_uid(config.as_ref()) == Some(uid(pool));
        let present = snapshot.present.as_ref().filter(is_ours);
        let of_target: Option<Arc<str>> = present.and_then(|it| annotation(it.as_ref(), RENDER_INPUTS)).map(Into::into);
        let call = Render { pool: name(pool).into(), inputs, digest: None, of_target: of_target.clone() };
        let outcome = match render_state(context, &call, |asked| asked.inputs.is_same(&call.inputs)) {
            RenderState::Due => return Self::Pending(Some(call), None),
            RenderState::Later(at) => return Self::Pending(None, at),
            RenderState::Done(outcome) => outcome,
        };
        match outcome {
            Outcome::Settled(digest) if of_target.as_ref() == Some(digest) => Self::Settled(None),
            // The target is another one now.
            Outcome::Settled(digest) => Self::Pending(Some(Render { digest: Some(digest.clone()), ..call }), None),
            Outcome::Rendered(digest, _) if of_target.as_ref() == Some(digest) => {
                Self::Settled(Some(Render { digest: Some(digest.clone()), ..call }))
            }
            Outcome::Rendered(digest, result) => Self::desired(snapshot, result, digest),
            Outcome::Failed => {
                let ended = context.outcomes.latest().unwrap_or(context.now);
                let due = ended.checked_add(AGAIN).ok().filter(|due| *due > context.now);
                Self::Pending(Some(call).filter(|_| due.is_none()), due)
            }
        }
    }

    fn desired(snapshot: &Snapshot, result: &Arc<Result>, digest: &Arc<str>) -> Self {
        let is_of_them =
            |config: &&Arc<CachedConfig>| annotation(config.as_ref(), RENDER_INPUTS) == Some(digest.as_ref());
        let name_now = result.as_ref().as_ref().ok().map(|desired| desired.name.as_str());
        match snapshot.rendered.iter().map(|(config, _)| config).find(is_of_them) {
            Some(former) if Some(name(former.as_ref())) != name_now => Self::Former(name(former.as_ref()).to_owned()),
            _ => Self::Done(result.clone(), digest.clone()),
        }
    }

    /// The name of what is desired, if it is known.
    fn name<'a>(&'a self, snapshot: &'a Snapshot) -> Option<&'a str> {
        match self {
            Self::Done(outcome, _) => outcome.as_ref().as_ref().ok().map(|desired| desired.name.as_str()),
            Self::Former(name) => Some(name),
            Self::Settled(_) => snapshot.present.as_ref().map(|present| name(present.as_ref())),
            _ => None,
        }
    }
}

/// What the decision about a pool rests on.
pub(super) struct Scope<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) rendering: Rendering,
    /// The object of the desired name, as the cache has it.
    pub(super) existing: Option<&'a Arc<CachedConfig>>,
    /// Whether that may have another content than its name says, or is needed as a whole.
    pub(super) is_unverified: bool,
    /// Whether something else than the target is desired.
    is_other: bool,
}

impl<'a> Scope<'a> {
    pub(super) fn of(context: &Context<'_>, snapshot: &'a Snapshot) -> Self {
        let rendering = Rendering::of(context, snapshot);
        let desired = rendering.name(snapshot);
        let existing = desired.and_then(|desired| snapshot.by_name(desired));
        let is_former = matches!(rendering, Rendering::Former(_));
        let is_unverified = existing.is_some_and(|config| is_former || !is_as_created(config, &snapshot.pool));
        let is_other =
            snapshot.target_name.is_some() && desired.is_some_and(|it| Some(it) != snapshot.target_name.as_deref());
        Self { snapshot, rendering, existing, is_unverified, is_other }
    }

    /// The whole target; missing if it is what is desired.
    pub(super) fn target(&self) -> &'a Lookup<MachineConfig> {
        self.snapshot.whole(self.snapshot.target_name.as_deref().filter(|_| self.is_other))
    }

    /// The whole object of the desired name; missing if it is not needed.
    pub(super) fn whole(&self) -> &'a Lookup<MachineConfig> {
        self.snapshot.whole(self.unverified())
    }

    fn unverified(&self) -> Option<&'a str> {
        self.existing.filter(|_| self.is_unverified).map(|existing| name(existing.as_ref()))
    }

    /// The watches of the whole objects. While it is not known what is desired, those that there are stay.
    pub(super) fn scoped_watches(&self) -> Vec<ScopedWatch> {
        let watch = |config: &str| ScopedWatch::named::<MachineConfig>(&target_ref(config), "");
        if let Rendering::Pending(..) = self.rendering {
            return self.snapshot.whole.keys().map(|config| watch(config)).collect();
        }
        let target = self.snapshot.target_name.as_deref().filter(|_| self.is_other);
        target.into_iter().chain(self.unverified()).map(watch).collect()
    }
}
