//! The rendering of a pool's MachineConfigs, which may take long: a call outside Kubernetes.

use std::{fmt, sync::Arc, time::Duration};

use nodewright_render::{RenderError, Rendered, name};
use nodewright_runtime::effect::{Effect, Group};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use crate::shared::rendering::{Inputs, compute, one_at_a_time};

const DEADLINE: Duration = Duration::from_mins(1);

/// Renders what a pool selects. All calls for a pool are the same call.
#[derive(Clone)]
pub struct Render {
    pub(super) pool: Arc<str>,
    pub(super) inputs: Arc<Inputs>,
    /// The digest of these inputs, if it is known.
    pub(super) digest: Option<Arc<str>>,
    /// The digest of the inputs of the target: what has the same is not rendered.
    pub(super) of_target: Option<Arc<str>>,
}

/// What a pool selects, rendered under its name, or what is wrong with it.
pub(super) type Rendering = Result<Wanted, Vec<RenderError>>;

#[derive(Debug)]
pub struct Wanted {
    pub(super) name: String,
    pub(super) rendered: Rendered,
}

#[derive(Clone, Debug)]
pub enum Outcome {
    /// The target is of inputs with this digest.
    Settled(Arc<str>),
    /// What inputs with this digest render to.
    Rendered(Arc<str>, Arc<Rendering>),
    /// There is no result in time.
    Failed,
}

impl fmt::Debug for Render {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Render").field(&self.pool).finish()
    }
}

impl PartialEq for Render {
    fn eq(&self, other: &Self) -> bool {
        self.pool == other.pool
    }
}

impl Effect for Render {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        self.pool.clone()
    }

    fn name(&self) -> &'static str {
        "render"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn timeout_outcome(&self) -> Outcome {
        Outcome::Failed
    }

    fn succeeded(outcome: &Outcome) -> bool {
        !matches!(outcome, Outcome::Failed)
    }

    fn groups(&self) -> Vec<Group> {
        one_at_a_time("rendering")
    }
}

/// Makes the calls, and counts what it renders.
#[derive(Clone, Default)]
pub(crate) struct Renderer {
    renders: Counter,
}

impl Renderer {
    /// Registers the number of renderings.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("machine_config_renders", "Renderings of a pool's MachineConfigs", self.renders.clone());
    }

    pub(crate) fn perform(&self, call: Render) -> impl Future<Output = Outcome> + Send + use<> {
        let renders = self.renders.clone();
        compute(move || render(&call, &renders))
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.renders.get()
    }
}

pub(super) fn render(call: &Render, renders: &Counter) -> Outcome {
    let digest = call.digest.clone().unwrap_or_else(|| call.inputs.digest().into());
    if call.of_target.as_ref() == Some(&digest) {
        return Outcome::Settled(digest);
    }
    renders.inc();
    let wanted = |rendered: Rendered| Wanted { name: name(&call.pool, &rendered.spec), rendered };
    Outcome::Rendered(digest, Arc::new(call.inputs.render().map(wanted)))
}
