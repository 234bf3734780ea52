//! Writes what machine-controller-manager has written by a stage: as a Go client does, by updates of whole objects.

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams},
};
use nodewright_api::{Machine, MachineSet, annotations, finalizers, labels};
use nodewright_e2e_cloud::CreateVm;
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, objects::ENVIRONMENT_LABEL, waits::is_ready};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::stages::{self, Extra, Stage};

/// The name of the process whose updates these are.
const MANAGER: &str = "machine-controller";
/// How often an update is made again if another client, such as a kubelet, was faster.
const CONFLICTS: usize = 20;

/// A Machine at a stage.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) stage: Stage,
    pub(super) name: String,
    pub(super) uid: String,
    /// The VM's provider ID, if there is or was one.
    pub(super) vm: Option<String>,
}

impl Left {
    /// Brings a new Machine of the set to a stage.
    pub(super) async fn write(env: &Environment, set: &MachineSet, stage: Stage) -> TestResult<Self> {
        let random: String = std::iter::repeat_with(fastrand::lowercase).take(5).collect();
        let name = format!("{}-{}-{random}", set.name_any(), stage.name);
        Self::written(env, set, stage, &name).await.map_err(|failure| failure.and(&format!("while {name} was written")))
    }

    async fn written(env: &Environment, set: &MachineSet, stage: Stage, name: &str) -> TestResult<Self> {
        let api = machines(env);
        let machine = api.create(&by(MANAGER), &machine_of(set, stage, name)?).await?;
        let mut left = Self { stage, name: name.to_owned(), uid: machine.uid().unwrap_or_default(), vm: None };
        if stage.has_finalizer {
            let finalizers = json!([finalizers::MACHINE_CONTROLLER_MANAGER]);
            put(&api, name, |it| it["metadata"]["finalizers"] = finalizers.clone()).await?;
        }
        if stage.extra == Some(Extra::Token) {
            create_token(env, name).await?;
        }
        left.make_vm(env).await?;
        left.link(env).await?;
        left.sync_node(env).await?;
        left.delete(env).await?;
        left.drain(env).await?;
        left.tear_down(env).await?;
        Ok(left)
    }

    /// Makes a VM as machine-controller-manager's driver does: the tags name the Machine, and no token does.
    async fn make_vm(&mut self, env: &Environment) -> TestResult {
        if self.stage.vm == stages::Vm::None {
            return Ok(());
        }
        let tag = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut order = CreateVm {
            name: self.name.clone(),
            token: format!("left-{}", self.name),
            tags: BTreeMap::from([tag("cluster", env.namespace()), tag("machine", &self.name)]),
            ..CreateVm::default()
        };
        order.node.labels = BTreeMap::from([tag(ENVIRONMENT_LABEL, env.namespace())]);
        // A VM that is deleted at once has no Node.
        let never_joins = [stages::Vm::Booting, stages::Vm::Gone].contains(&self.stage.vm);
        let never_joins = never_joins && self.stage.node == stages::Node::Unseen;
        order.boot_seconds = never_joins.then_some(3_600.0);
        let vm = env.cloud().create(&order).await?;
        self.vm = Some(vm.provider_id);
        Ok(())
    }

    fn vm_id(&self) -> TestResult<&str> {
        let id = self.vm.as_deref().and_then(|id| id.rsplit('/').next());
        id.ok_or_else(|| Failure::new(format!("{} has no VM", self.name)))
    }

    async fn link(&self, env: &Environment) -> TestResult {
        let (Some(id), true) = (&self.vm, self.stage.is_linked) else { return Ok(()) };
        let linked = |machine: &mut Value| {
            machine["metadata"]["labels"][labels::NODE] = json!(self.name);
            machine["metadata"]["annotations"][annotations::MACHINE_PRIORITY] = json!("3");
            machine["spec"]["providerID"] = json!(id);
        };
        put(&machines(env), &self.name, linked).await.map(drop)
    }

    /// The Node gets label, annotation and finalizer, and the Machine the Node's conditions with its status.
    async fn sync_node(&self, env: &Environment) -> TestResult {
        let (api, stage) = (nodes(env), self.stage);
        if stage.node != stages::Node::Unseen {
            let is_up = async || Ok(api.get_opt(&self.name).await?.is_some_and(|node| is_ready(&node)));
            env.wait_for(&format!("node {}", self.name), is_up).await?;
        }
        if !matches!(stage.node, stages::Node::Unseen | stages::Node::Joined) {
            let named = |node: &mut Value| {
                node["metadata"]["labels"][labels::MACHINE_NAME] = json!(self.name);
                let applied = r#"{"metadata":{},"spec":{}}"#;
                node["metadata"]["annotations"][annotations::LAST_APPLIED_ANNOTATIONS_LABELS_TAINTS] = json!(applied);
            };
            put(&api, &self.name, named).await?;
            self.set_node_finalizers(env, &[finalizers::NODE]).await?;
        }
        self.write_status(env, if stage.is_deleted { ("Running", None) } else { (stage.phase, stage.operation) }).await
    }

