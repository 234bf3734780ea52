//! What goes into the rendering of MachineConfigs, and how often it is done.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::machine_config::{ControllerConfig, GENERATED_BY};
use nodewright_render::{Input, Options, RenderError, Rendered, inputs, render};
use nodewright_runtime::{
    effect::{Effect, Group, Known},
    object::{annotation, resource_version, uid},
    offload::off_worker,
    plan::Context,
};

use crate::shared::machine_config::CachedConfig;

/// The pause between two renderings of the same object. Meanwhile more MachineConfigs may change, each of which would be rendered.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// What goes into a rendering, in the order of the merge.
#[derive(Clone, Default)]
pub(crate) struct Inputs {
    configs: Vec<Arc<CachedConfig>>,
    options: Options,
}

impl Inputs {
    pub(crate) fn new(
        configs: Vec<Arc<CachedConfig>>,
        controller_config: Option<&ControllerConfig>,
        extensions: Option<&[String]>,
    ) -> Self {
        let options = Options { extensions: extensions.map(<[String]>::to_vec), ..Options::of(controller_config) };
        Self { configs, options }
    }

    /// Whether others are the same: the versions of the objects, and the options.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Arc<CachedConfig>, &Arc<CachedConfig>)| {
            let key = |config: &CachedConfig| (resource_version(config), annotation(config, GENERATED_BY).is_some());
            Arc::ptr_eq(one, other)
                || uid(one.as_ref()) == uid(other.as_ref()) && key(one.as_ref()) == key(other.as_ref())
        };
        self.options == other.options
            && self.configs.len() == other.configs.len()
            && self.configs.iter().zip(&other.configs).all(is_same)
    }

    pub(crate) fn each(&self) -> Vec<Input<'_>> {
        self.configs.iter().filter_map(|config| config.input()).collect()
    }

    pub(crate) fn digest(&self) -> String {
        inputs::digest(&self.each(), &self.options)
    }

    pub(crate) fn render(&self) -> Result<Rendered, Vec<RenderError>> {
        render(&self.each(), &self.options)
    }
}

/// Computes away from the workers that drive tasks.
pub(crate) async fn compute<T>(work: impl FnOnce() -> T) -> T {
    off_worker(work)
}

/// The group of the calls that compute: one at a time.
pub(crate) fn one_at_a_time(name: &'static str) -> Vec<Group> {
    vec![Group::new(name, 1)]
}

/// What is known of a rendering.
pub(crate) enum RenderState<'a, E: Effect> {
    /// It was done of the present inputs.
    Done(&'a E::Outcome),
    /// It is to be done now.
    Due,
    /// It is being done, or was done of other inputs a moment ago: look again then.
    Later(Option<Timestamp>),
}

/// What is known of a rendering. `is_same`: whether what was asked last has the present inputs.
pub(crate) fn render_state<'a, E: Effect, N: Ord + 'static>(
    context: &Context<'a, E, N>,
    call: &E,
    is_same: impl FnOnce(&E) -> bool,
) -> RenderState<'a, E> {
    match context.outcomes.get(call) {
        Some(known) if known.running => RenderState::Later(None),
        Some(Known { last: Some((ended, outcome)), .. }) => {
            if context.outcomes.asked(call).is_some_and(is_same) {
                return RenderState::Done(outcome);
            }
            let due = ended.checked_add(PAUSE).ok().filter(|due| *due > context.now);
            due.map_or(RenderState::Due, |due| RenderState::Later(Some(due)))
        }
        None | Some(_) => RenderState::Due,
    }
}
