//! Takes out of objects what may be secret, and out of all texts what was taken out.
//!
//! # Guarantees
//! * Of an object stays what the manager reads or writes. What users and providers may write freely does not: the values in a
//!   `providerSpec`, in specs of node configuration, in annotations and labels of other domains, in variables of containers.
//!   Labels of Kubernetes stay, which schedulers and controllers read; of its annotations those named here, as others quote commands.
//! * A value that was taken out of one object is taken out of messages, events and explanations, too.

use std::collections::BTreeSet;

use nodewright_api::{annotations, without_nulls};
use serde_json::{Map, Value};

const REMOVED: &str = "(removed)";
/// A shorter value is a word that may stand in many texts.
const SHORTEST: usize = 6;
/// The keys of these domains have no secrets.
const DOMAINS: [&str; 6] = [
    "nodewright.dev",
    "machine.sapcloud.io",
    "node.gardener.cloud",
    "machineconfiguration.openshift.io",
    "cluster-autoscaler.kubernetes.io",
    "deployment.kubernetes.io",
];
/// The labels of these domains have none, either.
const LABEL_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// Keys among them that quote a spec.
const QUOTING: [&str; 2] = [annotations::KUBECTL_LAST_APPLIED_CONFIGURATION, annotations::IDENTITY];
/// Labels without a domain that the manager reads.
const PLAIN: [&str; 6] = ["node", "name", "machine-template-hash", "freeze", "force-deletion", "force-drain"];

/// What was taken out of objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redaction {
    values: BTreeSet<String>,
    /// Names of objects, and what else their metadata keeps: a value that is one of these hides nothing.
    names: BTreeSet<String>,
}

