//! Templates: what a folder of files makes of a ControllerConfig, as machine-config-operator's template controller does.
//!
//! ```text
//! folder ── layout ──▶ MachineConfigs, each with its templates ── engine ──▶ fragments ── fragment, unite ──▶ Ignition config
//! ControllerConfig ── data, typed ──▶ fields of the templates ─────┤
//!                  ── platform ─────▶ functions of the templates ──┘
//! ```
//!
//! # Guarantees
//! * What is made follows from the texts of the files and the spec of the ControllerConfig alone.
//! * Each template ends, and needs little memory: its loops, its nesting and its output have limits, and it cannot call others.
//! * An error has the file and, where it is known, the line. It shows no value of the ControllerConfig.

mod data;
mod engine;
mod fragment;
mod functions;
mod layout;
mod platform;
mod typed;
mod unite;

use crate::ignition::VERSION;
use crate::inputs::to_value;
use crate::name::hexadecimal;
use crate::rules;
use data::Reads;
use fragment::{Fragment, Rendered};
use layout::{MachineConfigTemplates, Section, Template};
use nodewright_api::RawJson;
use nodewright_api::machine_config::{ControllerConfigSpec, MachineConfigSpec};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use unite::{Fragments, List};

/// How many files a folder may have.
pub const MOST_FILES: usize = 2_000;
/// How many bytes a file may have.
pub const LARGEST_FILE: usize = 256 << 10;
/// How many bytes all files of a folder may have.
pub const LARGEST_FOLDER: usize = 8 << 20;
/// How many bytes a template may render to, and a text in it may have.
pub const LARGEST_OUTPUT: usize = 2 * LARGEST_FILE;

/// How many templates may say something of one file or unit.
pub const MOST_FRAGMENTS: usize = 64;

/// The files of a folder, by their paths in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Templates {
    files: BTreeMap<String, String>,
    size: usize,
}

impl Templates {
    /// Adds a file. Its path in the folder has slashes, such as `worker/00-worker/_base/files/motd.yaml`.
    ///
    /// # Errors
    /// The file is too large, is no text, or the folder has too many.
    pub fn add(&mut self, path: &str, content: Vec<u8>) -> Result<(), TemplateError> {
        let fail = |detail: String| Err(TemplateError::of_file(path, detail));
        if content.len() > LARGEST_FILE {
            return fail(format!("has more than {LARGEST_FILE} bytes"));
        }
        self.size += content.len();
        if self.files.len() == MOST_FILES || self.size > LARGEST_FOLDER {
            return fail(format!("the folder has more than {MOST_FILES} files, or more than {LARGEST_FOLDER} bytes"));
        }
        let Ok(text) = String::from_utf8(content) else { return fail("is no text in UTF-8".to_owned()) };
        self.files.insert(path.to_owned(), text);
        Ok(())
    }
}

/// What templates are rendered with.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The spec of the ControllerConfig.
    pub spec: &'a ControllerConfigSpec,
    /// `.dockerconfigjson` of the Secret that `spec.pullSecret` names, or why that is not known. A template that prints it then fails.
    pub pull_secret: Result<&'a str, &'a str>,
    /// `spec.tlsSecurityProfile` of the `APIServer` of OpenShift. Without one it is the intermediate profile.
    pub tls_security_profile: Option<&'a RawJson>,
}

impl<'a> From<&'a ControllerConfigSpec> for Inputs<'a> {
    fn from(spec: &'a ControllerConfigSpec) -> Self {
        Self { spec, pull_secret: Err("the Secret that spec.pullSecret names is not read"), tls_security_profile: None }
    }
}

/// What is wrong with a template, or with the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The path of the file in the folder. Empty if it is the folder.
    pub file: String,
    /// The line in the file, from 1, where it is known.
    pub line: Option<usize>,
    /// What is wrong.
    pub detail: String,
}

impl TemplateError {
    /// An error of a file as a whole, or of the folder if it has no name.
    pub fn of_file(file: &str, detail: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, detail: detail.into() }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, detail } = self;
        match line {
            _ if file.is_empty() => f.write_str(detail),
            Some(line) => write!(f, "{file}:{line}: {detail}"),
            None => write!(f, "{file}: {detail}"),
        }
    }
}

/// A MachineConfig that templates make.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Its name.
    pub name: String,
    /// The role of its nodes.
    pub role: String,
    /// Its spec.
    pub spec: MachineConfigSpec,
    /// A digest of all that it is made of, in any release: its templates in their order, the ControllerConfig, and of the other
    /// [`Inputs`] those that the templates read.
    pub digest: String,
}

/// What templates make.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// The MachineConfigs, in the order of role and name.
    pub made: Vec<Generated>,
    /// What has no effect, or is written twice, though its author may think otherwise.
    pub warnings: Vec<TemplateError>,
}

