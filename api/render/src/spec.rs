//! The spec of a rendered MachineConfig.

use crate::ignition::{Config, parse};
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::machine_config::{KernelType, MachineConfigSpec};
use serde::Serialize;

/// The spec of a rendered MachineConfig.
///
/// Everything but the image of extensions is always written: an absent list is another content than an empty one, and so
/// another name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RenderedSpec {
    /// Container image with extensions.
    #[serde(rename = "baseOSExtensionsContainerImage", skip_serializing_if = "String::is_empty")]
    pub base_os_extensions_container_image: String,
    /// The Ignition config.
    pub config: Config,
    /// Extensions, those of each MachineConfig after those of the one before.
    pub extensions: Vec<String>,
    /// Whether a MachineConfig asks for FIPS mode.
    pub fips: bool,
    /// Kernel arguments, in the same order. An argument may be there twice.
    pub kernel_arguments: Vec<String>,
    /// The kernel: `default`, or the last other one.
    pub kernel_type: String,
    /// Bootable container image of the operating system.
    #[serde(rename = "osImageURL")]
    pub os_image_url: String,
}

/// The most bytes of a MachineConfig as JSON: what etcd takes in a request, less what comes with an object.
pub const LARGEST: usize = (1536 - 16) << 10;

impl RenderedSpec {
    /// What a node that boots with the Ignition config alone would lack, as fields of the spec: an agent sees to these. The operating
    /// system is that of its VM's image.
    pub fn beside_ignition(&self) -> Vec<&'static str> {
        let fields = [
            ("extensions", !self.extensions.is_empty()),
            ("fips", self.fips),
            ("kernelArguments", !self.kernel_arguments.is_empty()),
            ("kernelType", self.kernel_type != KernelType::Default.as_str()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
    }

    /// Reads a rendered MachineConfig: one of ours, or one that MCO has rendered.
    pub fn read(spec: &MachineConfigSpec) -> Result<Self, Vec<FieldError>> {
        let path = FieldPath::new("spec").child("config");
        let parsed = spec.config.as_ref().map(|text| parse(text.text(), &path)).transpose()?;
        let config = parsed.map(|parsed| parsed.config).unwrap_or_default();
        Ok(Self {
            base_os_extensions_container_image: spec.base_os_extensions_container_image.clone(),
            config,
            extensions: spec.extensions.clone(),
            fips: spec.fips,
            kernel_arguments: spec.kernel_arguments.clone(),
            kernel_type: kernel(&spec.kernel_type).to_owned(),
            os_image_url: spec.os_image_url.clone(),
        })
    }
}

/// The default kernel.
pub(crate) fn kernel(kernel: &KernelType) -> &str {
    if kernel.is_unset() { KernelType::Default.as_str() } else { kernel.as_str() }
}
