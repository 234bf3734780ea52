//! A control plane, a cloud and controllers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::Client;

use nodewright_e2e_cloud::CloudClient;
use serde_json::json;

use crate::{
    control_plane::{AuditLevel, Component, ControlPlane, ControlPlaneError, ControlPlaneOptions, parse_manifest},
    devcluster::{
        DevclusterError,
        cloud::{Cloud, Provider},
        controllers::{Controllers, Surroundings},
        directory::Endpoints,
        manager::ManagerProcess,
    },
    ec2::{Account, account::REGION},
    process::{Process, ProcessError, executables, repository, write_private},
};

/// How long a manager that was asked to end may take, until a new one is refused.
pub(crate) const MANAGER_END_TIMEOUT: Duration = Duration::from_secs(3);
/// The namespace of the custom resources.
pub const NAMESPACE: &str = "default";

/// How a devcluster is started.
#[derive(Clone, Debug, Default)]
pub struct DevclusterOptions {
    /// The directory of its files. `None`: a temporary directory, which is removed.
    pub directory: Option<PathBuf>,
    /// More flags for each process of the controllers.
    pub manager_flags: Vec<String>,
    /// More flags for the cloud.
    pub cloud_flags: Vec<String>,
    /// Start no controller manager and no scheduler.
    pub bare: bool,
    /// How long a node may be silent until it counts as unhealthy. `None`: Kubernetes' default.
    pub node_monitor_grace_period: Option<Duration>,
    /// What the audit log holds of each request.
    pub audit_level: AuditLevel,
    /// Whose VMs it has.
    pub provider: Provider,
    /// Whether VMs are real, with kubelets that run pods. Needs root and some packages.
    pub real_nodes: bool,
}

/// A running devcluster, by default with Nodewright's manager. Dropping it kills its processes; [`Devcluster::stop`] ends them
/// gracefully.
#[derive(Debug)]
pub struct Devcluster<C = ManagerProcess> {
    // Fields are dropped in this order.
    controllers: C,
    cloud: Cloud,
    control_plane: ControlPlane,
}

impl<C: Controllers> Devcluster<C> {
    /// Starts everything, installs the CRDs, and waits until all is ready. Calls `report` after each step.
    pub async fn start(options: &DevclusterOptions, report: impl Fn(String)) -> Result<Self, DevclusterError> {
        report("starting the control plane".to_owned());
        let plane_options = ControlPlaneOptions {
            directory: options.directory.clone(),
            controller_manager: !options.bare,
            scheduler: !options.bare,
            node_monitor_grace_period: options.node_monitor_grace_period,
            node_network: options.real_nodes,
            audit_level: options.audit_level,
            ..ControlPlaneOptions::default()
        };
        let plane = ControlPlane::start(plane_options).await?;
        report(format!("the control plane is ready at {}", plane.server()));
        let cloud = Cloud::start(options.provider, &plane, &options.cloud_flags).await?;
        report(cloud.description());
        for folder in C::crds().await? {
            plane.apply_file(folder).await?;
        }
        let flags = [cloud.manager_flags(), options.manager_flags.clone()].concat();
        let surroundings = Surroundings { control_plane: &plane, cloud_url: cloud.url(), flags: &flags };
        let controllers = C::start(surroundings).await?;
        report(controllers.description());
        Ok(Self { controllers, cloud, control_plane: plane })
    }

    /// Applies `config/samples` with kubectl. For real nodes, the user data is that with which they join, and there is a
    /// Deployment besides, whose pods they run. For EC2, the class is one of its VMs.
    pub async fn apply_samples(&self) -> Result<(), DevclusterError> {
        let rendered =
            self.control_plane.kubectl([Path::new("kustomize"), &repository().join("config/samples")]).await?;
        let user_data = self.control_plane.node_network().map(|_| self.control_plane.user_data(&[]));
        let file = self.control_plane.directory().join("samples.json");
        write_private(&file, &samples(&rendered, user_data.as_deref(), self.cloud.account())?)?;
        let apply = ["apply", "--server-side", "--namespace", NAMESPACE, "--filename"].map(Path::new);
        Ok(self.control_plane.kubectl(apply.into_iter().chain([file.as_path()])).await.map(drop)?)
    }

    /// The control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// A client of the API server, as administrator.
    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// A client of the fake cloud. EC2 does not understand it.
    pub fn cloud(&self) -> CloudClient {
        CloudClient::new(self.cloud.url())
    }

    /// The controllers.
    pub fn controllers(&mut self) -> &mut C {
        &mut self.controllers
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        Endpoints {
            kubeconfig: self.control_plane.kubeconfig_path(),
            namespace: NAMESPACE.to_owned(),
            cloud_url: self.cloud.url().to_owned(),
            audit_log: self.control_plane.audit_log(),
            binaries: self.control_plane.binaries().to_owned(),
            products: executables(),
        }
    }

    /// The process ids of running processes, by name.
    pub fn pids(&mut self) -> BTreeMap<String, u32> {
        let mut pids: BTreeMap<_, _> =
            self.control_plane.pids().into_iter().map(|(component, pid)| (component.name().to_owned(), pid)).collect();
        let cloud = self.cloud.processes().into_iter().filter_map(|process| {
            let pid = if process.ended().is_none() { process.pid() } else { None };
            Some((process.name().to_owned(), pid?))
        });
        pids.extend(cloud);
        let controllers = self.controllers.processes().into_iter();
        pids.extend(controllers.filter_map(|(name, pid)| Some((name.to_owned(), pid?))));
        pids
    }

