//! Reading objects of node configuration from files, as `kubectl` reads them.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

use kube::Resource;
use nodewright_api::{
    RawJson, failed_field,
    field::FieldError,
    machine_config::{
        API_VERSION, CONTROLLER_CONFIG, ControllerConfig, ControllerConfigSpec, KubeletConfig, MachineConfig,
        MachineConfigPool,
    },
    selector,
    validation::Validate,
};
use nodewright_controllers::{controller_config::pull_secret_content, machine_config_pool::Objects};
use nodewright_runtime::{object::controller, without_managed_fields};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Checked;

/// An object of a file.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// The file, for messages.
    pub(super) file: String,
    /// Its name.
    pub(crate) name: String,
    pub(super) object: T,
}

/// Objects by name, in the order of their names.
type ByName<T> = BTreeMap<String, Loaded<T>>;

/// The objects of all files.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    machine_configs: ByName<MachineConfig>,
    pools: ByName<MachineConfigPool>,
    controller_configs: ByName<ControllerConfig>,
    kubelet_configs: ByName<KubeletConfig>,
    /// Secrets with credentials of registries, by namespace and name: file and object.
    secrets: BTreeMap<(String, String), (String, Value)>,
    /// OpenShift's configuration of its API server.
    api_server: Option<Value>,
}

impl Folder {
    /// Those of files, and of where else they are from.
    pub(crate) fn of(objects: &[(String, Value)]) -> Checked<Self> {
        let mut folder = Self::default();
        let errors: Vec<_> = objects.iter().filter_map(|(file, object)| folder.add(file, object).err()).collect();
        if errors.is_empty() { Ok(folder) } else { Err(errors) }
    }

    /// All objects of node configuration, without Nodes.
    pub(crate) fn into_objects(self) -> Objects {
        fn all<T>(objects: ByName<T>) -> Vec<T> {
            objects.into_values().map(|loaded| loaded.object).collect()
        }
        Objects {
            pools: all(self.pools),
            machine_configs: all(self.machine_configs),
            controller_configs: all(self.controller_configs),
            kubelet_configs: all(self.kubelet_configs),
            nodes: vec![],
        }
    }

    fn add(&mut self, file: &str, object: &Value) -> Result<(), String> {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        match (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default()) {
            ("v1", "Secret") => {
                let key = (text(&metadata["namespace"]), text(&metadata["name"]));
                self.secrets.insert(key, (file.to_owned(), object.clone()));
            }
            ("config.openshift.io/v1", "APIServer") if metadata["name"] == "cluster" => {
                self.api_server = Some(object.clone());
            }
            _ => {}
        }
        if object["apiVersion"] != API_VERSION {
            return Ok(());
        }
        match object["kind"].as_str().unwrap_or_default() {
            "MachineConfig" => insert(&mut self.machine_configs, file, object),
            "MachineConfigPool" => insert(&mut self.pools, file, object),
            "ControllerConfig" => insert(&mut self.controller_configs, file, object),
            "KubeletConfig" => insert(&mut self.kubelet_configs, file, object),
            _ => Ok(()),
        }
    }

    /// The MachineConfigs.
    pub(crate) fn machine_configs(&self) -> impl Iterator<Item = &Loaded<MachineConfig>> {
        self.machine_configs.values()
    }

    /// Leaves out the MachineConfigs that a controller has generated of an object of this kind.
    pub(super) fn remove_generated_of(&mut self, kind: &str) {
        self.machine_configs.retain(|_, loaded| {
            controller(&loaded.object).is_none_or(|owner| owner.kind != kind || !loaded.object.is_generated())
        });
    }

    /// A MachineConfig by its name.
    pub(super) fn machine_config(&self, name: &str) -> Option<&Loaded<MachineConfig>> {
        self.machine_configs.get(name)
    }

    /// Adds a MachineConfig, or replaces that of its name. Whether that changes anything.
    pub(super) fn replace(&mut self, loaded: Loaded<MachineConfig>) -> bool {
        let known = self.machine_configs.get(&loaded.name).map(|known| &known.object.spec);
        if known == Some(&loaded.object.spec) {
            return false;
        }
        self.machine_configs.insert(loaded.name.clone(), loaded);
        true
    }

    /// A pool, or all.
    pub(crate) fn pools(&self, name: Option<&str>) -> Checked<Vec<&Loaded<MachineConfigPool>>> {
        let names: Vec<_> = self.pools.keys().map(String::as_str).collect();
        if names.is_empty() {
            return Err(vec![format!("there is no MachineConfigPool of {API_VERSION} in the files")]);
        }
        let Some(name) = name else { return Ok(self.pools.values().collect()) };
        let pool = self.pools.get(name).ok_or_else(|| {
            vec![format!("there is no MachineConfigPool {name} in the files, but {}", names.join(", "))]
        })?;
        Ok(vec![pool])
    }

