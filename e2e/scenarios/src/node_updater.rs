//! A stand-in for the program on Nodes that updates them in place, as Gardener's node agent does.
//!
//! It follows machine-controller-manager's protocol: once the condition `InPlaceUpdate` of a selected Node permits it, it updates the
//! Node, and says by a label what became of that. It also takes the taint from updated Nodes that keeps Pods away until their critical
//! components run, as Gardener's resource manager does.
//!
//! # Guarantees
//! * What it counts follows from every change of the Nodes since its start: see [`History`].
//!
//! # Caveats
//! * While it waits to answer a Node, it does not see that the answer to give was changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use nodewright_api::{annotations, conditions, labels, reasons::node as reasons, taints};
use nodewright_e2e_cloud::CloudClient;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    Environment, History, TestResult,
    visits::{PerNode, Program, Running, reboot, record_nodes},
};

/// What becomes of the update of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It succeeds.
    Succeed,
    /// It fails, for this reason.
    Fail(String),
    /// The program is silent, until it is to answer something else.
    Never,
    /// The program says that it has succeeded, and then that it has failed.
    SucceedThenFail,
    /// It takes this long, and succeeds.
    Late(Duration),
    /// The Node is not ready for a while, and the update succeeds.
    Reboot,
    /// Somebody deletes the Node object.
    Vanish,
}

/// The programs on all Nodes of an environment. Dropping it ends them.
pub struct NodeUpdater(Running<Shared>);

struct Shared {
    api: Api<Node>,
    cloud: CloudClient,
    nodes: History<Node>,
    answers: Mutex<Answers>,
}

struct Answers {
    answers: PerNode<Answer>,
    /// The Nodes whose last update has succeeded.
    updated: BTreeSet<String>,
}

impl NodeUpdater {
    /// Starts it. All updates succeed by default.
    pub async fn start(env: &Environment) -> TestResult<Self> {
        let (api, nodes) = (Api::all(env.target_client()), record_nodes(env).await?);
        let answers = PerNode { by_default: Answer::Succeed, by_node: BTreeMap::new() };
        let answers = Mutex::new(Answers { answers, updated: BTreeSet::new() });
        Ok(Self(Running::start(Shared { api, cloud: env.cloud().clone(), nodes, answers })))
    }

    /// Sets the answer of all Nodes that have none of their own.
    pub fn by_default(&self, answer: Answer) {
        self.0.answers.lock().answers.by_default = answer;
    }

    /// Sets the answer of a Node.
    pub fn on(&self, node: &str, answer: Answer) {
        self.0.answers.lock().answers.by_node.insert(node.to_owned(), answer);
    }

    /// The Nodes that the program was asked to update, in this order, each as often as it was asked.
    pub fn updates(&self) -> TestResult<Vec<String>> {
        let (mut asked, mut updates) = (BTreeSet::new(), vec![]);
        for change in self.0.nodes.changes()? {
            let name = change.object.name_any();
            if change.gone || !is_asked(&change.object) {
                asked.remove(&name);
            } else if asked.insert(name.clone()) {
                updates.push(name);
            }
        }
        Ok(updates)
    }

    /// The maximum number of Nodes that were selected at once and not yet updated.
    pub fn most_at_once(&self) -> TestResult<usize> {
        let mut most = 0;
        self.0.nodes.states(0, |_, nodes| {
            most = most.max(nodes.values().filter(|node| is_being_updated(node)).count());
            Ok(())
        })?;
        Ok(most)
    }
}

/// Whether a Node has a label of updates in place with the value of those that are set or not.
pub fn is_labelled(node: &Node, key: &str) -> bool {
    node.labels().get(key).is_some_and(|value| value == labels::UPDATE_LABEL_VALUE)
}

/// Whether a Node is selected, and its program has not said that it has updated it.
pub fn is_being_updated(node: &Node) -> bool {
    let is_updated = node.labels().get(labels::UPDATE_RESULT).is_some_and(|result| result == labels::UPDATE_SUCCESSFUL);
    is_labelled(node, labels::SELECTED_FOR_UPDATE) && !is_updated
}

