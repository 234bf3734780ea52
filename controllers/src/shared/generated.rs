//! MachineConfigs that a controller generates, of an object that controls them.

use std::collections::BTreeMap;

use nodewright_api::{
    annotations::{GENERATED_CONTENT, RENDER_INPUTS},
    machine_config::{GENERATED_BY, MachineConfig, MachineConfigSpec, ROLE},
};
use nodewright_render::inputs;
use nodewright_runtime::{
    effect::Effect,
    object::{Kind, annotation, child_of, controller, label, name, uid},
    plan::Step,
};
use serde_json::{Value, json};

use crate::shared::{
    TARGET,
    machine_config::{CachedConfig, VERSION},
    patch::{same_version, set},
};

/// A MachineConfig that is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generated<'a> {
    pub(crate) name: &'a str,
    /// The role of its nodes.
    pub(crate) role: &'a str,
    pub(crate) spec: &'a MachineConfigSpec,
    /// The digest of its inputs.
    pub(crate) inputs: &'a str,
}

/// Whether a MachineConfig was generated of these inputs, and has the role and the content that it was given.
///
/// This or an earlier release has generated it: which bytes it made of the inputs does not matter.
pub(crate) fn is_as_generated(config: &CachedConfig, role: &str, inputs: &str) -> bool {
    let content = config.spec.as_ref().map(inputs::content);
    label(config, ROLE) == Some(role)
        && annotation(config, GENERATED_BY).is_some()
        && annotation(config, RENDER_INPUTS) == Some(inputs)
        && annotation(config, GENERATED_CONTENT) == content.as_deref()
}

/// Why a MachineConfig that exists cannot become what `owner` generates, if that does not control it; and what to do.
pub(crate) fn conflict<K: Kind>(existing: &CachedConfig, owner: &K) -> Option<String> {
    let (name, kind) = (name(existing), K::kind(&()));
    let controller = controller(existing);
    let is_its = controller.is_some_and(|controller| controller.uid == uid(owner));
    let text = if controller.is_some_and(|controller| controller.kind == kind) {
        format!("was generated for another {kind}, and will be generated again once it has gone with that")
    } else {
        format!("exists, and the {kind} does not control it: delete it")
    };
    (!is_its).then(|| format!("MachineConfig {name} {text}"))
}

impl Generated<'_> {
    fn annotations(&self) -> BTreeMap<String, String> {
        let values = [VERSION.to_owned(), self.inputs.to_owned(), inputs::content(self.spec)];
        [GENERATED_BY, RENDER_INPUTS, GENERATED_CONTENT].map(str::to_owned).into_iter().zip(values).collect()
    }

    /// Creates it for its owner.
    pub(crate) fn create<K: Kind, E: Effect>(&self, owner: &K) -> Option<Step<E>> {
        let mut metadata = child_of(owner, "", self.name);
        metadata.labels = Some([(ROLE.to_owned(), self.role.to_owned())].into());
        metadata.annotations = Some(self.annotations());
        Step::create(TARGET, &MachineConfig { metadata, spec: self.spec.clone() }).map(Step::confidential)
    }

    /// Makes one that exists what it has to be.
    ///
    /// The spec is replaced as a whole: an apply would leave what others have added to it, such as `fips`, or a key of the
    /// Ignition config.
    pub(crate) fn restore<E: Effect>(&self, existing: &CachedConfig) -> Option<Step<E>> {
        let meta = &existing.metadata;
        let mut patch = vec![same_version(meta), set(&["spec"], serde_json::to_value(self.spec).unwrap_or_default())];
        let mut put = |field: &str, known: Option<&BTreeMap<String, String>>, wanted: BTreeMap<String, String>| {
            if known.is_none_or(BTreeMap::is_empty) {
                patch.push(set(&["metadata", field], json!(wanted)));
                return;
            }
            patch.extend(wanted.into_iter().map(|(key, value)| set(&["metadata", field, &key], Value::String(value))));
        };
        put("labels", meta.labels.as_ref(), [(ROLE.to_owned(), self.role.to_owned())].into());
        put("annotations", meta.annotations.as_ref(), self.annotations());
        Step::edit(TARGET, existing, json_patch::Patch(patch)).map(Step::confidential)
    }
}
