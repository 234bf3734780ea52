//! The configuration of the kubelet: what a KubeletConfig makes of the one that the nodes of a pool have.
//!
//! ```text
//! merge of the pool's other MachineConfigs ── /etc/kubernetes/kubelet.conf ──▶ base ─┐
//! KubeletConfig ── rules ──▶ fields of the user, TLS profile, reserved resources ────┴─▶ merge ──▶ MachineConfig
//! ```

mod amounts;
mod evictions;
mod file;
mod merge;
mod rules;
mod sizing;
mod tls;

pub use rules::is_control_plane;
pub(crate) use tls::of_profile as tls_profile;

use crate::ignition::{Config, VERSION};
use crate::inputs::to_value;
use crate::merge::{Input, Rendered, place};
use crate::name::hexadecimal;
use file::{read_yaml, write};
use nodewright_api::RawJson;
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::machine_config::{KubeletConfigSpec, MachineConfigPoolSpec, MachineConfigSpec, ROLE};
use nodewright_api::selector;
use serde_json::{Map, Value, json};

/// The file with the kubelet's configuration.
pub const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
const LOGGING: &str = "/etc/systemd/system/kubelet.service.d/20-logging.conf";
const SIZING: &str = "/etc/node-sizing-enabled.env";

/// The name of the MachineConfig that a KubeletConfig makes for a pool.
pub fn name(pool: &str) -> String {
    format!("99-{pool}-generated-kubelet")
}

/// A digest of all that determines what [`generate`] makes, in any release: of the MachineConfigs that the base is merged of, the
/// pool, and the KubeletConfig.
pub fn digest(base: &str, pool: &str, pool_spec: &MachineConfigPoolSpec, spec: &KubeletConfigSpec) -> String {
    let control_plane = is_control_plane(pool, pool_spec);
    let all = json!({"base": base, "pool": pool, "controlPlane": control_plane, "kubeletConfig": to_value(spec)});
    hexadecimal(&all, 32)
}

/// Checks that a pool selects what [`generate`] makes for it, which has the pool's name as its role: a pool of another role
/// would run without it.
pub fn check_pool(pool: &str, spec: &MachineConfigPoolSpec) -> Result<(), Box<FieldError>> {
    let labels = [(ROLE.to_owned(), pool.to_owned())].into();
    if selector::matches(spec.machine_config_selector.as_ref(), Some(&labels)) {
        return Ok(());
    }
    let path = FieldPath::new("spec").child("machineConfigSelector");
    let detail = format!("must include the role {pool}, by which the pool has {}", name(pool));
    Err(Box::new(FieldError::confidential(path, &Value::Null, detail)))
}

/// Checks that what [`generate`] makes for a pool is merged over the file that it changes. `base` is what the others, `inputs`,
/// render to.
///
/// The file is written as a whole: one that comes later in the merge would replace it.
pub fn check_order(pool: &str, inputs: &[Input<'_>], base: &Rendered) -> Result<(), Box<FieldError>> {
    let generated = name(pool);
    let path = FieldPath::new("spec.config.storage.files").key(KUBELET_CONF);
    let contents = path.child("contents").child("source");
    let authors = base.provenance.at(contents.as_str()).flat_map(|origin| origin.set_by).collect::<Vec<_>>();
    let is_later = |input: &&Input<'_>| place(input.role, input.name) > place(Some(pool), &generated);
    let Some(later) = inputs.iter().filter(is_later).find(|input| authors.contains(&input.name)) else { return Ok(()) };
    let detail =
        format!("MachineConfig {} sets it, and comes after {generated} in the merge, which would be lost", later.name);
    Err(Box::new(FieldError::confidential(path, &Value::Null, detail)))
}

/// Makes the MachineConfig of a KubeletConfig for a pool whose other MachineConfigs merge to `base`.
///
/// The errors name fields of the KubeletConfig, or the file of the pool.
pub fn generate(
    pool: &str,
    pool_spec: &MachineConfigPoolSpec,
    base: &Config,
    spec: &KubeletConfigSpec,
) -> Result<MachineConfigSpec, Vec<FieldError>> {
    let root = FieldPath::new("spec");
    let user = user_fields(spec, &root).map_err(|error| vec![*error])?;
    let errors = rules::check(spec, &user, is_control_plane(pool, pool_spec), &root);
    if !errors.is_empty() {
        return Err(errors);
    }
    let base = base_fields(base).map_err(|error| vec![*error])?;
    let (user, sizing) = sizing::split(spec.auto_sizing_reserved, rules::effective(user));
    let tls = tls::fields(spec.tls_security_profile.as_ref(), &root).map_err(|error| vec![*error])?;
    let merged = merge::merge(base, tls, user);
    rules::check_merged(&merged, &root).map_err(|error| vec![*error])?;
    let mut files = vec![write(KUBELET_CONF, &file::to_yaml(&merged).map_err(|error| vec![*error])?)];
    if let Some(level) = spec.log_level {
        files.push(write(LOGGING, &format!("[Service]\nEnvironment=\"KUBELET_LOG_LEVEL={level}\"\n")));
    }
    files.extend(sizing.map(|text| write(SIZING, &text)));
    let config = json!({"ignition": {"version": VERSION}, "storage": {"files": files}});
    Ok(MachineConfigSpec { config: Some(RawJson::from(&config)), ..MachineConfigSpec::default() })
}

/// Checks what is valid or invalid in a KubeletConfig on any pool. The errors name its fields.
pub fn check(spec: &KubeletConfigSpec) -> Vec<FieldError> {
    let root = FieldPath::new("spec");
    let mut errors = match user_fields(spec, &root) {
        Ok(user) => rules::check(spec, &user, false, &root),
        Err(error) => vec![*error],
    };
    errors.extend(tls::fields(spec.tls_security_profile.as_ref(), &root).err().map(|error| *error));
    errors
}

/// What of `spec.kubeletConfig` is no field of the kubelet in Kubernetes 1.36, such as a name with a typing error.
pub fn unknown_fields(spec: &KubeletConfigSpec) -> Vec<FieldPath> {
    let root = FieldPath::new("spec");
    let user = user_fields(spec, &root).unwrap_or_default();
    rules::unknown(&user, &root.child("kubeletConfig"))
}

fn user_fields(spec: &KubeletConfigSpec, root: &FieldPath) -> Result<Map<String, Value>, Box<FieldError>> {
    let Some(raw) = &spec.kubelet_config else { return Ok(Map::new()) };
    let path = root.child("kubeletConfig");
    match raw.parse::<Value>() {
        Ok(Value::Object(fields)) => Ok(fields),
        _ => {
            Err(Box::new(FieldError::invalid(path, Value::Null, "must be a KubeletConfiguration, which is an object")))
        }
    }
}

/// The fields of the file that the pool has. Without it there is nothing to change: all of it would be lost.
fn base_fields(base: &Config) -> Result<Map<String, Value>, Box<FieldError>> {
    let path = FieldPath::new("spec.config.storage.files").key(KUBELET_CONF);
    let file = base.list("/storage/files").iter().find(|file| file["path"] == KUBELET_CONF);
    let Some(file) = file else {
        return Err(Box::new(FieldError::required(path, "no other MachineConfig of the pool has this file")));
    };
    read_yaml(file, &path)
}
