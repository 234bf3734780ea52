//! The suites that openshift/api has for the CRDs of node configuration, on a real API server: with our CRDs, and with
//! OpenShift's. Suites of features that are off by default are left out.
//!
//! A suite has cases in two lists. `onCreate`: an object that is created, and what is stored or the error. `onUpdate`: an object,
//! what replaces it, and what is stored then, or the error of the object or of its status; `initialCRDPatches` say how the CRD was
//! when the object was created.

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use nodewright_api::machine_config::{GROUP, VERSION};
use nodewright_e2e_lab::control_plane::{
    ControlPlaneOptions, openshift_api, openshift_machine_config_crds, parse_manifest,
    testing::{Cluster, Failure, TestResult, ensure, eventually, skip_on_external_cluster},
};
use serde_json::{Value, json};

const KINDS: [(&str, &str); 4] = [
    ("ControllerConfig", "controllerconfigs"),
    ("KubeletConfig", "kubeletconfigs"),
    ("MachineConfig", "machineconfigs"),
    ("MachineConfigPool", "machineconfigpools"),
];
/// How many cases there are in the pinned version: none is lost because a file has moved.
const CASES: usize = 24;

/// A case, with where it is from.
struct Case {
    name: String,
    kind: &'static str,
    plural: &'static str,
    is_update: bool,
    fields: Value,
}

/// The cases of all suites without a gate.
async fn cases() -> TestResult<Vec<Case>> {
    let tests = openshift_api().await?.join("machineconfiguration/v1/tests");
    let mut cases = vec![];
    for (kind, plural) in KINDS {
        for file in sorted(&tests.join(format!("{plural}.{GROUP}")))? {
            let suite: Value = serde_saphyr::from_str(&fs::read_to_string(&file)?)
                .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
            if suite.get("featureGates").is_some() {
                continue;
            }
            let file = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            for (list, is_update) in [("onCreate", false), ("onUpdate", true)] {
                for case in suite["tests"][list].as_array().into_iter().flatten() {
                    let name = format!("{plural}/{file}/{list}: {}", case["name"].as_str().unwrap_or_default());
                    cases.push(Case { name, kind, plural, is_update, fields: case.clone() });
                }
            }
        }
    }
    Ok(cases)
}

fn sorted(directory: &Path) -> TestResult<Vec<PathBuf>> {
    let mut files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<TestResult<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

impl Case {
    /// An object of the case; empty if it has none of this name.
    fn object(&self, field: &str) -> TestResult<Value> {
        let Some(text) = self.fields[field].as_str() else { return Ok(Value::Null) };
        let objects = parse_manifest(text, &self.name)?;
        let object = objects.into_iter().next().ok_or_else(|| Failure::new(format!("{}: no {field}", self.name)))?;
        Ok(serde_json::to_value(object)?)
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, self.kind);
        Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, self.plural))
    }

    async fn run(&self, client: &Client) -> TestResult {
        let initial = self.initial(client).await;
        if !self.is_update {
            return self.evaluate(initial, "expectedError");
        }
        let mut live = initial.map_err(|error| Failure::new(error.to_string()))?;
        let api = self.api(client);
        let updated = self.object("updated")?;
        let mut object = updated.clone();
        object["metadata"] = serde_json::to_value(&live.metadata)?;
        match api.replace(&live.name_any(), &PostParams::default(), &serde_json::from_value(object)?).await {
            Ok(stored) if self.fields["expectedError"].is_null() => live = stored,
            result => return self.evaluate(result, "expectedError"),
        }
        if updated["status"].is_null() {
            return self.evaluate(Ok(live), "expectedError");
        }
        let result = replace_status(&api, &live, &updated["status"]).await;
        self.evaluate(result, "expectedStatusError")
    }

    /// Creates the first object of the case, with its status, on the CRD as it was then.
    async fn initial(&self, client: &Client) -> kube::Result<DynamicObject> {
        let unreadable = |failure: Failure| kube::Error::Service(failure.to_string().into());
        let mut object = self.object("initial").map_err(unreadable)?;
        object["metadata"] = json!({"generateName": "suite-"});
        let status = object["status"].take();
        let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        let api = self.api(client);
        let live = match &self.fields["initialCRDPatches"] {
            Value::Null => api.create(&PostParams::default(), &object).await?,
            patches => self.create_on(client, &object, patches).await.map_err(unreadable)?,
        };
        if status.is_null() { Ok(live) } else { replace_status(&api, &live, &status).await }
    }

    /// Creates an object on a changed CRD, which is then as before.
    async fn create_on(&self, client: &Client, object: &DynamicObject, patches: &Value) -> TestResult<DynamicObject> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let name = format!("{}.{GROUP}", self.plural);
        let before = crds.get(&name).await?;
        let patch: json_patch::Patch = serde_json::from_value(patches.clone())?;
        crds.patch(&name, &PatchParams::default(), &Patch::<()>::Json(patch)).await?;
        let (api, mut live) = (self.api(client), None);
        eventually("the changed definition", async || {
            live = api.create(&PostParams::default(), object).await.ok();
            Ok(live.is_some())
        })
        .await?;
        let spec = Patch::Merge(json!({"spec": before.spec}));
        crds.patch(&name, &PatchParams::default(), &spec).await?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually("the definition as it was", async || Ok(api.create(&dry_run, object).await.is_err())).await?;
        live.ok_or_else(|| Failure::new("nothing was created"))
    }

    /// Compares what was stored, or the error, with what the case expects.
    fn evaluate(&self, result: kube::Result<DynamicObject>, error: &str) -> TestResult {
        match (result, self.fields[error].as_str()) {
            (Err(kube::Error::Api(status)), Some(text)) => {
                ensure(says(&status.message, text), || format!("{text:?} is not in {}", status.message))
            }
            (Err(error), _) => Err(Failure::new(error.to_string())),
            (Ok(_), Some(text)) => Err(Failure::new(format!("it was taken, not refused with {text:?}"))),
            (Ok(stored), None) => {
                let (stored, expected) = (content(serde_json::to_value(stored)?), content(self.object("expected")?));
                ensure(stored == expected, || format!("stored: {stored}, expected: {expected}"))
            }
        }
    }
}