/// Whether a Node is cordoned.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// What of an update is on a Node: keys of labels and taints, and `unschedulable`.
pub fn marks(node: &Node) -> Vec<&'static str> {
    let keys = [labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE, labels::UPDATE_RESULT];
    let keys = keys.into_iter().filter(|key| node.labels().contains_key(*key));
    let tainted = [taints::PREFER_NO_SCHEDULE, taints::CRITICAL_COMPONENTS_NOT_READY];
    let tainted = tainted.into_iter().filter(|key| has_taint(node, key));
    keys.chain(tainted).chain(is_cordoned(node).then_some("unschedulable")).collect()
}

fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == key)
}

/// Whether the program on a Node is to update it, and has not answered.
fn is_asked(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_permitted = conditions.iter().any(|condition| {
        condition.type_ == conditions::node::IN_PLACE_UPDATE
            && condition.status == "True"
            && condition.reason.as_deref() == Some(reasons::READY_FOR_UPDATE)
    });
    let is_selected =
        [labels::CANDIDATE_FOR_UPDATE, labels::SELECTED_FOR_UPDATE].iter().all(|key| is_labelled(node, key));
    is_permitted && is_selected && !node.labels().contains_key(labels::UPDATE_RESULT)
}

impl Program for Shared {
    fn nodes(&self) -> &History<Node> {
        &self.nodes
    }

    fn is_due(&self, name: &str, node: &Node) -> bool {
        let answers = self.answers.lock();
        let is_updated = answers.updated.contains(name);
        (is_asked(node) && *answers.answers.of(name) != Answer::Never)
            || (is_updated && has_taint(node, taints::CRITICAL_COMPONENTS_NOT_READY))
    }

    async fn tend(&self, name: &str) -> TestResult {
        // The recorded Node may lack our last write.
        let Some(node) = self.api.get_opt(name).await? else { return Ok(()) };
        let (is_updated, answer) = {
            let answers = self.answers.lock();
            (answers.updated.contains(name), answers.answers.of(name).clone())
        };
        if is_asked(&node) {
            return self.answer(&node, answer).await;
        }
        if is_updated { self.open(node).await } else { Ok(()) }
    }
}

impl Shared {
    async fn answer(&self, node: &Node, answer: Answer) -> TestResult {
        let name = node.name_any();
        match answer {
            Answer::Never => Ok(()),
            Answer::Succeed => self.succeeded(&name).await,
            Answer::Fail(reason) => self.failed(&name, &reason).await,
            Answer::SucceedThenFail => {
                self.succeeded(&name).await?;
                self.failed(&name, "it has failed after all").await
            }
            Answer::Late(after) => {
                tokio::time::sleep(after).await;
                self.succeeded(&name).await
            }
            Answer::Reboot => {
                reboot(&self.cloud, &self.nodes, node, || true).await?;
                self.succeeded(&name).await
            }
            Answer::Vanish => Ok(self.api.delete(&name, &DeleteParams::default()).await.map(drop)?),
        }
    }

    async fn succeeded(&self, node: &str) -> TestResult {
        self.answers.lock().updated.insert(node.to_owned());
        self.say(node, &json!({"labels": {labels::UPDATE_RESULT: labels::UPDATE_SUCCESSFUL}})).await
    }

    async fn failed(&self, node: &str, reason: &str) -> TestResult {
        self.answers.lock().updated.remove(node);
        let metadata = json!({
            "labels": {labels::UPDATE_RESULT: labels::UPDATE_FAILED},
            "annotations": {annotations::UPDATE_FAILED_REASON: reason},
        });
        self.say(node, &metadata).await
    }

    async fn say(&self, node: &str, metadata: &Value) -> TestResult {
        let patch = Patch::Merge(json!({"metadata": metadata}));
        Ok(self.api.patch(node, &PatchParams::default(), &patch).await.map(drop)?)
    }

    /// Lets Pods start on an updated Node: its critical components run.
    async fn open(&self, mut node: Node) -> TestResult {
        if !has_taint(&node, taints::CRITICAL_COMPONENTS_NOT_READY) {
            return Ok(());
        }
        if let Some(all) = node.spec.as_mut().and_then(|spec| spec.taints.as_mut()) {
            all.retain(|taint| taint.key != taints::CRITICAL_COMPONENTS_NOT_READY);
        }
        // With the version that was read: it fails if the Node has changed.
        Ok(self.api.replace(&node.name_any(), &PostParams::default(), &node).await.map(drop)?)
    }
}
