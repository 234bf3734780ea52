//! Node configuration that changes much within seconds: rendering must not take the time of the renewal of the lease.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
    core::ApiResource,
};
use nodewright_api::machine_config::{API_VERSION, MachineConfig, MachineConfigPool, ROLE, WORKER};
use nodewright_e2e_lab::devcluster::NAMESPACE;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Measured, target::Target};

/// The label by which the pools select, and how many pools there are: each renders the same. More make fewer objects, as one is rendered after the other.
const LABEL: &str = "hostile";
const POOLS: usize = 1;
/// How many MachineConfigs come and go.
const CONFIGS: usize = 205;
/// How many stay, with how many files of how many bytes: together nearly as much as an object may have.
const LARGE: usize = 10;
const FILES: usize = 20;
const BYTES: usize = 4_400;
/// How many requests of ours wait for their answers at once.
const AT_ONCE: usize = 8;
/// Time between two deletions, each of which makes another rendering.
const DELETION_INTERVAL: Duration = Duration::from_millis(60);
/// How many rendered objects so many seconds of changes may make.
const OBJECTS: usize = 3;
const SECONDS: u64 = 8;
/// After ten seconds without a renewal a manager gives up. It renews every two seconds.
const LONGEST_GAP: Duration = Duration::from_secs(6);
const LEASES: [&str; 3] = ["machine-controller-manager", "machine-controller", "nodewright-machine-config"];
/// How long the pool may take to follow.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn starving(target: &mut Target) -> Measured {
    let cluster = Pool { client: target.client() };
    let result = cluster.attack().await;
    let cleaned = cluster.clean().await;
    result.and_then(|text| cleaned.map(|()| text))
}

struct Pool {
    client: Client,
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn file(path: &str, bytes: usize) -> Value {
    json!({"path": path, "mode": 420, "contents": {"source": format!("data:,{}", "x".repeat(bytes))}})
}

fn config(name: &str, files: &[Value]) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "MachineConfig", "metadata": {"name": name, "labels": {ROLE: LABEL}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}}})
}

/// One that stays.
fn large(number: usize) -> Value {
    let files: Vec<_> = (0..FILES).map(|place| file(&format!("/etc/large-{number}-{place}"), BYTES)).collect();
    config(&format!("hostile-large-{number}"), &files)
}

/// One that comes and goes.
fn small(number: usize) -> Value {
    config(&name(number), &[file(&format!("/etc/file-{number}"), 20)])
}

fn name(number: usize) -> String {
    format!("hostile-{number:03}")
}

fn pool_name(number: usize) -> String {
    format!("hostile-{number}")
}

/// How many rendered objects changes that took so long may make.
fn allowed(changes: Duration) -> usize {
    POOLS * OBJECTS * usize::try_from(changes.as_secs() / SECONDS + 1).unwrap_or(usize::MAX)
}

impl Pool {
    async fn attack(&self) -> Measured {
        let longest = Mutex::new(Duration::ZERO);
        tokio::select! {
            result = self.change(&longest) => result,
            () = self.watch_leases(&longest) => Err("the leases are not watched any more".to_owned()),
        }
    }

    async fn change(&self, longest: &Mutex<Duration>) -> Measured {
        let roles = json!([{"key": ROLE, "operator": "In", "values": [WORKER, LABEL]}]);
        let spec = json!({"machineConfigSelector": {"matchExpressions": roles}});
        for number in 0..POOLS {
            self.post::<MachineConfigPool>(json!({"apiVersion": API_VERSION, "kind": "MachineConfigPool",
                "metadata": {"name": pool_name(number)}, "spec": spec}))
                .await?;
        }
        let begun = Instant::now();
        let all = (0..LARGE).map(large).chain((0..CONFIGS).map(small));
        let all = stream::iter(all.map(|config| self.post::<MachineConfig>(config)));
        all.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let creating = begun.elapsed();
        self.wait_for_targets().await?;
        let created = self.rendered().await?.len();

        let begun = Instant::now();
        let configs = Api::<MachineConfig>::all(self.client.clone());
        for number in 0..CONFIGS {
            configs.delete(&name(number), &DeleteParams::default()).await.map_err(failed)?;
            sleep(DELETION_INTERVAL).await;
        }
        let deleting = begun.elapsed();
        // What is under way ends.
        sleep(Duration::from_secs(5)).await;
        let deleted = self.rendered().await?.len() - created;
        let longest = *longest.lock();
        let text = format!(
            "{POOLS} pools, {CONFIGS} MachineConfigs made in {:.1} s: {created} rendered objects; deleted in {:.1} s: {deleted} more; at \
             most {:.1} s between renewals of a lease",
            creating.as_secs_f64(),
            deleting.as_secs_f64(),
            longest.as_secs_f64()
        );
        let is_bounded = created <= allowed(creating) && deleted <= allowed(deleting);
        if is_bounded && longest <= LONGEST_GAP { Ok(text) } else { Err(text) }
    }

    /// Waits until all pools have a target with the last MachineConfig among its sources.
    async fn wait_for_targets(&self) -> Result<(), String> {
        let (begun, pools) = (Instant::now(), Api::<MachineConfigPool>::all(self.client.clone()));
        loop {
            let pools = pools.list(&ListParams::default()).await.map_err(failed)?;
            let has_all = |pool: &&MachineConfigPool| pool.spec.configuration.source.len() == LARGE + CONFIGS;
            let done = pools.iter().filter(has_all).count();
            if done >= POOLS {
                return Ok(());
            }
            if begun.elapsed() > TIMEOUT {
                let seconds = TIMEOUT.as_secs();
                return Err(format!("{done} of {POOLS} pools have a target of all MachineConfigs after {seconds} s"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The names of the rendered objects of the pools.
    async fn rendered(&self) -> Result<Vec<String>, String> {
        let all = Api::<MachineConfig>::all(self.client.clone());
        let all = all.list_metadata(&ListParams::default()).await.map_err(failed)?;
        let names = all.into_iter().map(|config| config.name_any());
        Ok(names.filter(|name| name.starts_with("rendered-hostile-")).collect())
    }

    async fn post<K: kube::Resource<DynamicType = ()>>(&self, object: Value) -> Result<(), String> {
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        let object = serde_json::from_value(object).map_err(failed)?;
        api.create(&PostParams::default(), &object).await.map(drop).map_err(failed)
    }

    async fn clean(&self) -> Result<(), String> {
        let (now, configs) = (DeleteParams::default(), Api::<MachineConfig>::all(self.client.clone()));
        // Its rendered objects go with it, by garbage collection.
        let pools = Api::<MachineConfigPool>::all(self.client.clone());
        for number in 0..POOLS {
            pools.delete(&pool_name(number), &now).await.map_err(failed)?;
        }
        let of_pools = ListParams::default().labels(&format!("{ROLE}={LABEL}"));
        configs.delete_collection(&now, &of_pools).await.map(drop).map_err(failed)
    }

    /// Notes the longest time since a renewal of one of the leases.
    async fn watch_leases(&self, longest: &Mutex<Duration>) {
        let leases = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        loop {
            for name in LEASES {
                let Ok(lease) = leases.get(name).await else { continue };
                let Some(renewed) = lease.spec.and_then(|spec| spec.renew_time) else { continue };
                let since = Duration::try_from(Timestamp::now().duration_since(renewed.0)).unwrap_or_default();
                let mut longest = longest.lock();
                *longest = since.max(*longest);
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