impl Redaction {
    /// Notes the texts that [`cut`] takes out of an object.
    pub(crate) fn learn(&mut self, object: &Value) {
        let (mut object, kept) = (object.clone(), cut(object.clone()));
        remove(&mut object["metadata"], "managedFields");
        if object["kind"] == "Node" {
            // Of its status, addresses and images are left out because they are many.
            remove(&mut object, "status");
        }
        texts(&kept["metadata"], &mut self.names);
        let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
        texts(&object, &mut before);
        texts(&kept, &mut after);
        for text in before.difference(&after) {
            self.values.insert(text.trim().to_owned());
            // A quoted document has its values in it.
            if let Ok(inner @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str::<Value>(text) {
                let mut all = BTreeSet::new();
                texts(&inner, &mut all);
                self.values.extend(all.difference(&after).cloned());
            }
        }
    }

    /// The text without what was taken out of objects.
    pub(crate) fn apply(&self, text: &str) -> String {
        let is_in = |value: &&String| value.len() >= SHORTEST && text.contains(value.as_str());
        let mut longest: Vec<_> = self.values.difference(&self.names).filter(is_in).collect();
        longest.sort_by_key(|value| std::cmp::Reverse(value.len()));
        longest.into_iter().fold(text.to_owned(), |text, value| text.replace(value.as_str(), REMOVED))
    }
}

/// All texts in a value.
fn texts(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => {
            into.insert(text.clone());
        }
        Value::Array(all) => all.iter().for_each(|it| texts(it, into)),
        Value::Object(all) => all.values().for_each(|it| texts(it, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// An object without what may be secret.
pub(crate) fn cut(mut object: Value) -> Value {
    metadata(&mut object["metadata"]);
    match object["kind"].as_str().unwrap_or_default() {
        "MachineClass" => remove_values(&mut object["providerSpec"]),
        "MachineDeployment" | "MachineSet" => {
            template(&mut object["spec"]["template"]);
        }
        "Machine" => node_template(&mut object["spec"]["nodeTemplate"]),
        "KubeletConfig" => {
            for key in ["kubeletConfig", "tlsSecurityProfile"] {
                remove_values(&mut object["spec"][key]);
            }
        }
        "ControllerConfig" => {
            remove_values(&mut object["spec"]);
            remove(&mut object["status"], "controllerCertificates");
        }
        "Node" => {
            keep(&mut object["status"], &["conditions", "volumesAttached", "volumesInUse", "nodeInfo"]);
        }
        "Deployment" => containers(&mut object),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" => {
            for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                remove(&mut webhook["clientConfig"], "caBundle");
            }
        }
        _ => {}
    }
    // Indexing has made nulls of fields that are missing.
    without_nulls(object)
}

fn metadata(metadata: &mut Value) {
    remove(metadata, "managedFields");
    for (list, are_labels) in [("annotations", false), ("labels", true)] {
        for (key, value) in metadata[list].as_object_mut().into_iter().flatten() {
            let is_kept = if are_labels { is_read_label(key) } else { is_ours(key) };
            if !is_kept {
                *value = REMOVED.into();
            }
        }
    }
}

fn is_read_label(key: &str) -> bool {
    is_ours(key) || is_of(key, &LABEL_DOMAINS)
}

fn is_ours(key: &str) -> bool {
    if !key.contains('/') {
        return PLAIN.contains(&key) || key.ends_with("machine.sapcloud.io");
    }
    is_of(key, &DOMAINS) && !QUOTING.contains(&key)
}

/// Whether a key is of one of the domains, or of one below them.
fn is_of(key: &str, domains: &[&str]) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let is_below = |known: &str| domain.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    domains.iter().any(|known| is_below(known))
}

fn template(template: &mut Value) {
    metadata(&mut template["metadata"]);
    node_template(&mut template["spec"]["nodeTemplate"]);
}

fn node_template(template: &mut Value) {
    metadata(&mut template["metadata"]);
    for taint in template["spec"]["taints"].as_array_mut().into_iter().flatten() {
        remove(taint, "value");
    }
}

/// Takes secrets out of arguments: passwords and queries of URLs, and values of flags that are named for a secret.
fn arguments(all: Option<&mut Vec<Value>>) {
    let mut follows_secret = false;
    for argument in all.into_iter().flatten() {
        let text = argument.as_str().unwrap_or_default().to_owned();
        let (flag, value) = text.split_once('=').map_or((text.as_str(), None), |(flag, value)| (flag, Some(value)));
        let is_secret = flag.starts_with('-') && is_named_for_a_secret(flag);
        match value {
            None if follows_secret && !text.starts_with('-') => *argument = REMOVED.into(),
            Some(_) if is_secret => *argument = format!("{flag}={REMOVED}").into(),
            _ => {
                if let Some(without) = without_password(&text) {
                    *argument = without.into();
                }
            }
        }
        follows_secret = is_secret && value.is_none();
    }
}

/// Names of files and of objects are no secrets.
fn is_named_for_a_secret(flag: &str) -> bool {
    let flag = flag.to_ascii_lowercase().replace('_', "-");
    let is_name =
        ["file", "dir", "path", "name", "namespace", "namespaces", "ref"].iter().any(|end| flag.ends_with(end));
    !is_name
        && [
            "token",
            "passw",
            "passphrase",
            "pwd",
            "secret",
            "credential",
            "bearer",
            "apikey",
            "api-key",
            "access-key",
            "private-key",
            "header",
        ]
        .iter()
        .any(|it| flag.contains(it))
}

/// Images, commands and arguments stay, without what may be secret in these; of variables the names.
fn containers(object: &mut Value) {
    let Some(pod) = object.pointer_mut("/spec/template/spec") else { return };
    keep(pod, &["containers", "serviceAccountName", "replicas"]);
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        keep(container, &["name", "image", "command", "args", "env", "resources"]);
        for key in ["command", "args"] {
            arguments(container[key].as_array_mut());
        }
        for variable in container["env"].as_array_mut().into_iter().flatten() {
            keep(variable, &["name"]);
        }
    }
    metadata(&mut object["spec"]["template"]["metadata"]);
}

/// An argument without the user, the password and the query of its URL, if it has such.
fn without_password(argument: &str) -> Option<String> {
    let (scheme, rest) = argument.split_once("://")?;
    let authority = rest.split_once(['/', '?', ',', ' ']).map_or(rest, |(authority, _)| authority);
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let (place, query) = rest[user.len()..].split_once('?').map_or((&rest[user.len()..], ""), |it| it);
    let (hidden, query) = (
        if user.is_empty() { "" } else { REMOVED },
        if query.is_empty() { String::new() } else { format!("?{REMOVED}") },
    );
    (!hidden.is_empty() || !query.is_empty()).then(|| format!("{scheme}://{hidden}{place}{query}"))
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().and_then(|all| all.remove(key));
}

