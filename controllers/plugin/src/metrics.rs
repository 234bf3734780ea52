//! The metrics of the manager's Pods, by way of the API server: from where the plugin runs, the network seldom leads to Pods.

use serde_json::Value;

use crate::{client::Cluster, fault::Fault, resources::PODS};

/// The port without `--port`, and that of `nodewright mc`.
const PORT: &str = "10258";
const PORT_OF_MC: &str = "10259";

/// The metrics of the Pods of managers by the Pod's name, and why there are none of others. `objects` has the Deployments.
pub(crate) async fn collect<'a>(
    cluster: &Cluster,
    objects: impl Iterator<Item = &'a Value>,
) -> (Vec<(String, String)>, Vec<String>) {
    let (mut texts, mut gaps) = (vec![], vec![]);
    let sources: Vec<_> = objects.filter(|object| is_manager(object)).map(Source::of).collect();
    if sources.is_empty() {
        gaps.push("no metrics: no Deployment of a manager is known (see --namespace)".to_owned());
    }
    for source in sources {
        let pods = match cluster.list_labelled(PODS, source.namespace, &source.selector).await {
            Ok(pods) => pods,
            Err(error) => {
                gaps.push(format!("no metrics of Deployment {}: {}", source.name, error.short()));
                continue;
            }
        };
        if pods.is_empty() {
            gaps.push(format!("no metrics of Deployment {}: it has no Pods", source.name));
        }
        for pod in pods.iter().filter_map(|pod| pod.pointer("/metadata/name")?.as_str()) {
            match cluster.metrics(source.namespace, pod, source.endpoint()).await {
                Ok(text) => texts.push((pod.to_owned(), text)),
                Err(error) => gaps.push(format!("no metrics of Pod {pod}: {}", source.reason(&error))),
            }
        }
    }
    (texts, gaps)
}

/// Where the Pods of a Deployment serve metrics.
struct Source<'a> {
    namespace: &'a str,
    name: &'a str,
    /// The labels of its Pods.
    selector: String,
    port: &'a str,
    is_secure: bool,
}

impl<'a> Source<'a> {
    fn of(deployment: &'a Value) -> Self {
        let text = |path| deployment.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let labels = deployment.pointer("/spec/selector/matchLabels").and_then(Value::as_object);
        let pairs = labels.into_iter().flatten().filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
        let flag = |name| flag(deployment, name);
        Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            selector: pairs.collect::<Vec<_>>().join(","),
            port: flag("port").unwrap_or(if words(deployment).any(|word| word == "mc") { PORT_OF_MC } else { PORT }),
            is_secure: flag("secure-metrics").is_some_and(|value| value != "false"),
        }
    }

    fn endpoint(&self) -> (&'static str, &str) {
        (if self.is_secure { "https" } else { "http" }, self.port)
    }

    /// Why there are no metrics, in a line. The API server keeps the user's credentials to itself.
    fn reason(&self, error: &Fault) -> String {
        match error {
            Fault::Unauthorized if self.is_secure => {
                "with --secure-metrics it wants a token, which the API server does not pass on; use kubectl port-forward".to_owned()
            }
            other => other.short().replace('\n', " "),
        }
    }
}

/// The words of the command lines of its containers.
fn words(deployment: &Value) -> impl Iterator<Item = &str> {
    let containers = deployment.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let lines = containers.into_iter().flatten().flat_map(|container| [&container["command"], &container["args"]]);
    lines.filter_map(Value::as_array).flatten().filter_map(Value::as_str)
}

/// The value of a flag; "" for one without a value.
fn flag<'a>(deployment: &'a Value, name: &str) -> Option<&'a str> {
    let values = words(deployment).filter_map(|word| {
        let rest = word.strip_prefix("--")?.strip_prefix(name)?;
        if rest.is_empty() { Some("") } else { rest.strip_prefix('=') }
    });
    values.last()
}

/// Whether it is a Deployment that runs our manager or machine-controller-manager.
pub(crate) fn is_manager(object: &Value) -> bool {
    if object["kind"] != "Deployment" {
        return false;
    }
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let names = ["nodewright", "machine-controller-manager"];
    let runs = |container: &Value| {
        let said = [&container["image"], &container["command"], &container["args"]].map(ToString::to_string);
        said.iter().any(|text| names.iter().any(|name| text.contains(name)))
    };
    containers.is_some_and(|all| all.iter().any(runs))
}
