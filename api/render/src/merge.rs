//! Merging the MachineConfigs of a pool into one spec.

use crate::ignition::{Config, Parsed};
use crate::provenance::Provenance;
use crate::rules;
use crate::spec::{RenderedSpec, kernel};
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_api::machine_config::{
    ControllerConfig, KernelType, MachineConfig, MachineConfigPoolSpec, MachineConfigSpec, WORKER,
};
use std::fmt;

/// A MachineConfig of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its role.
    pub role: Option<&'a str>,
    /// Whether a controller has made it. Its images are defaults then.
    pub is_generated: bool,
    /// Its spec.
    pub spec: &'a MachineConfigSpec,
}

impl<'a> From<&'a MachineConfig> for Input<'a> {
    fn from(object: &'a MachineConfig) -> Self {
        Self {
            name: object.metadata.name.as_deref().unwrap_or_default(),
            role: object.role(),
            is_generated: object.is_generated(),
            spec: &object.spec,
        }
    }
}

/// The values of a cluster for the rendering of all pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bootable container image for a pool of which no MachineConfig names one: that of the ControllerConfig. May be empty.
    pub os_image_url: String,
    /// The same for the image with extensions.
    pub base_os_extensions_container_image: String,
    /// The extensions that a MachineConfig may ask for. None: any.
    pub extensions: Option<Vec<String>>,
}

/// No images, and the extensions of OpenShift's operating system.
impl Default for Options {
    fn default() -> Self {
        Self {
            os_image_url: String::new(),
            base_os_extensions_container_image: String::new(),
            extensions: Some(rules::EXTENSIONS.map(str::to_owned).to_vec()),
        }
    }
}

impl Options {
    /// The values of the ControllerConfig of a cluster, if it has one.
    pub fn of(controller_config: Option<&ControllerConfig>) -> Self {
        let Some(ControllerConfig { spec, .. }) = controller_config else { return Self::default() };
        Self {
            os_image_url: spec.base_os_container_image.clone(),
            base_os_extensions_container_image: spec.base_os_extensions_container_image.clone(),
            ..Self::default()
        }
    }
}

/// What is rendered for a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The spec.
    pub spec: RenderedSpec,
    /// Which MachineConfig has set what.
    pub provenance: Provenance,
    /// By MachineConfig, fields of its Ignition config that its version does not have. They have no effect.
    pub unused: Vec<(String, FieldPath)>,
}

/// Why nothing can be rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderError {
    /// The MachineConfig that is wrong. None if each is right, and the merge is not.
    pub machine_config: Option<String>,
    /// What is wrong, and where.
    pub error: FieldError,
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.machine_config {
            Some(name) => write!(f, "MachineConfig {name}: {}", self.error),
            None => write!(f, "merged: {}", self.error),
        }
    }
}

impl std::error::Error for RenderError {}

/// Sorts MachineConfigs as they are merged: those of role `worker` first, then the others, each by name.
pub fn sort(inputs: &mut [Input<'_>]) {
    inputs.sort_by_key(|input| place(input.role, input.name));
}

/// What the order of the merge goes by.
pub(crate) fn place<'a>(role: Option<&str>, name: &'a str) -> (bool, &'a str) {
    (role != Some(WORKER), name)
}

/// Checks that one alone chooses the operating system of a pool: its stream, or a MachineConfig.
pub fn check_image_owner<'a>(
    pool: &MachineConfigPoolSpec,
    mut inputs: impl Iterator<Item = Input<'a>>,
) -> Result<(), Box<FieldError>> {
    if pool.os_image_stream.name.is_empty() {
        return Ok(());
    }
    let owner = inputs.find(|input| !input.is_generated && !input.spec.os_image_url.is_empty());
    let Some(owner) = owner else { return Ok(()) };
    let why =
        format!("MachineConfig {} sets osImageURL: only one of the two may choose the operating system", owner.name);
    Err(Box::new(FieldError::forbidden(FieldPath::new("spec").child("osImageStream"), why)))
}