fn keep(value: &mut Value, keys: &[&str]) {
    if let Some(all) = value.as_object_mut() {
        let kept: Map<_, _> = std::mem::take(all).into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect();
        *all = kept;
    }
}

/// Keeps the keys, and no value but whether something is so.
fn remove_values(value: &mut Value) {
    match value {
        Value::Object(all) => all.values_mut().for_each(remove_values),
        Value::Array(all) => all.iter_mut().for_each(remove_values),
        Value::String(_) | Value::Number(_) => *value = REMOVED.into(),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_planted_secret_is_in_no_text() {
        let secret = "hunter2-hunter2";
        let objects = [
            json!({"kind": "MachineClass", "metadata": {"name": "small", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": json!({"providerSpec": {"key": secret}}).to_string(),
                "nodewright.dev/identity": json!({"provider": secret}).to_string()}},
                "providerSpec": {"nested": [{"password": secret}], "size": 7},
                "secretRef": {"name": "credentials", "namespace": "shoot"}}),
            json!({"kind": "MachineDeployment", "metadata": {"name": "pool", "annotations": {"note": secret,
                "kubernetes.io/change-cause": format!("kubectl apply --token={secret}"), "example.k8s.io/key": secret}},
                "spec": {"replicas": 3, "template": {"metadata": {"annotations": {"example.com/token": secret}},
                "spec": {"class": {"name": "small"}, "nodeTemplate": {"metadata": {"annotations": {"a": secret}}}}}}}),
            json!({"kind": "Machine", "metadata": {"name": "pool-1"}, "spec": {},
                "status": {"lastOperation": {"description": format!("the provider refuses {secret}: no")}}}),
            json!({"kind": "KubeletConfig", "metadata": {"name": "k"}, "spec": {"kubeletConfig": {"a": secret}}}),
            json!({"kind": "ControllerConfig", "metadata": {"name": "c"}, "spec": {"internalRegistryPullSecret": secret}}),
            json!({"kind": "Node", "metadata": {"name": "n", "annotations": {"other.example.com/key": secret}},
                "status": {"images": [secret], "conditions": []}}),
            json!({"kind": "Deployment", "metadata": {"name": "nodewright"}, "spec": {"template": {"spec": {
                "containers": [{"name": "manager", "args": ["manager", "--leader-elect",
                "--otlp-endpoint=http://user:hunter2@collector:4317/v1", "--token=hunter2-1", "--password", "hunter2-2",
                "--secret-key=hunter2-3", "--endpoint=https://h/?token=hunter2-4"], "env": [{"name": "A", "value": secret}]}],
                "volumes": [{"name": secret}]}}}}),
        ];
        let mut redaction = Redaction::default();
        for object in &objects {
            redaction.learn(object);
        }
        let text: String = objects.iter().map(|object| cut(object.clone()).to_string()).collect();
        let text = redaction.apply(&text);
        assert!(!text.contains("hunter2"), "{text}");
        redaction.learn(&json!({"kind": "Node", "metadata": {"name": "x", "labels": {"pool": "machine-pool"}}}));
        redaction.learn(&json!({"kind": "MachineSet", "metadata": {"name": "machine-pool"}, "spec": {}}));
        assert_eq!(redaction.apply("machineset/machine-pool"), "machineset/machine-pool", "a name hides nothing");
        for kept in [
            "credentials",
            "--leader-elect",
            "--otlp-endpoint=http://(removed)@collector:4317/v1",
            "\"replicas\":3",
            "the provider refuses (removed): no",
            "password",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn keys_of_known_domains_keep_their_values() {
        for key in [
            "nodewright.dev/ledger",
            "node.machine.sapcloud.io/preserve",
            "machinepriority.machine.sapcloud.io",
            "deployment.kubernetes.io/revision",
            "name",
            "machineconfiguration.openshift.io/state",
        ] {
            assert!(is_ours(key), "{key}");
        }
        for key in [
            "example.com/a",
            "a",
            "kubernetes.io/change-cause",
            "a.deployment.kubernetes.iox/a",
            "nodewright.dev/identity",
        ] {
            assert!(!is_ours(key), "{key}");
        }
        assert!(is_read_label("topology.kubernetes.io/zone") && !is_read_label("evilkubernetes.io/a"));
    }
}