    async fn set_node_finalizers(&self, env: &Environment, names: &[&str]) -> TestResult {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": names}}));
        nodes(env).patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn write_status(
        &self,
        env: &Environment,
        (phase, operation): (&str, Option<stages::Operation>),
    ) -> TestResult {
        if operation.is_none() && !self.stage.is_deleted {
            return Ok(());
        }
        let node = nodes(env).get_opt(&self.name).await?.filter(|_| self.stage.node != stages::Node::Unseen);
        let conditions = node.and_then(|node| node.status?.conditions);
        let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let [kind, state, text, code] = operation.unwrap_or(["Create", "Successful", "", ""]);
        let mut last = json!({"type": kind, "state": state, "lastUpdateTime": now});
        last["description"] = text.replace("{name}", &self.name).into();
        if !code.is_empty() {
            last["errorCode"] = code.into();
        }
        let mut current = json!({"phase": phase, "lastUpdateTime": now});
        if phase == "Pending" {
            current["timeoutActive"] = true.into();
        }
        let status = |machine: &mut Value| {
            machine["status"]["currentStatus"] = current.clone();
            machine["status"]["lastOperation"] = last.clone();
            if let Some(conditions) = &conditions {
                machine["status"]["conditions"] = json!(conditions);
            }
        };
        put_status(&machines(env), &self.name, status).await.map(drop)
    }

    async fn delete(&self, env: &Environment) -> TestResult {
        if !self.stage.is_deleted {
            return Ok(());
        }
        if self.stage.extra == Some(Extra::ForceLabel) {
            put(&machines(env), &self.name, |it| it["metadata"]["labels"][labels::FORCE_DELETION] = json!("True"))
                .await?;
        }
        machines(env).delete(&self.name, &DeleteParams::default()).await?;
        self.write_status(env, (self.stage.phase, self.stage.operation)).await
    }

    /// What a drain does until it is stopped.
    async fn drain(&self, env: &Environment) -> TestResult {
        if matches!(self.stage.extra, Some(Extra::Pods | Extra::ForceLabel)) {
            let pods: Api<Pod> = Api::namespaced(env.target_client(), env.namespace());
            for index in 0..2 {
                pods.create(&PostParams::default(), &self.pod(index)?).await?;
            }
            pods.evict(&format!("{}-0", self.name), &EvictParams::default()).await?;
        }
        if self.stage.extra == Some(Extra::Attachment) {
            let attachment = json!({"metadata": {"name": self.name}, "spec": {"attacher": "left.e2e.nodewright.dev",
                "nodeName": self.name, "source": {"persistentVolumeName": format!("{}-disk", self.name)}}});
            let attachments: Api<VolumeAttachment> = Api::all(env.target_client());
            attachments.create(&PostParams::default(), &serde_json::from_value(attachment)?).await?;
            let volumes = json!([{"name": format!("kubernetes.io/csi/left^{}", self.name), "devicePath": ""}]);
            put_status(&nodes(env), &self.name, |node| node["status"]["volumesAttached"] = volumes.clone()).await?;
        }
        if !matches!(self.stage.node, stages::Node::Cordoned | stages::Node::Freed) {
            return Ok(());
        }
        put(&nodes(env), &self.name, |node| node["spec"]["unschedulable"] = true.into()).await?;
        let now = jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let condition = json!({"type": "Terminating", "status": "True", "reason": "ScaleDown", "lastHeartbeatTime": now,
            "message": "Machine Controller is scaling down machine", "lastTransitionTime": now});
        let terminating = |node: &mut Value| {
            if let Some(all) = node["status"]["conditions"].as_array_mut() {
                all.retain(|it| it["type"] != "Terminating");
                all.push(condition.clone());
            }
        };
        put_status(&nodes(env), &self.name, terminating).await.map(drop)
    }

    fn pod(&self, index: usize) -> TestResult<Pod> {
        let pod = json!({"metadata": {"name": format!("{}-{index}", self.name)}, "spec": {"nodeName": self.name,
            "terminationGracePeriodSeconds": 5, "containers": [{"name": "main", "image": "none"}]}});
        Ok(serde_json::from_value(pod)?)
    }

    /// The VM and the Node as they are when machine-controller-manager is stopped.
    async fn tear_down(&self, env: &Environment) -> TestResult {
        match self.stage.vm {
            stages::Vm::Stopped => {
                env.cloud().kill(self.vm_id()?).await?;
                let is_silent = async || Ok(!is_ready(&nodes(env).get(&self.name).await?));
                env.wait_for(&format!("node {} to be silent", self.name), is_silent).await?;
            }
            stages::Vm::Leaving | stages::Vm::Gone => {
                env.cloud().delete(self.vm_id()?).await?;
            }
            stages::Vm::None | stages::Vm::Booting | stages::Vm::Running => {}
        }
        if self.stage.vm == stages::Vm::Gone {
            let id = self.vm_id()?;
            env.wait_for("the end of a VM", async || Ok(env.cloud().get(id).await?.is_none())).await?;
        }
        match self.stage.node {
            stages::Node::Deleting => self.delete_node(env).await,
            stages::Node::Freed => self.set_node_finalizers(env, &[]).await,
            stages::Node::Gone => {
                self.set_node_finalizers(env, &[]).await?;
                self.delete_node(env).await
            }
            stages::Node::Unseen | stages::Node::Joined | stages::Node::Synced | stages::Node::Cordoned => Ok(()),
        }
    }

    async fn delete_node(&self, env: &Environment) -> TestResult {
        nodes(env).delete(&self.name, &DeleteParams::default()).await?;
        Ok(())
    }
}

pub(super) fn machines(env: &Environment) -> Api<Machine> {
    Api::namespaced(env.client(), env.namespace())
}

pub(super) fn nodes(env: &Environment) -> Api<Node> {
    Api::all(env.target_client())
}

pub(super) fn by(manager: &str) -> PostParams {
    PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() }
}