/// Whether a message is the one that a case expects. The suites are written for an API server that shows the type of a value where
/// a rule of the schema is broken (`Invalid value: "object": `). A newer one shows a short value, or nothing.
fn says(message: &str, expected: &str) -> bool {
    let rule = expected.strip_prefix("Invalid value: \"").and_then(|rest| rest.split_once("\": "));
    match rule {
        Some((_, rule)) => message.contains("Invalid value: ") && message.contains(rule),
        None => message.contains(expected),
    }
}

/// An object without its metadata, and without what is `null`: OpenShift's definition of a ControllerConfig stores it, and ours
/// drops it, as it means the same as nothing.
fn content(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("metadata");
    }
    without_nulls(&mut object);
    object
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

async fn replace_status(api: &Api<DynamicObject>, live: &DynamicObject, status: &Value) -> kube::Result<DynamicObject> {
    let mut object = live.clone();
    object.data["status"] = status.clone();
    api.replace_status(&live.name_any(), &PostParams::default(), &object).await
}

async fn run_all(crds: &[PathBuf]) -> TestResult {
    let options = ControlPlaneOptions { controller_manager: false, scheduler: false, ..Cluster::options() };
    let cluster = Cluster::start(options, false).await?;
    let plane = cluster.control_plane().ok_or_else(|| Failure::new("there is no control plane"))?;
    for file in crds {
        plane.apply_file(file).await?;
    }
    let client = cluster.client().await?;
    let cases = cases().await?;
    let mut failures = vec![];
    for case in &cases {
        if let Err(failure) = case.run(&client).await {
            failures.push(format!("{}: {failure}", case.name));
        }
        case.api(&client).delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    }
    ensure(failures.is_empty(), || failures.join("\n"))?;
    ensure(cases.len() == CASES, || format!("there are {} cases, not {CASES}", cases.len()))
}

const WHY: &str = "the kinds are cluster-scoped";

#[tokio::test(flavor = "multi_thread")]
async fn openshifts_suites_pass_with_our_definitions() -> TestResult {
    if skip_on_external_cluster("openshift's suites", WHY) {
        return Ok(());
    }
    run_all(&[concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/crd/machine-config/bases").into()]).await
}

/// Otherwise the suites would show nothing about ours.
#[tokio::test(flavor = "multi_thread")]
async fn openshifts_suites_pass_with_its_own_definitions() -> TestResult {
    if skip_on_external_cluster("openshift's suites", WHY) {
        return Ok(());
    }
    run_all(&openshift_machine_config_crds().await?).await
}
