//! Reads the objects of a cluster that a plan depends on. Nothing is written.

use std::path::PathBuf;

use clap::Args;
use http::Request;
use kube::{Client, Resource, core::ObjectList};
use nodewright_api::machine_config::{ControllerConfig, KubeletConfig, MachineConfig, MachineConfigPool};
use nodewright_controllers::machine_config_pool::Node;
use nodewright_runtime::{error::one_line, request::read_kubeconfig};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::render::Checked;

/// Where objects of a cluster are from, for messages.
pub(super) const CLUSTER: &str = "cluster";
/// How many objects are requested at once.
const PAGE: usize = 500;

/// The words of `kubectl`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterFlags {
    /// Kubeconfig of the cluster that the nodes are in. [default: the files of $KUBECONFIG, or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ClusterFlags {
    /// A client of the cluster.
    pub(super) async fn client(&self) -> Checked<Client> {
        let file = self.kubeconfig.as_deref();
        let what = file.map_or("kubeconfig".to_owned(), |file| format!("kubeconfig {}", file.display()));
        let failed = |text: String| vec![format!("failed to read the {what} (see --kubeconfig, --context): {text}")];
        let config = read_kubeconfig(file, self.context.clone()).await.map_err(failed)?;
        Client::try_from(config).map_err(|error| failed(one_line(&error)))
    }
}

/// The objects of node configuration.
pub(super) async fn objects(client: &Client) -> Checked<Vec<Value>> {
    let mut all = values::<MachineConfigPool>(client).await?;
    all.extend(values::<MachineConfig>(client).await?);
    all.extend(values::<KubeletConfig>(client).await?);
    all.extend(values::<ControllerConfig>(client).await?);
    Ok(all)
}

/// All Nodes.
pub(super) async fn nodes(client: &Client) -> Checked<Vec<Node>> {
    list::<Node, Node>(client).await
}

/// The objects of a kind. The elements of a list do not say what they are.
async fn values<K: Resource<DynamicType = ()>>(client: &Client) -> Checked<Vec<Value>> {
    let mut values = list::<K, Value>(client).await?;
    for value in &mut values {
        value["apiVersion"] = K::api_version(&()).into();
        value["kind"] = K::kind(&()).into();
    }
    Ok(values)
}

/// Lists a kind, page by page.
async fn list<K: Resource<DynamicType = ()>, T: DeserializeOwned + Clone>(client: &Client) -> Checked<Vec<T>> {
    let (path, plural) = (K::url_path(&(), None), K::plural(&()));
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let failed = |error: &dyn std::error::Error| vec![format!("failed to list {plural}: {}", one_line(error))];
        let request = Request::get(format!("{path}?limit={PAGE}&continue={next}")).body(Vec::new());
        let request = request.map_err(|error| failed(&error))?;
        let page: ObjectList<T> = match client.request(request).await {
            Ok(page) => page,
            // It names user, verb and resource.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let version = K::api_version(&());
                return Err(vec![format!("the cluster does not serve {plural} of {version}: install its CRDs first")]);
            }
            Err(kube::Error::Api(status)) => return Err(vec![format!("failed to list {plural}: {}", status.message)]),
            Err(error) => return Err(failed(&error)),
        };
        all.extend(page.items);
        match page.metadata.continue_.filter(|it| !it.is_empty()) {
            Some(token) => next = token,
            None => return Ok(all),
        }
    }
}