/// Merges MachineConfigs into one spec.
///
/// # Guarantees
///
/// * The order in which they are given makes no difference, nor does anything but what is in an [`Input`].
/// * Either there is a spec that Ignition takes, or there are errors that name object and field.
pub fn render(inputs: &[Input<'_>], options: &Options) -> Result<Rendered, Vec<RenderError>> {
    let mut inputs = inputs.to_vec();
    sort(&mut inputs);
    let configs = read(&inputs, options)?;
    let mut provenance = Provenance::new(inputs.iter().map(|input| input.name.to_owned()).collect());
    let unused = inputs.iter().zip(&configs).flat_map(|(input, parsed)| {
        parsed.iter().flat_map(|parsed| parsed.unused.iter().map(|path| (input.name.to_owned(), path.clone())))
    });
    let unused = unused.collect();
    let mut spec = merge_specs(&inputs, options, &mut provenance);
    spec.config = merge_configs(configs, &mut provenance)?;
    let errors = rules::of_merged(&spec);
    if errors.is_empty() {
        Ok(Rendered { spec, provenance, unused })
    } else {
        Err(errors.into_iter().map(merged).collect())
    }
}

fn merged(error: FieldError) -> RenderError {
    RenderError { machine_config: None, error }
}

/// Reads and checks each MachineConfig.
fn read(inputs: &[Input<'_>], options: &Options) -> Result<Vec<Option<Parsed>>, Vec<RenderError>> {
    let (mut configs, mut errors) = (Vec::new(), Vec::new());
    for input in inputs {
        match rules::read(input.spec, options.extensions.as_deref()) {
            Ok(parsed) => configs.push(parsed),
            Err(found) => {
                // What is generated may have values of a ControllerConfig, which may be secret.
                let shown = |error: FieldError| if input.is_generated { error.without_value() } else { error };
                let error = |error| RenderError { machine_config: Some(input.name.to_owned()), error: shown(error) };
                errors.extend(found.into_iter().map(error));
            }
        }
    }
    if errors.is_empty() { Ok(configs) } else { Err(errors) }
}

/// Merges everything but the Ignition configs.
fn merge_specs(inputs: &[Input<'_>], options: &Options, provenance: &mut Provenance) -> RenderedSpec {
    let mut spec = RenderedSpec {
        os_image_url: options.os_image_url.clone(),
        base_os_extensions_container_image: options.base_os_extensions_container_image.clone(),
        kernel_type: KernelType::Default.as_str().to_owned(),
        ..RenderedSpec::default()
    };
    for (source, Input { spec: input, is_generated, .. }) in inputs.iter().enumerate() {
        let mut set = |key: &str, adds: bool, is_set: bool| {
            if is_set {
                provenance.set(key, adds, source);
            }
            is_set
        };
        set("extensions", true, !input.extensions.is_empty());
        spec.extensions.extend_from_slice(&input.extensions);
        set("kernelArguments", true, !input.kernel_arguments.is_empty());
        spec.kernel_arguments.extend_from_slice(&input.kernel_arguments);
        if set("fips", true, input.fips) {
            spec.fips = true;
        }
        let kernel = kernel(&input.kernel_type);
        if set("kernelType", false, kernel != KernelType::Default.as_str()) {
            kernel.clone_into(&mut spec.kernel_type);
        }
        if set("osImageURL", false, !is_generated && !input.os_image_url.is_empty()) {
            spec.os_image_url.clone_from(&input.os_image_url);
        }
        let image = &input.base_os_extensions_container_image;
        if set("baseOSExtensionsContainerImage", false, !is_generated && !image.is_empty()) {
            spec.base_os_extensions_container_image.clone_from(image);
        }
    }
    spec
}

/// Merges the Ignition configs, and completes the result.
fn merge_configs(configs: Vec<Option<Parsed>>, provenance: &mut Provenance) -> Result<Config, Vec<RenderError>> {
    let mut result: Option<Config> = None;
    for (source, parsed) in configs.into_iter().enumerate() {
        let Some(Parsed { config, .. }) = parsed else { continue };
        provenance.set_config(&config, source);
        result = Some(match result {
            None => config,
            Some(parent) => merge_over(&parent, config),
        });
    }
    let mut config = result.unwrap_or_default();
    provenance.keep(&config);
    let errors = validate_merged(&config, provenance);
    if !errors.is_empty() {
        return Err(errors);
    }
    // A file without contents replaces what the image has.
    config.each_file(|file| {
        file.entry("overwrite").or_insert(true.into());
    });
    Ok(config)
}

/// Merges a config over another one. A file's content and its compression are two fields, so that for Ignition new plain text
/// over old compressed text is compressed. Here new content without compression is plain.
fn merge_over(parent: &Config, mut child: Config) -> Config {
    child.each_file(|file| {
        let contents = file.get_mut("contents").and_then(|contents| contents.as_object_mut());
        if let Some(contents) = contents.filter(|contents| contents.contains_key("source")) {
            contents.entry("compression").or_insert("".into());
        }
    });
    let mut merged = parent.merge(&child);
    merged.each_file(|file| {
        let contents = file.get_mut("contents").and_then(|contents| contents.as_object_mut());
        if let Some(contents) = contents.filter(|contents| contents.get("compression").is_some_and(|text| text == "")) {
            contents.remove("compression");
        }
    });
    merged
}

/// Two configs that are valid may not fit together. Names the configs whose parts do not.
fn validate_merged(config: &Config, provenance: &Provenance) -> Vec<RenderError> {
    let root = FieldPath::new("spec").child("config");
    let mut errors = Vec::new();
    for mut error in config.validate(&root) {
        let below = error.path.as_str().trim_start_matches(root.as_str()).trim_start_matches('.');
        let (key, names) = provenance.of_element(config, below);
        error.detail = format!("{} (set by {})", error.detail, names.join(", "));
        error.path = root.child(&key);
        errors.push(merged(error));
    }
    errors
}