fn machine_of(set: &MachineSet, stage: Stage, name: &str) -> TestResult<Machine> {
    let owner = json!({"apiVersion": nodewright_api::API_VERSION, "kind": "MachineSet", "name": set.name_any(),
        "uid": set.uid(), "controller": true, "blockOwnerDeletion": true});
    let mut machine = json!({
        "metadata": {"name": name, "labels": set.spec.template.metadata.labels, "ownerReferences": [owner]},
        "spec": set.spec.template.spec,
    });
    if stage.extra == Some(Extra::Attachment) {
        machine["spec"]["drainTimeout"] = "1s".into();
    }
    Ok(serde_json::from_value(machine)?)
}

/// The token's id is made from the end of the Machine's name, as machine-controller-manager makes it.
async fn create_token(env: &Environment, machine: &str) -> TestResult {
    let letters = machine.bytes().skip(machine.len() - 5).take(3);
    let id = letters.map(|letter| format!("{letter:02x}")).collect::<Vec<_>>().concat();
    let expiration = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_mins(20))?.to_string();
    let token = json!({
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "description": format!("A bootstrap token for machine {machine:?} generated by machine-controller-manager."),
            "token-id": id, "token-secret": "abcdefghijklmnop", "expiration": expiration,
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
        },
    });
    let secrets: Api<Secret> = Api::namespaced(env.target_client(), "kube-system");
    secrets.create(&by(MANAGER), &serde_json::from_value(token)?).await?;
    Ok(())
}

/// Reads an object, changes it, and puts the whole back.
pub(super) async fn put<K>(api: &Api<K>, name: &str, edit: impl Fn(&mut Value)) -> TestResult<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    for _ in 0..CONFLICTS {
        let edited = edited(api, name, &edit).await?;
        if let Some(done) = unless_conflict(api.replace(name, &by(MANAGER), &edited).await)? {
            return Ok(done);
        }
    }
    Err(Failure::new(format!("{name} is written all the time")))
}

/// The same for the status of the object.
async fn put_status<K>(api: &Api<K>, name: &str, edit: impl Fn(&mut Value)) -> TestResult<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    for _ in 0..CONFLICTS {
        let edited = edited(api, name, &edit).await?;
        if let Some(done) = unless_conflict(api.replace_status(name, &by(MANAGER), &edited).await)? {
            return Ok(done);
        }
    }
    Err(Failure::new(format!("the status of {name} is written all the time")))
}

async fn edited<K>(api: &Api<K>, name: &str, edit: &impl Fn(&mut Value)) -> TestResult<K>
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let mut object = serde_json::to_value(api.get(name).await?)?;
    edit(&mut object);
    Ok(serde_json::from_value(object)?)
}

fn unless_conflict<K>(result: kube::Result<K>) -> TestResult<Option<K>> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        result => Ok(result.map(Some)?),
    }
}