    /// Starts controllers that ended again with these flags. Fails if all run. `program` overrides the executable of Nodewright.
    pub async fn start_controllers(
        &mut self,
        flags: &[String],
        program: Option<PathBuf>,
    ) -> Result<(), DevclusterError> {
        let flags = [self.cloud.manager_flags(), flags.to_vec()].concat();
        let surroundings =
            Surroundings { control_plane: &self.control_plane, cloud_url: self.cloud.url(), flags: &flags };
        self.controllers.start_ended(surroundings, program).await
    }

    /// Starts processes that ended by themselves again, except the controllers. Calls `report` for each.
    pub async fn restart_ended(&mut self, report: impl Fn(String)) -> Result<(), DevclusterError> {
        for process in self.cloud.processes() {
            if let Some(status) = process.ended() {
                report(format!("{} ended with {status}; starting it again", process.name()));
                process.start()?;
            }
        }
        if let Err(ControlPlaneError::Process(ProcessError::Exited { name, status, .. })) = self.control_plane.check() {
            report(format!("{name} ended with {status}; starting it again"));
            let components =
                [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler];
            if let Some(component) = components.into_iter().find(|component| component.name() == name) {
                self.control_plane.start_again(component).await?;
                report(format!("{name} is ready again"));
            }
        }
        Ok(())
    }

    /// Ends everything. Nodewright's manager finishes what it does and releases its leases.
    pub async fn stop(mut self) -> Result<(), DevclusterError> {
        let ended = self.controllers.terminate().await;
        self.cloud.processes().into_iter().for_each(Process::kill);
        drop(self);
        ended.map_err(DevclusterError::from)
    }
}

/// The samples. With user data, nodes are real: they get that user data, and Pods. With an account, VMs are those of EC2.
///
/// Classes name the namespace of their Secret: machine-controller-manager does not look for it in their own.
fn samples(rendered: &str, user_data: Option<&str>, account: Option<&Account>) -> Result<String, DevclusterError> {
    let mut objects = parse_manifest(rendered, "config/samples")?;
    for object in &mut objects {
        match (object.types.as_ref().map(|types| types.kind.as_str()), user_data) {
            (Some("MachineClass"), _) => {
                object.data["secretRef"]["namespace"] = NAMESPACE.into();
                if let Some(account) = account {
                    make_class_of_ec2(&mut object.data, account);
                }
            }
            (Some("Secret"), Some(user_data)) => object.data["stringData"]["userData"] = user_data.into(),
            (Some("Secret"), None) if account.is_some() => object.data["stringData"] = Account::secret(),
            _ => {}
        }
    }
    if user_data.is_some() {
        objects.extend(parse_manifest(include_str!("workload.yaml"), "workload.yaml")?);
    }
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())
}

fn make_class_of_ec2(class: &mut serde_json::Value, account: &Account) {
    class["provider"] = "AWS".into();
    class["providerSpec"] = account.provider_spec("demo");
    let machine_type = class["providerSpec"]["machineType"].clone();
    let template = &mut class["nodeTemplate"];
    template["instanceType"] = machine_type;
    template["region"] = REGION.into();
    template["zone"] = format!("{REGION}a").into();
}

impl Devcluster {
    /// The manager.
    pub fn manager(&mut self) -> &mut ManagerProcess {
        &mut self.controllers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: &str = "
kind: MachineClass
apiVersion: machine.sapcloud.io/v1alpha1
metadata: {name: a}
provider: simulated
providerSpec: {size: small}
nodeTemplate: {instanceType: small, region: local, zone: local-a}
secretRef: {name: s}
---
kind: Secret
apiVersion: v1
metadata: {name: s}
stringData: {userData: boot}
";

    fn objects(account: Option<&Account>) -> serde_json::Value {
        serde_json::from_str(&samples(SAMPLES, None, account).unwrap()).unwrap()
    }

    #[test]
    fn samples_for_ec2_have_its_class_and_its_keys() {
        let account = Account { image: "ami-1".to_owned(), subnet: "subnet-1".to_owned(), group: "sg-1".to_owned() };
        let objects = objects(Some(&account));
        let (class, secret) = (&objects["items"][0], &objects["items"][1]);
        assert_eq!((&class["provider"], &class["providerSpec"]["ami"]), (&json!("AWS"), &json!("ami-1")));
        assert_eq!(class["nodeTemplate"]["instanceType"], class["providerSpec"]["machineType"]);
        assert!(secret["stringData"]["providerAccessKeyId"].is_string(), "{secret}");
    }

    #[test]
    fn other_samples_stay_as_they_are_and_name_the_namespace_of_their_secret() {
        let objects = objects(None);
        assert_eq!(objects["items"][0]["secretRef"], json!({"name": "s", "namespace": NAMESPACE}));
        assert_eq!(objects["items"][0]["provider"], "simulated");
        assert_eq!(objects["items"][1]["stringData"], json!({"userData": "boot"}));
    }
}
