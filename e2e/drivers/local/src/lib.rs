//! The driver `local`: a machine is a container of a cluster's own node image, beside the nodes that kind has made.
//!
//! The container runs its user data once, as a VM does at its first boot; they are a script that calls `kubeadm join`. It can be
//! killed, started again and deleted like a VM, and keeps its disk while it is off.
//!
//! A container has the name of its Machine, which is also its host name, and so the name of its Node. It belongs to a Machine
//! by its labels for cluster, Machine name and the Machine's UID. The kubelet's `--provider-id` has to be `local:///` and that name: user data say
//! so with the placeholder `<<MACHINE_NAME>>`.
//!
//! # Guarantees
//! * Docker makes one container of a name, so there is never a second one for a Machine.
//! * A container starts only after its user data are in it. One that was never started is no VM yet: `status` does not find it,
//!   `create` completes it, `delete` deletes it.
//! * Only containers with the labels of the Machine's cluster, name and UID are touched.
//!
//! # Caveats
//! * Docker forgets deleted containers: a `create` that is late by more than [`Driver::consistency`] leaves a container, which
//!   never starts.
//! * Two clusters with machines of the same name cannot share a computer; the second one is refused. So is a name that is too
//!   long for a host.

mod docker;
mod spec;
#[cfg(test)]
mod tests;
mod user_data;

use std::{collections::BTreeMap, path::Path, time::Duration};

use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, ready},
};
use jiff::Timestamp;
use nodewright_api::{Code, RawJson};
use nodewright_driver::{
    Class, Driver, DriverError, Instance, ListedVm, MachineRequest, Mismatch, OrphanRequest, Result,
};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;

use self::{
    docker::{Container, Docker, NewContainer},
    spec::ProviderSpec,
};

/// The name of the provider in `MachineClass.provider`.
pub const PROVIDER: &str = "local";
/// The beginning of each provider id.
pub const PROVIDER_ID_PREFIX: &str = "local:///";
const LABEL_CLUSTER: &str = "nodewright.dev/cluster";
const LABEL_MACHINE: &str = "nodewright.dev/machine";
const LABEL_UID: &str = "nodewright.dev/machine-uid";

/// Linux has no longer host names: docker creates such a container, and can never start it.
const LONGEST_HOST_NAME: usize = 64;

/// A call makes up to four requests, which take a second or two; a computer that is busy or short of memory is slow.
const DEADLINE: Duration = Duration::from_mins(1);
/// A request that was dropped may still be on its way through the daemon.
const CONSISTENCY: Duration = Duration::from_secs(5);

/// The driver. See the [crate](self).
#[derive(Clone, Debug)]
pub struct LocalDriver {
    docker: Docker,
}

impl LocalDriver {
    /// A driver for the docker daemon behind this socket, for a process with this leadership. It sends nothing yet.
    pub fn new(socket: &Path, leadership: &Leadership) -> Self {
        Self { docker: Docker::new(socket, leadership) }
    }

    async fn create_container(self, request: MachineRequest) -> Result<Instance> {
        let spec = ProviderSpec::read(&request.class.provider_spec)?;
        let name = &request.name;
        if name.len() > LONGEST_HOST_NAME {
            let message = format!(
                "machine {name} cannot be a container: its name would be the host name, which has at most \
                 {LONGEST_HOST_NAME} bytes; shorten the name of its MachineDeployment or MachineSet"
            );
            return Err(DriverError::new(Code::InvalidArgument, message));
        }
        match self.docker.create(name, &node(&spec, &request)).await {
            Err(error) if error.code == Code::NotFound => {
                let message =
                    format!("{error}; the image and the network of MachineClass {:?} must exist", request.class.name);
                return Err(DriverError::new(Code::FailedPrecondition, message));
            }
            Err(error) if error.code != Code::AlreadyExists => return Err(error),
            _ => {}
        }
        let container = self.docker.inspect(name).await?.ok_or_else(|| {
            DriverError::new(Code::Unavailable, format!("container {name} has disappeared while it was created"))
        })?;
        let owner = Owner { cluster: spec.cluster, machine: name };
        let proven = owner.prove(&container).and_then(|()| owned(&container, &request));
        proven.map_err(|error| DriverError { code: Code::AlreadyExists, mismatch: None, ..error })?;
        match container.state.status.as_str() {
            "created" => {
                self.docker.upload(&container.id, user_data::archive(&request.user_data.0)?).await?;
                self.docker.start(&container.id).await?;
            }
            "removing" | "dead" => {
                let message =
                    format!("container {name} of this machine is being deleted; a new VM needs a new machine");
                return Err(DriverError::new(Code::FailedPrecondition, message));
            }
            _ => {}
        }
        Ok(instance(name, container.label(LABEL_UID)))
    }