    /// The ControllerConfig that counts in a cluster. One that a webhook would refuse counts for nothing.
    pub(super) fn controller_config(&self) -> Checked<Option<&Loaded<ControllerConfig>>> {
        if let Some(Loaded { file, name, .. }) =
            self.controller_configs.values().find(|loaded| loaded.name != CONTROLLER_CONFIG)
        {
            return Err(vec![format!("{file}: ControllerConfig {name}: metadata.name: must be {CONTROLLER_CONFIG}")]);
        }
        let Some(loaded) = self.controller_configs.get(CONTROLLER_CONFIG) else { return Ok(None) };
        let errors = loaded.object.validate();
        let line = |error: &FieldError| format!("{}: ControllerConfig {}: {error}", loaded.file, loaded.name);
        if errors.is_empty() { Ok(Some(loaded)) } else { Err(errors.iter().map(line).collect()) }
    }

    /// The content of the Secret that a ControllerConfig names, or why it is not known.
    pub(super) fn pull_secret(&self, spec: &ControllerConfigSpec) -> Result<String, String> {
        let reference = spec.pull_secret.clone().unwrap_or_default();
        let (namespace, name) = (reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
        if name.is_empty() {
            return Err("spec.pullSecret of the ControllerConfig names no Secret".to_owned());
        }
        let shown = format!("Secret {namespace}/{name}");
        let Some((file, secret)) = self.secrets.get(&(namespace, name)) else {
            return Err(format!("there is no {shown} in the files"));
        };
        // The error of a decoder could show a value.
        let secret =
            serde_json::from_value(secret.clone()).map_err(|_| format!("{file}: {shown}: cannot be decoded"))?;
        pull_secret_content(&secret).map_err(|error| format!("{file}: {shown}: {error}"))
    }

    /// The TLS profile of OpenShift's API server.
    pub(super) fn tls_security_profile(&self) -> Option<RawJson> {
        let profile = &self.api_server.as_ref()?["spec"]["tlsSecurityProfile"];
        profile.is_object().then(|| RawJson::from(profile))
    }

    /// The KubeletConfigs.
    pub(super) fn kubelet_configs(&self) -> impl Iterator<Item = &Loaded<KubeletConfig>> {
        self.kubelet_configs.values()
    }

    /// The KubeletConfigs that select a pool.
    pub(super) fn kubelet_configs_of(&self, pool: &MachineConfigPool) -> impl Iterator<Item = &Loaded<KubeletConfig>> {
        let labels = pool.metadata.labels.clone();
        self.kubelet_configs.values().filter(move |loaded| {
            let selector = loaded.object.spec.machine_config_pool_selector.as_ref();
            !selector::is_empty(selector) && selector::matches(selector, labels.as_ref())
        })
    }
}

/// The one object of a kind in a file.
pub(super) fn one<T: Resource<DynamicType = ()> + DeserializeOwned>(file: &Path) -> Checked<T> {
    let kind = T::kind(&());
    let mut objects = ByName::new();
    for (file, object) in documents(file)? {
        if object["apiVersion"] == API_VERSION && object["kind"] == *kind {
            insert(&mut objects, &file, &object).map_err(|error| vec![error])?;
        }
    }
    let count = objects.len();
    match objects.pop_first().filter(|_| count == 1) {
        Some((_, loaded)) => Ok(loaded.object),
        None => Err(vec![format!("{}: must have one {kind} of {API_VERSION}, and has {count}", file.display())]),
    }
}

/// Reads an object, and adds it to those of its kind.
fn insert<T: Resource<DynamicType = ()> + DeserializeOwned>(
    objects: &mut ByName<T>,
    file: &str,
    object: &Value,
) -> Result<(), String> {
    let kind = T::kind(&());
    let Some(name) = object["metadata"]["name"].as_str().filter(|name| !name.is_empty()) else {
        return Err(format!("{file}: {kind}: metadata.name: Required value"));
    };
    if let Some(Loaded { file: other, .. }) = objects.get(name) {
        return Err(format!("{file}: {kind} {name}: is in {other} as well"));
    }
    // From text, as a config is kept as it is.
    let text = object.to_string();
    let object = without_managed_fields::from_str(&text).map_err(|error| {
        let field = failed_field(&text, &error);
        let field = if field.is_empty() { String::new() } else { format!("{field}: ") };
        format!("{file}: {kind} {name}: {field}{}", without_position(&error))
    })?;
    let loaded = Loaded { file: file.to_owned(), name: name.to_owned(), object };
    objects.insert(name.to_owned(), loaded);
    Ok(())
}

/// An error without the place in a text that the user has not written.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(text, _)| text.to_owned())
}

