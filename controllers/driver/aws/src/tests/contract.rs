//! The contract suite with moto's EC2.

use std::{
    collections::BTreeSet,
    env,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

use nodewright_driver_contract::{self as contract, Fixture, Hook, InvalidSpec, Outage};
use nodewright_driver_protocol::server::{self, Provider, Socket};
use nodewright_driver_remote::{Remote, RemoteDriver, Source};
use nodewright_e2e_lab::ec2::{
    self as ec2, Ec2, Moto, REJECTED_KEY,
    account::{ACCESS_KEY, REGION, SECRET_KEY},
};
use nodewright_runtime::leadership::Leadership;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    runtime::Handle,
    task::{JoinHandle, block_in_place},
};
use tokio_util::sync::CancellationToken;

use super::{
    moto::{Server, driver},
    *,
};
use crate::parameters::Action;

const PAGE: usize = 5;
/// What temporary credentials could break. The other rules take long, and do not depend on credentials.
const RULES_OF_CREDENTIALS: &[&str] = &[
    "create",
    "create_dropped",
    "delete",
    "list_whole",
    "silent_provider",
    "failing_provider",
    "no_secrets",
    "no_empty_errors",
    "no_blocking",
];
/// A role of moto's account.
const ROLE: &str = "arn:aws:iam::123456789012:role/machines";

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_contract_with_moto() {
    let Some(moto) = Server::start("the_driver_keeps_the_contract_with_moto").await else { return };
    let report = contract::run(&Account::open(&moto).await).await;
    report.assert_kept();
    assert_eq!(report.skipped(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_contract_over_the_wire() {
    let Some(moto) = Server::start("the_driver_keeps_the_contract_over_the_wire").await else { return };
    let wire = Some(Wire { folder: tempfile::tempdir().unwrap(), made: AtomicUsize::default() });
    let report = contract::run(&Account { wire, ..Account::open(&moto).await }).await;
    report.assert_kept();
    assert_eq!(report.skipped(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_keeps_the_contract_as_a_role() {
    let Some(moto) = Server::start("the_driver_keeps_the_contract_as_a_role").await else { return };
    let account = Account { role: Some(ROLE), ..Account::open(&moto).await };
    let report = contract::run_only(&account, |rule| RULES_OF_CREDENTIALS.contains(&rule)).await;
    report.assert_kept();
    assert_eq!(report.skipped(), Vec::<&str>::new());
}

/// The VM that a class with every field of moto's becomes, as EC2 shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_what_its_class_says() {
    let Some(moto) = Server::start("a_vm_is_what_its_class_says").await else { return };
    let account = Account::open(&moto).await;
    let mut class = account.class("c");
    let mut spec: Value = class.provider_spec.parse().unwrap();
    spec["srcAndDstChecksEnabled"] = json!(false);
    spec["instanceMetadataOptions"] = json!({"httpTokens": "required", "httpPutResponseHopLimit": 2});
    spec["blockDevices"] = json!([
        {"deviceName": "/root", "ebs": {"volumeSize": 50, "volumeType": "gp3"}},
        {"deviceName": "/dev/sdf", "ebs": {"volumeSize": 20, "volumeType": "gp2", "encrypted": true}},
    ]);
    class.provider_spec = RawJson::from(&spec);
    let driver = account.driver();
    let made = driver.create(machine("m", class.clone())).await.unwrap();
    assert!(made.uninitialized && made.node_name.ends_with(".eu-west-1.compute.internal"), "{made:?}");
    driver.initialize(machine("m", class.clone())).await.unwrap();
    assert!(!driver.status(machine("m", class)).await.unwrap().uninitialized);
    let shown = moto.moto().ask("ec2", "Action=DescribeInstances").await.unwrap();
    for part in [
        "<clientToken>uid-of-m</clientToken>",
        "<httpTokens>required</httpTokens>",
        "<httpPutResponseHopLimit>2<",
        "<deviceName>/dev/sda1</deviceName>",
        "<deviceName>/dev/sdf</deviceName>",
        "instance-profile/nodes</arn>",
        "<key>Name</key><value>m</value>",
        "<key>kubernetes.io/cluster/c</key><value>1</value>",
    ] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let volumes = moto.moto().ask("ec2", "Action=DescribeVolumes").await.unwrap();
    assert!(volumes.contains("<size>50</size>") && volumes.contains("<size>20</size>"), "{volumes}");
}

/// The variable with the driver that has machine-controller-manager's provider in it, as hack/mcm-provider.sh builds it.
const THEIRS: &str = "NODEWRIGHT_DRIVER_AWS_OF_MCM";

/// Checks that machine-controller-manager's provider does not pass, and why. One that is kept does not belong here.
const BROKEN_BY_THEIRS: [(&str, &str); 8] = [
    ("invalid_class", "it passes over unknown fields, and calls another type of a field Internal"),
    ("broken_class", "it checks the whole class in each call, also while it deletes"),
    (
        "create_again",
        "its token is a new one each time: a second creation makes a second VM. The manager looks for one first",
    ),
    ("create_after_restart", "its token is a new one each time"),
    ("several_vms", "with a provider id it deletes that VM, and leaves the others of the name"),
    ("other_clusters_vm", "what it does not list, its interface tells nothing of"),
    ("untagged_vm", "what it does not list, its interface tells nothing of"),
    ("orphan_of_others", "what it does not list, its interface tells nothing of"),
];

/// Checks that need what the interface of machine-controller-manager's providers lacks.
const NOT_IN_THEIR_INTERFACE: [(&str, &str); 4] = [
    ("other_uids_vm", "it has no token"),
    ("described", "it describes no VMs"),
    ("power", "it describes no VMs"),
    ("unowned", "it describes no VMs"),
];

/// machine-controller-manager's provider keeps what is not declared above.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the source of the provider: make test-aws-compare"]
async fn the_provider_of_machine_controller_manager_keeps_the_rest_of_the_contract() {
    let moto = Server::start("the contract of another driver").await.expect("make test-aws-compare names moto");
    let account = Account::open(&moto).await;
    let theirs = Some(Theirs::start(&account).await);
    let report = contract::run(&Account { theirs, ..account }).await;
    println!("{report}");
    assert_eq!(report.broken(), BROKEN_BY_THEIRS.map(|(check, _)| check));
    assert_eq!(report.skipped(), NOT_IN_THEIR_INTERFACE.map(|(check, _)| check));
}

/// A driver that others have written, as a process.
struct Theirs {
    folder: TempDir,
    process: Child,
    ec2: JoinHandle<()>,
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.ec2.abort();
    }
}

impl Theirs {
    async fn start(account: &Account) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ec2 = tokio::spawn(ec2::command::serve(listener, account.ec2.clone(), account.moto.clone()));
        let folder = tempfile::tempdir().unwrap();
        let process = Command::new(env::var(THEIRS).expect("make test-aws-compare names the driver"))
            .arg(format!("--socket={}", folder.path().join("driver.sock").display()))
            .args(["--stop-with-stdin", "--consistency=2s"])
            .env("AWS_ENDPOINT_URL", url)
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { folder, process, ec2 }
    }

    async fn driver(&self) -> RemoteDriver {
        let source = Source::Socket(self.folder.path().join("driver.sock"));
        Remote::start(source, &Leadership::unlimited()).unwrap().driver().await
    }
}

/// The sockets of drivers that are served by their protocol.
struct Wire {
    folder: TempDir,
    made: AtomicUsize,
}

impl Wire {
    async fn served(&self, driver: AwsDriver) -> RemoteDriver {
        let path = self.folder.path().join(self.made.fetch_add(1, Ordering::Relaxed).to_string());
        let provider = Provider { id_prefix: PROVIDER_ID_PREFIX.to_owned(), initializes: true };
        let socket = Socket::bind(&path).unwrap();
        tokio::spawn(server::serve(Arc::new(driver), provider, socket, CancellationToken::new()));
        let remote = Remote::start(Source::Socket(path), &Leadership::unlimited()).unwrap();
        remote.driver().await
    }
}

/// An account with a network.
struct Account {
    /// `None`: the driver is called in this process.
    wire: Option<Wire>,
    /// A driver in place of this crate's.
    theirs: Option<Theirs>,
    /// The role that the key of a class assumes, if any.
    role: Option<&'static str>,
    moto: Moto,
    ec2: Ec2,
    made: ec2::Account,
}

impl Account {
    async fn open(server: &Server) -> Self {
        let made = ec2::Account::open(server.moto()).await.unwrap();
        Self { wire: None, theirs: None, role: None, moto: server.moto().clone(), ec2: server.ec2(), made }
    }

    fn direct(&self) -> AwsDriver {
        driver(&self.ec2, self.moto.url(), PAGE)
    }

    fn class_with(&self, cluster: &str, key: &str) -> Class {
        let mut keys = vec![("providerAccessKeyId", key), ("providerSecretAccessKey", SECRET_KEY)];
        // The proxy refuses a key as EC2 does, and not as STS.
        keys.extend(self.role.filter(|_| key != REJECTED_KEY).map(|role| ("roleARN", role)));
        Class { secret: secret(&keys), ..contract::class(&self.made.provider_spec(cluster)) }
    }

    /// A request of the account's owner, who bypasses the driver.
    async fn ask<T: serde::de::DeserializeOwned>(&self, action: Action) -> std::result::Result<T, BoxError> {
        self.direct().client.call(&session(), &action).await.map_err(|refused| refused.error.into())
    }
}

fn outage_of(outage: Outage) -> ec2::Outage {
    match outage {
        Outage::Silent => ec2::Outage::Silent,
        Outage::Failing => ec2::Outage::Failing,
        Outage::Full => ec2::Outage::Full,
    }
}

fn session() -> Session {
    Session { region: REGION.to_owned(), source: crate::credentials::Source::of(&keys()).unwrap() }
}

impl Fixture for Account {
    fn driver(&self) -> Arc<dyn Driver> {
        if let Some(theirs) = &self.theirs {
            return Arc::new(block_in_place(|| Handle::current().block_on(theirs.driver())));
        }
        let driver = self.direct();
        match &self.wire {
            None => Arc::new(driver),
            Some(wire) => Arc::new(block_in_place(|| Handle::current().block_on(wire.served(driver)))),
        }
    }

    fn class(&self, cluster: &str) -> Class {
        self.class_with(cluster, ACCESS_KEY)
    }

    fn provider_id_prefix(&self) -> &'static str {
        PROVIDER_ID_PREFIX
    }

    fn invalid_specs(&self, cluster: &str) -> Vec<InvalidSpec> {
        let with = |path: &'static str, field: &str, value: Value| {
            let mut spec = self.made.provider_spec(cluster);
            spec[field] = value;
            InvalidSpec { path, spec: RawJson::from(&spec) }
        };
        vec![
            with("machineType", "machineType", json!([contract::SECRET])),
            with("networkInterfaces", "networkInterfaces", json!([])),
            with("blockDevices[0].ebs.volumeSize", "blockDevices", json!([{"ebs": {"volumeType": "gp3"}}])),
            with("password", "password", json!(contract::SECRET)),
            with("tags", "tags", json!({})),
        ]
    }

    fn rejected_class(&self, cluster: &str) -> Option<Class> {
        Some(self.class_with(cluster, REJECTED_KEY))
    }

    fn volume(&self) -> Option<(RawJson, String)> {
        let spec = json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}});
        Some((RawJson::from(&spec), "vol-1".to_owned()))
    }

    fn secrets(&self) -> Vec<String> {
        vec![SECRET_KEY.to_owned()]
    }

    fn eventual_timeout(&self) -> Duration {
        // What another driver does not do at all must not take long.
        Duration::from_secs(if self.theirs.is_some() { 20 } else { 60 })
    }

    fn list_size(&self) -> usize {
        2 * PAGE + 1
    }

    fn vms(&self) -> Hook<'_, BTreeSet<String>> {
        async {
            let all = self.moto.vms().await?;
            Ok(Some(all.iter().filter(|vm| !vm.is_gone()).map(|vm| provider_id(REGION, &vm.id)).collect()))
        }
        .boxed()
    }

    fn stop_vm(&self, id: &str) -> Hook<'_, ()> {
        let id = instance_id(REGION, id).unwrap().to_owned();
        async move {
            self.ask::<Terminated>(Action::new("StopInstances", "instance_stop").with("InstanceId.1", id)).await?;
            Ok(Some(()))
        }
        .boxed()
    }

    fn untagged_vm(&self) -> Hook<'_, String> {
        async {
            let run = Action::new("RunInstances", "instance_create")
                .with("ImageId", &self.made.image)
                .with("MinCount", 1)
                .with("MaxCount", 1);
            let made: Reservation = self.ask(run.with("SubnetId", &self.made.subnet)).await?;
            Ok(Some(provider_id(REGION, &made.instances_set.items[0].id)))
        }
        .boxed()
    }

    fn hide_next_vm(&self) -> Hook<'_, ()> {
        self.ec2.hide_next();
        ready(Ok(Some(()))).boxed()
    }

    fn begin_outage(&self, outage: Outage) -> Hook<'_, ()> {
        self.ec2.set_outage(Some(outage_of(outage)));
        ready(Ok(Some(()))).boxed()
    }

    fn end_outage(&self) -> Hook<'_, ()> {
        self.ec2.set_outage(None);
        ready(Ok(Some(()))).boxed()
    }
}
