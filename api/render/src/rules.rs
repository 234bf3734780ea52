//! The validation of a MachineConfig besides that of Ignition: the rules of machine-config-operator.

use crate::ignition::{Config, Parsed, parse};
use crate::spec::RenderedSpec;
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::machine_config::{KernelType, MachineConfigSpec};

/// The extensions of OpenShift's operating system.
pub const EXTENSIONS: [&str; 7] =
    ["ipsec", "kerberos", "kernel-devel", "sandboxed-containers", "sysstat", "two-node-ha", "usbguard"];

/// Permission bits of a file. Others (setuid, setgid, sticky) are not taken.
const PERMISSIONS: i64 = 0o777;

/// Checks the spec of a MachineConfig, and reads its Ignition config. It may ask for the given extensions, or for any.
pub fn read(spec: &MachineConfigSpec, extensions: Option<&[String]>) -> Result<Option<Parsed>, Vec<FieldError>> {
    let root = FieldPath::new("spec");
    let mut errors = Vec::new();
    if let KernelType::Other(name) = &spec.kernel_type {
        errors.push(FieldError::not_supported(root.child("kernelType"), name.as_str(), &KernelType::KNOWN[1..]));
    }
    errors.extend(
        extensions.into_iter().flat_map(|allowed| unknown_extensions(spec, allowed, &root.child("extensions"))),
    );
    let path = root.child("config");
    let parsed = match spec.config.as_ref().map(|config| parse(config.text(), &path)).transpose() {
        Ok(parsed) => parsed,
        Err(found) => {
            errors.extend(found);
            return Err(errors);
        }
    };
    if let Some(parsed) = &parsed {
        errors.extend(modes(&parsed.config, &path));
    }
    if errors.is_empty() { Ok(parsed) } else { Err(errors) }
}

fn unknown_extensions(spec: &MachineConfigSpec, allowed: &[String], at: &FieldPath) -> Vec<FieldError> {
    let names: Vec<_> = allowed.iter().map(String::as_str).collect();
    let unknown = spec.extensions.iter().enumerate().filter(|(_, extension)| !allowed.contains(extension));
    unknown.map(|(index, extension)| FieldError::not_supported(at.key(index), extension.as_str(), &names)).collect()
}

fn modes(config: &Config, at: &FieldPath) -> Vec<FieldError> {
    let files = config.list("/storage/files").iter().enumerate();
    let modes = files.filter_map(|(index, file)| Some((index, file.get("mode")?.as_i64()?)));
    let wrong = modes.filter(|(_, mode)| *mode > PERMISSIONS).map(|(index, mode)| {
        let path = at.child("storage").child("files").key(index).child("mode");
        FieldError::invalid(path, mode, "must be at most 511 (octal 777): no setuid, setgid or sticky bit")
    });
    wrong.collect()
}

/// Checks several MachineConfigs together.
pub(crate) fn of_merged(spec: &RenderedSpec) -> Vec<FieldError> {
    let is_default = spec.kernel_type == KernelType::Default.as_str();
    if is_default || !spec.extensions.iter().any(|extension| extension == "kernel-devel") {
        return Vec::new();
    }
    let path = FieldPath::new("spec").child("extensions");
    let detail = format!("kernel-devel is only there for the default kernel, and kernelType is {}", spec.kernel_type);
    vec![FieldError::forbidden(path, detail)]
}
