//! The MachineConfigs that a controller would generate of the KubeletConfigs of a folder.

use std::collections::BTreeSet;

use nodewright_api::field::FieldError;
use nodewright_api::machine_config::{GENERATED_BY, KubeletConfig, MachineConfig, MachineConfigPool, ROLE};
use nodewright_render::{Input, Options, kubelet, render};

use super::{
    Checked,
    folder::{Folder, Loaded},
    selected,
};

/// Adds the generated MachineConfigs to those of the folder, as a cluster would come to have them. Replaces those that a cluster
/// has generated before.
pub(crate) fn generate(folder: &mut Folder) -> Checked<()> {
    // What is generated for a pool may be a part of what another one is generated of: for as many rounds as there are pools.
    for _ in 0..=folder.pools(None).map_or(0, |pools| pools.len()) {
        let generated = round(folder)?;
        let mut changed = false;
        for loaded in generated {
            changed |= folder.replace(loaded);
        }
        if !changed {
            break;
        }
    }
    Ok(())
}

/// Warnings of fields that no kubelet has, such as names with a typing error.
pub(super) fn unknown_fields(folder: &Folder) -> BTreeSet<String> {
    let of = |loaded: &Loaded<KubeletConfig>| {
        let (file, name) = (loaded.file.clone(), loaded.name.clone());
        kubelet::unknown_fields(&loaded.object.spec).into_iter().map(move |path| {
            format!(
                "{file}: KubeletConfig {name}: {path}: is no field of the kubelet in Kubernetes 1.36, which ignores it"
            )
        })
    };
    folder.kubelet_configs().flat_map(of).collect()
}

fn round(folder: &Folder) -> Checked<Vec<Loaded<MachineConfig>>> {
    let (mut generated, mut errors) = (Vec::new(), Vec::new());
    for pool in folder.pools(None).unwrap_or_default() {
        let mut configs: Vec<_> = folder.kubelet_configs_of(&pool.object).collect();
        configs.sort_by_key(|loaded| {
            let created = loaded.object.metadata.creation_timestamp.as_ref();
            (created.map(|time| time.0), loaded.name.clone())
        });
        let Some((first, rest)) = configs.split_first() else { continue };
        errors.extend(rest.iter().map(|Loaded { file, name, .. }| {
            let text = format!("pool {}: KubeletConfig {} has the pool: merge the two", pool.name, first.name);
            format!("{file}: KubeletConfig {name}: {text}")
        }));
        match of_pool(folder, pool, first) {
            Ok(one) => generated.extend(one),
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() { Ok(generated) } else { Err(errors) }
}

/// What is generated for a pool. None if the others that it selects are wrong, of which its own rendering tells.
fn of_pool(
    folder: &Folder,
    pool: &Loaded<MachineConfigPool>,
    config: &Loaded<KubeletConfig>,
) -> Checked<Option<Loaded<MachineConfig>>> {
    let name = kubelet::name(&pool.name);
    let Ok(others) = selected(folder, pool) else { return Ok(None) };
    let inputs: Vec<_> =
        others.iter().filter(|loaded| loaded.name != name).map(|loaded| Input::from(&loaded.object)).collect();
    let Ok(base) = render(&inputs, &Options { extensions: None, ..Options::default() }) else { return Ok(None) };
    let line =
        |error: &FieldError| format!("{}: KubeletConfig {}: pool {}: {error}", config.file, config.name, pool.name);
    kubelet::check_pool(&pool.name, &pool.object.spec).map_err(|error| vec![line(&error)])?;
    kubelet::check_order(&pool.name, &inputs, &base).map_err(|error| vec![line(&error)])?;
    let spec = kubelet::generate(&pool.name, &pool.object.spec, &base.spec.config, &config.object.spec);
    let spec = spec.map_err(|errors| errors.iter().map(line).collect::<Vec<_>>())?;
    let mut object = MachineConfig::new(&name, spec);
    object.metadata.labels = Some([(ROLE.to_owned(), pool.name.clone())].into());
    object.metadata.annotations = Some([(GENERATED_BY.to_owned(), String::new())].into());
    Ok(Some(Loaded { file: config.file.clone(), name, object }))
}