/// Makes the MachineConfigs of a cluster.
///
/// # Errors
/// All that is wrong in any file. A folder without a template is an error: it never means that nothing is wanted.
pub fn generate(templates: &Templates, inputs: &Inputs<'_>) -> Result<Output, Vec<TemplateError>> {
    let platform = platform::Platform::of(inputs.spec).map_err(|error| vec![TemplateError::of_file("", error)])?;
    let laid_out = layout::read(&templates.files, &platform)?;
    let reads = Arc::new(Reads::default());
    let fields = data::fields(inputs, &reads).map_err(|error| vec![error])?;
    let engine = engine::Engine::new(fields, &Arc::new(platform));
    let spec = to_value(inputs.spec);
    let (mut made, mut errors) = (Vec::new(), Vec::new());
    let mut warnings: Vec<_> = layout::skipped(&templates.files).into_iter().collect();
    for each in &laid_out {
        reads.forget();
        match generate_one(each, &engine, &mut warnings) {
            Ok(made_spec) => {
                let digest = digest(each, &spec, &reads.digested(inputs));
                made.push(Generated { name: each.name.clone(), role: each.role.clone(), spec: made_spec, digest });
            }
            Err(found) => errors.extend(found),
        }
    }
    // What several roles have of `common` is wrong in each.
    for list in [&mut errors, &mut warnings] {
        list.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        list.dedup();
    }
    if errors.is_empty() { Ok(Output { made, warnings }) } else { Err(errors) }
}

fn generate_one(
    each: &MachineConfigTemplates,
    engine: &engine::Engine,
    warnings: &mut Vec<TemplateError>,
) -> Result<MachineConfigSpec, Vec<TemplateError>> {
    let mut errors = Vec::new();
    let mut fragments = |section: Section, read: &dyn Fn(&Template<'_>, Rendered<'_>) -> Fragment| {
        let rendered = effective(&each.templates, section, engine, &mut errors);
        let mut values = Fragments::new();
        for (template, text) in rendered {
            match read(&template, Rendered { text: &text, template: template.text }) {
                Ok((value, warning)) => {
                    warnings.extend(warning.map(|warning| TemplateError::of_file(template.path, warning)));
                    values.push((template.path, value));
                }
                Err(detail) => errors.push(TemplateError::of_file(template.path, detail)),
            }
        }
        values
    };
    let files = fragments(Section::Files, &|_, rendered| fragment::file(rendered));
    let units = fragments(Section::Units, &|_, rendered| fragment::unit(rendered));
    let extensions = fragments(Section::Extensions, &|template, rendered| match template.named_extension() {
        Some(name) => Ok((json!([name]), None)),
        None => fragment::extension(rendered),
    });
    if !errors.is_empty() {
        return Err(errors);
    }
    let (files, units) = (List::Files.unite(files, &each.name)?, List::Units.unite(units, &each.name)?);
    let names = extensions.iter().filter_map(|(_, names)| names.as_array()).flatten();
    let extensions = names.filter_map(Value::as_str).map(str::to_owned).collect();
    let config = Some(RawJson::from(&config(&files, &units)));
    let spec = MachineConfigSpec { config, extensions, ..MachineConfigSpec::default() };
    // The flag of the extensions that are allowed is the pool's matter.
    rules::read(&spec, None).map_err(|errors| {
        let sources = [(List::Files.prefix(), files.as_slice()), (List::Units.prefix(), &units)];
        errors.into_iter().map(|error| fragment::located(error, &sources, &each.name)).collect::<Vec<_>>()
    })?;
    Ok(spec)
}

fn config(files: &[(&str, Value)], units: &[(&str, Value)]) -> Value {
    let values = |fragments: &[(&str, Value)]| fragments.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
    let mut config = json!({"ignition": {"version": VERSION}});
    if !files.is_empty() {
        config["storage"] = json!({"files": values(files)});
    }
    if !units.is_empty() {
        config["systemd"] = json!({"units": values(units)});
    }
    config
}

/// What the templates of a section render to, by the names of their files: a later one replaces an earlier one of its name, an
/// empty file removes it, and what renders to nothing changes nothing.
fn effective<'a>(
    templates: &[Template<'a>],
    section: Section,
    engine: &engine::Engine,
    errors: &mut Vec<TemplateError>,
) -> Vec<(Template<'a>, String)> {
    let mut rendered = BTreeMap::new();
    for template in templates.iter().filter(|template| template.section == section).copied() {
        if template.text.is_empty() {
            rendered.remove(template.file);
            continue;
        }
        match engine.run(template.path, template.text) {
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => drop(rendered.insert(template.file, (template, text))),
            Err(error) => errors.push(error),
        }
    }
    rendered.into_values().collect()
}

/// What of the inputs was not read is not in it: objects in clusters carry digests.
fn digest(each: &MachineConfigTemplates<'_>, spec: &Value, others: &Map<String, Value>) -> String {
    let templates: Vec<_> = each.templates.iter().map(|template| json!([template.path, template.text])).collect();
    let mut all = json!({"name": each.name, "role": each.role, "controllerConfig": spec, "templates": templates});
    all.as_object_mut().into_iter().for_each(|all| all.extend(others.clone()));
    hexadecimal(&all, 32)
}
