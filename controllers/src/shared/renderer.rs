//! Renders the MachineConfigs of pools, once for the same inputs.

use std::{collections::HashMap, fmt, sync::Arc};

use nodewright_api::machine_config::{ControllerConfig, GENERATED_BY};
use nodewright_render::{Input, Options, RenderError, Rendered, inputs, name, render};
use nodewright_runtime::{
    object::{annotation, resource_version, uid},
    offload::off_worker,
};
use parking_lot::Mutex;
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use crate::shared::machine_config::CachedConfig;

/// For [`Controller::children`](nodewright_runtime::controller::Controller::children): what has been rendered rests for a second.
/// Meanwhile more MachineConfigs may change, each of which would be rendered.
pub(crate) const RENDERED_ONCE_A_SECOND: usize = 1_000;

/// Renders, and remembers for each purpose, such as a pool, what it has rendered last. All clones share that.
///
/// # Guarantees
/// * What it says depends on its arguments alone: that it remembers shows only in the time it takes.
/// * It renders and hashes away from the worker threads, one after the other: as many at once as there are renderers.
/// * It remembers one rendering for each purpose, and none of what is [settled](Renderer::settle).
#[derive(Clone, Default)]
pub struct Renderer {
    memories: Arc<Mutex<HashMap<String, Memory>>>,
    renders: Counter,
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderer").field("renders", &self.renders.get()).finish_non_exhaustive()
    }
}

/// The inputs of a rendering as they are in the cluster: name, UID and version of each, whether it counts as generated, and the
/// images.
type Key = (Vec<(String, String, u64, bool)>, Options);

struct Memory {
    key: Key,
    digest: Arc<str>,
    outcome: Option<Arc<Outcome>>,
}

/// What a rendering has led to.
pub(crate) type Outcome = Result<Wanted, Vec<RenderError>>;

/// What has been rendered, and the name of it if the purpose is a pool.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) rendered: Rendered,
}

/// What goes into a rendering, in the order of the merge.
pub(crate) struct Inputs<'a> {
    purpose: &'a str,
    configs: &'a [Arc<CachedConfig>],
    options: Options,
}

impl<'a> Inputs<'a> {
    pub(crate) fn new(
        purpose: &'a str,
        configs: &'a [Arc<CachedConfig>],
        controller_config: Option<&ControllerConfig>,
        extensions: Option<&[String]>,
    ) -> Self {
        let options = Options { extensions: extensions.map(<[String]>::to_vec), ..Options::of(controller_config) };
        Self { purpose, configs, options }
    }

    fn key(&self) -> Key {
        let each = |config: &Arc<CachedConfig>| {
            let config = config.as_ref();
            let input = config.input().map(|input| input.name.to_owned()).unwrap_or_default();
            (input, uid(config).to_owned(), resource_version(config), annotation(config, GENERATED_BY).is_some())
        };
        (self.configs.iter().map(each).collect(), self.options.clone())
    }

    fn inputs(&self) -> Vec<Input<'_>> {
        self.configs.iter().filter_map(|config| config.input()).collect()
    }
}

impl Renderer {
    /// Registers the number of renderings.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("machine_config_renders", "Renderings of a pool's MachineConfigs", self.renders.clone());
    }

    /// The digest of the inputs.
    pub(crate) fn digest(&self, inputs: &Inputs<'_>) -> Arc<str> {
        self.with(inputs, |memory| memory.digest.clone())
    }

    /// What the inputs render to.
    pub(crate) fn render(&self, inputs: &Inputs<'_>) -> Arc<Outcome> {
        self.with(inputs, |memory| {
            let rendering = || {
                self.renders.inc();
                Arc::new(render(&inputs.inputs(), &inputs.options).map(|rendered| {
                    let name = name(inputs.purpose, &rendered.spec);
                    Wanted { name, rendered }
                }))
            };
            memory.outcome.get_or_insert_with(|| off_worker(rendering)).clone()
        })
    }

    /// Forgets what was rendered for a purpose, which has it.
    pub(crate) fn settle(&self, purpose: &str) {
        if let Some(memory) = self.memories.lock().get_mut(purpose) {
            memory.outcome = None;
        }
    }

    /// Forgets a purpose that is gone.
    pub(crate) fn forget(&self, purpose: &str) {
        self.memories.lock().remove(purpose);
    }

    fn with<T>(&self, inputs: &Inputs<'_>, then: impl FnOnce(&mut Memory) -> T) -> T {
        let key = inputs.key();
        let mut memories = self.memories.lock();
        let memory = memories.entry(inputs.purpose.to_owned()).or_insert_with(|| Memory::of(key.clone(), inputs));
        if memory.key != key {
            *memory = Memory::of(key, inputs);
        }
        then(memory)
    }
}

impl Memory {
    fn of(key: Key, inputs: &Inputs<'_>) -> Self {
        let digest = off_worker(|| inputs::digest(&inputs.inputs(), &inputs.options)).into();
        Self { key, digest, outcome: None }
    }
}