    async fn delete_container(self, request: MachineRequest) -> Result<()> {
        let owner = Owner::of(&request)?;
        let is_claimed = request.provider_id.as_deref() == Some(provider_id(owner.machine).as_str());
        if let Some(own) = self.docker.inspect(owner.machine).await?.filter(|own| owner.prove(own).is_ok()) {
            match owned(&own, &request) {
                // By its id: a name may be another container's by now.
                Ok(()) => self.docker.remove(&own.id).await?,
                Err(error) if is_claimed => return Err(error),
                Err(_) => {}
            }
        }
        self.claimed(&owner, &request).await.map(drop)
    }

    async fn find(self, request: MachineRequest) -> Result<Instance> {
        let owner = Owner::of(&request)?;
        let own = self.docker.inspect(owner.machine).await?.filter(|own| owner.prove(own).is_ok());
        if let Some(own) = own.filter(|own| own.state.status != "created") {
            return Ok(instance(owner.machine, own.label(LABEL_UID)));
        }
        self.claimed(&owner, &request).await?;
        let message = format!("there is no container for machine {} in cluster {}", owner.machine, owner.cluster);
        Err(DriverError::new(Code::NotFound, message))
    }

    /// Fails if the container that the Machine names is another's.
    async fn claimed(&self, owner: &Owner<'_>, request: &MachineRequest) -> Result<()> {
        let Some(id) = request.provider_id.as_deref() else { return Ok(()) };
        self.docker.inspect(container_name(id)?).await?.map_or(Ok(()), |container| owner.prove(&container))
    }

    async fn list_containers(self, class: Class) -> Result<BTreeMap<String, ListedVm>> {
        let cluster = spec::cluster(&class.provider_spec)?;
        let containers = self.docker.list(LABEL_CLUSTER, &cluster).await?;
        let listed = |mut container: docker::Listed| {
            let machine = container.labels.remove(LABEL_MACHINE)?;
            let (owner_uid, created) =
                (container.labels.remove(LABEL_UID), Timestamp::from_second(container.created).ok());
            let is_deleting = container.state == "removing";
            Some((provider_id(&machine), ListedVm { machine, owner_uid, created, is_deleting }))
        };
        Ok(containers.into_iter().filter_map(listed).collect())
    }

    async fn delete_listed(self, orphan: OrphanRequest) -> Result<()> {
        let owner = Owner { cluster: spec::cluster(&orphan.class.provider_spec)?, machine: &orphan.machine };
        match self.docker.inspect(container_name(&orphan.provider_id)?).await? {
            Some(container) => {
                owner.prove(&container)?;
                self.docker.remove(&container.id).await
            }
            None => Ok(()),
        }
    }
}

fn container_name(provider_id: &str) -> Result<&str> {
    provider_id.strip_prefix(PROVIDER_ID_PREFIX).filter(|name| !name.is_empty()).ok_or_else(|| {
        let message =
            format!("provider id {provider_id:?} is not of this provider; it must begin {PROVIDER_ID_PREFIX}");
        DriverError::new(Code::InvalidArgument, message).with_mismatch(Mismatch::Machine)
    })
}

