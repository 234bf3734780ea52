//! The MachineConfigs that a controller would generate of a folder of templates.

use std::path::Path;

use nodewright_api::machine_config::{GENERATED_BY, MachineConfig, ROLE};
use nodewright_controllers::controller_config::read_templates;
use nodewright_render::templates;

use super::{
    Checked,
    folder::{Folder, Loaded},
};

/// Adds what is generated of the ControllerConfig of the folder, in place of what a cluster has generated of one before.
pub(crate) fn generate(folder: &mut Folder, dir: &Path) -> Checked<()> {
    let at = |error: &templates::TemplateError| {
        if error.file.is_empty() {
            format!("{}: {error}", dir.display())
        } else {
            dir.join(error.to_string()).display().to_string()
        }
    };
    let Some(spec) = folder.controller_config()?.map(|loaded| loaded.object.spec.clone()) else {
        let text = "--templates: there is no ControllerConfig machine-config-controller in the files, of which templates need the spec";
        return Err(vec![text.to_owned()]);
    };
    let read = read_templates(dir).map_err(|error| vec![at(&error)])?;
    let (secret, profile) = (folder.pull_secret(&spec), folder.tls_security_profile());
    let inputs = templates::Inputs {
        spec: &spec,
        pull_secret: secret.as_deref().map_err(String::as_str),
        tls_security_profile: profile.as_ref(),
    };
    let output = templates::generate(&read, &inputs).map_err(|errors| errors.iter().map(at).collect::<Vec<_>>())?;
    for warning in &output.warnings {
        eprintln!("warning: {}", at(warning));
    }
    folder.remove_generated_of("ControllerConfig");
    let mut errors = Vec::new();
    for templates::Generated { name, role, spec, .. } in output.made {
        if let Some(known) = folder.machine_config(&name) {
            errors.push(format!("{}: MachineConfig {name}: {} makes one of this name, too", known.file, dir.display()));
            continue;
        }
        let mut object = MachineConfig::new(&name, spec);
        object.metadata.labels = Some([(ROLE.to_owned(), role)].into());
        object.metadata.annotations = Some([(GENERATED_BY.to_owned(), String::new())].into());
        folder.replace(Loaded { file: dir.display().to_string(), name, object });
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
