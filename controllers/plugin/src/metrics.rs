//! The metrics of the manager's Pods, by a port-forward: from where the plugin runs, the network seldom leads to Pods.
//!
//! With `--secure-metrics` the manager wants a token. It gets one of a service account that may read metrics and nothing else, never the
//! user's: whether a program with the manager's labels is the manager is not known, and users with certificates have no token.

use http::StatusCode;
use nodewright_runtime::clip::clip;
use serde_json::Value;

use crate::{
    client::Cluster,
    fault::{Fault, Outcome, fail},
    resources::PODS,
};

/// The port without `--port`, and that of `nodewright mc`.
const PORT: &str = "10258";
const PORT_OF_MC: &str = "10259";
/// The service account of `config/rbac`, in the manager's namespace.
const ACCOUNT: &str = "nodewright-report";

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
        match source.collect(cluster).await {
            Ok(pods) => {
                for (pod, metrics) in pods {
                    match metrics {
                        Ok(text) => texts.push((pod, text)),
                        Err(error) => gaps.push(format!("no metrics of Pod {pod}: {}", line(&error))),
                    }
                }
            }
            Err(error) => gaps.push(format!("no metrics of Deployment {}: {}", source.name, line(&error))),
        }
    }
    (texts, gaps)
}

fn line(error: &Fault) -> String {
    error.short().replace('\n', " ")
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

    /// The metrics of each Pod.
    async fn collect(&self, cluster: &Cluster) -> Outcome<Vec<(String, Outcome<String>)>> {
        let Ok(port) = self.port.parse() else { return fail(format!("--port={} is no port", self.port)) };
        let pods = cluster.list_labelled(PODS, self.namespace, &self.selector).await?;
        let names: Vec<_> = pods.iter().filter_map(|pod| pod.pointer("/metadata/name")?.as_str()).collect();
        if names.is_empty() {
            return fail("it has no Pods");
        }
        let token = if self.is_secure { Some(self.token(cluster).await?) } else { None };
        let mut all = vec![];
        for pod in names {
            let answer = cluster.get_from_port((self.namespace, pod, port), "/metrics", token.as_deref()).await;
            all.push((pod.to_owned(), answer.and_then(|(code, text)| self.metrics(code, text))));
        }
        Ok(all)
    }

    async fn token(&self, cluster: &Cluster) -> Outcome<String> {
        let token = cluster.token(self.namespace, ACCOUNT).await;
        token.map_err(|error| match error {
            Fault::NotFound { .. } => Fault::Message(format!(
                "with --secure-metrics it wants a token, and namespace {} has no service account {ACCOUNT}, whose it could be: \
                 install config/rbac/metrics.yaml",
                self.namespace
            )),
            other => other,
        })
    }

    /// The text of an answer, or why it is none.
    fn metrics(&self, code: StatusCode, text: String) -> Outcome<String> {
        match code {
            StatusCode::OK => Ok(text),
            StatusCode::UNAUTHORIZED if self.is_secure => {
                fail(format!("it does not accept the token of service account {ACCOUNT}: {}", clip(&text)))
            }
            StatusCode::FORBIDDEN if self.is_secure => fail(format!(
                "service account {ACCOUNT} may not get /metrics: bind the ClusterRole nodewright-metrics-reader to it"
            )),
            code => fail(format!("port {} answers {code}: {}", self.port, clip(&text))),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_without_metrics_is_an_error_that_says_what_is_missing() {
        let deployment = |args: Value| json!({"metadata": {"namespace": "n", "name": "d"}, "spec": {"template": {"spec": {"containers": [{"args": args}]}}}});
        let (open, secure) = (deployment(json!([])), deployment(json!(["--secure-metrics"])));
        let account = "service account nodewright-report";
        for (deployment, code, expected) in [
            (&open, 200, Ok("a 1")),
            (&open, 404, Err("port 10258 answers 404 Not Found: a 1".to_owned())),
            (&open, 403, Err("port 10258 answers 403 Forbidden: a 1".to_owned())),
            (&secure, 200, Ok("a 1")),
            (&secure, 401, Err(format!("it does not accept the token of {account}: a 1"))),
            (
                &secure,
                403,
                Err(format!("{account} may not get /metrics: bind the ClusterRole nodewright-metrics-reader to it")),
            ),
        ] {
            let metrics = Source::of(deployment).metrics(StatusCode::from_u16(code).unwrap(), "a 1".to_owned());
            assert_eq!(metrics.map_err(|error| error.to_string()), expected.map(str::to_owned), "{code}");
        }
    }
}