/// The objects of files and of folders, each with the name of its file.
pub(crate) fn read(files: &[PathBuf]) -> Checked<Vec<(String, Value)>> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match documents(file) {
            Ok(documents) => found.extend(documents),
            Err(error) => errors.extend(error),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The objects of a file, of the files of a folder, or of standard input. The elements of a `List` are objects.
fn documents(path: &Path) -> Checked<Vec<(String, Value)>> {
    let fail = |error: io::Error| vec![format!("failed to read {}: {error}", path.display())];
    if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map_err(fail)?;
        return parse("standard input", &text);
    }
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(fail)?;
        let is_object_file =
            |path: &PathBuf| path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        files = entries.into_iter().map(|entry| entry.path()).filter(is_object_file).collect();
        files.sort();
    }
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        let name = file.display().to_string();
        let text = fs::read_to_string(&file).map_err(|error| vec![format!("failed to read {name}: {error}")]);
        match text.and_then(|text| parse(&name, &text)) {
            Ok(documents) => found.extend(documents),
            Err(error) => errors.extend(error),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// The objects of a text: JSON, or YAML as `kubectl` reads it, in which 0644 is octal.
fn parse(file: &str, text: &str) -> Checked<Vec<(String, Value)>> {
    let mut documents = match json(text) {
        Some(documents) => documents,
        None => yaml(text).map_err(|error| vec![format!("{file}: must be YAML or JSON: {error}")])?,
    };
    documents.iter_mut().for_each(shorten_numbers);
    let objects = documents.into_iter().flat_map(|document| match document.get("items") {
        Some(Value::Array(items)) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => {
            items.clone()
        }
        _ => vec![document],
    });
    Ok(objects.map(|object| (file.to_owned(), object)).collect())
}

fn json(text: &str) -> Option<Vec<Value>> {
    let documents = text.trim_start().starts_with('{').then(|| serde_json::Deserializer::from_str(text).into_iter());
    documents?.collect::<Result<_, _>>().ok()
}

fn yaml(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false, budget: None };
    serde_saphyr::from_multiple_with_options(text, options)
}

/// Makes `1.0` and `1e3` integers, as they are once they have been sent to an API server: Go writes no fraction that is zero.
fn shorten_numbers(value: &mut Value) {
    /// Integers above that have no exact form as a number with a fraction.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT);
            // Without a fraction, its text is that of an integer.
            if let Some(whole) = whole.and_then(|number| format!("{number:.0}").parse::<i64>().ok()) {
                *value = whole.into();
            }
        }
        Value::Array(list) => list.iter_mut().for_each(shorten_numbers),
        Value::Object(object) => object.values_mut().for_each(shorten_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse;

    /// An API server has `1` for each of them, and a kubelet's file is made of what it has.
    #[test]
    fn whole_numbers_are_integers_in_yaml_and_json() {
        for text in ["{a: [1.0, 1e0, {b: 1.}]}", r#"{"a": [1.0, 1e0, {"b": 1.0}]}"#] {
            let documents = parse("file", text).unwrap_or_default();
            assert_eq!(documents[0].1.to_string(), r#"{"a":[1,1,{"b":1}]}"#, "{text}");
        }
        let documents =
            parse("file", "a: [1.5, 1e300, -0.0, 9007199254740993.0, 12345678901234567890]").unwrap_or_default();
        assert_eq!(documents[0].1["a"].to_string(), "[1.5,1e+300,0,9007199254740992,12345678901234567890]");
    }

    /// What `kubectl` makes of them, which reads YAML 1.1.
    #[test]
    fn values_of_yaml_are_those_of_kubectl() {
        let text = "a: [0644, 0o644, 0x1a4, 0b110100100, 1_000, 010, -012, +12, 1e3, 1.50, .5, 0.0]\n\
                    b: [yes, no, on, off, y, n, Y, N, True, FALSE, ~, null, Null, '', 2001-01-01, 1:30, '0644', =]\n";
        let documents = parse("file", text).unwrap_or_default();
        let (_, document) = &documents[0];
        assert_eq!(document["a"], json!([420, 420, 420, 420, 1000, 8, -10, 12, 1000, 1.5, 0.5, 0]));
        let (yes, no) = (true, false);
        assert_eq!(
            document["b"],
            json!([
                yes,
                no,
                yes,
                no,
                yes,
                no,
                yes,
                no,
                yes,
                no,
                null,
                null,
                null,
                "",
                "2001-01-01",
                "1:30",
                "0644",
                "="
            ])
        );
    }
}