/// A container as kind runs its nodes: see `pkg/cluster/internal/providers/docker/provision.go` of kind.
fn node(spec: &ProviderSpec, request: &MachineRequest) -> NewContainer {
    let labels = [(LABEL_CLUSTER, &spec.cluster), (LABEL_MACHINE, &request.name), (LABEL_UID, &request.uid)];
    NewContainer {
        hostname: request.name.clone(),
        image: spec.image.clone(),
        tty: true,
        labels: labels.map(|(key, value)| (key, value.clone())).into(),
        volumes: json!({"/var": {}}),
        host_config: json!({
            "NetworkMode": spec.network,
            "Privileged": true,
            "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
            "CgroupnsMode": "private",
            "Init": false,
            "Tmpfs": {"/tmp": "", "/run": ""},
            "Binds": ["/lib/modules:/lib/modules:ro"],
            // It comes back with the daemon. One that was killed stays off.
            "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 1},
        }),
    }
}

struct Owner<'a> {
    cluster: String,
    machine: &'a str,
}

impl<'a> Owner<'a> {
    fn of(request: &'a MachineRequest) -> Result<Self> {
        Ok(Self { cluster: spec::cluster(&request.class.provider_spec)?, machine: &request.name })
    }

    /// Checks that the labels of a container prove that it is this Machine's. The error has the labels.
    fn prove(&self, container: &Container) -> Result<()> {
        let (cluster, machine) = (container.label(LABEL_CLUSTER), container.label(LABEL_MACHINE));
        let mismatch = match (cluster == Some(&self.cluster), machine == Some(self.machine)) {
            (true, true) => return Ok(()),
            (false, true) => Mismatch::Cluster,
            (_, false) => Mismatch::Machine,
        };
        let quoted = |label: Option<&str>| label.map_or_else(|| "(none)".to_owned(), |label| format!("{label:?}"));
        let message = format!(
            "container {} is not this machine's: its labels say cluster {}, machine {}, and not cluster {:?}, machine {:?}",
            container.id,
            quoted(cluster),
            quoted(machine),
            self.cluster,
            self.machine,
        );
        Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(mismatch))
    }
}

fn provider_id(machine: &str) -> String {
    format!("{PROVIDER_ID_PREFIX}{machine}")
}

/// Checks that a container was made for this Machine, or for one whose VM it has adopted. One without the label has to be proven.
fn owned(container: &Container, request: &MachineRequest) -> Result<()> {
    let made_for = container.label(LABEL_UID);
    if request.owns(made_for) || made_for.is_none() && request.is_proven {
        return Ok(());
    }
    let message = format!(
        "container {} has the labels of machine {} and was made for the one with UID {}, not for this one with UID {}; delete the \
         Machine: the container stays",
        container.id,
        request.name,
        made_for.unwrap_or("(none)"),
        request.uid
    );
    Err(DriverError::new(Code::FailedPrecondition, message).with_mismatch(Mismatch::Machine))
}

fn instance(machine: &str, owner_uid: Option<&str>) -> Instance {
    let owner_uid = owner_uid.map(str::to_owned);
    Instance { provider_id: provider_id(machine), node_name: machine.to_owned(), owner_uid, ..Instance::default() }
}

impl Driver for LocalDriver {
    fn name(&self) -> &'static str {
        PROVIDER
    }

    fn validate(&self, provider_spec: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
        ready(Some(spec::validate(provider_spec))).boxed()
    }

    fn identity(&self) -> Vec<&str> {
        vec!["cluster"]
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn consistency(&self) -> Duration {
        CONSISTENCY
    }

    fn create(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().create_container(request).boxed()
    }

    fn delete(&self, request: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
        self.clone().delete_container(request).map_ok(|()| None).boxed()
    }

    fn status(&self, request: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
        self.clone().find(request).boxed()
    }

    fn list(&self, class: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
        self.clone().list_containers(class).boxed()
    }

    fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
        self.clone().delete_listed(orphan).boxed()
    }
}
