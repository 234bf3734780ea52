//! Makes the calls: lists VMs, and deletes orphans after a last look at the API server.

use std::sync::Arc;

use nodewright_api::Machine;
use nodewright_driver::{Driver, OrphanRequest};
use nodewright_runtime::{
    leadership::Clock,
    object::{is_deleting, namespace},
    request::{Call as ApiCall, Connection, FailureClass, RequestError},
    without_managed_fields,
};
use serde_json::value::RawValue;

use super::{
    OrphanMetrics,
    calls::{Call, Orphan, Outcome, Request, SweepResult},
};
use crate::shared::{
    indexes::instance_id,
    lists::{items, machines_named},
    mcm_metrics::DriverCalls,
    ownership::vm_id,
};

/// Makes the calls of the controller.
pub(crate) struct Caller {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) control: Connection,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) calls: DriverCalls,
    pub(crate) metrics: OrphanMetrics,
}

impl Caller {
    pub(crate) async fn perform(self: Arc<Self>, call: Call) -> Outcome {
        match call {
            Call::List(request) => self.list(&request).await,
            Call::Sweep(request, orphans) => {
                let mut results = vec![];
                for orphan in orphans.iter() {
                    let result = self.sweep(&request, orphan).await;
                    self.metrics.swept(&result);
                    results.push((orphan.provider_id.clone(), result));
                }
                Outcome::Swept(results)
            }
        }
    }

    async fn list(&self, request: &Request) -> Outcome {
        let list = self.driver.list(request.class.clone());
        match self.calls.measure("list_machine", self.clock.as_ref(), list).await {
            Ok(listed) => {
                let listed = Arc::new(listed);
                self.metrics.listed(&request.key, listed.clone());
                Outcome::Listed(listed)
            }
            Err(error) => Outcome::Failed { throttled: error.throttled, message: error.to_string() },
        }
    }

    async fn sweep(&self, request: &Request, orphan: &Orphan) -> SweepResult {
        match self.is_needed(request, orphan).await {
            Ok(true) => return SweepResult::Kept,
            Ok(false) => {}
            Err(why) => return SweepResult::Failed(why),
        }
        let (provider_id, machine) = (orphan.provider_id.clone(), orphan.machine.clone());
        let deleted = self.driver.delete_orphan(OrphanRequest { provider_id, machine, class: request.class.clone() });
        // As machine-controller-manager, whose drivers measure each deletion.
        let deleted = self.calls.measure("delete_machine", self.clock.as_ref(), deleted).await;
        deleted.map_or_else(|error| SweepResult::Failed(error.to_string()), |()| SweepResult::Deleted)
    }

    /// Whether a Machine has the VM, or may. The provider has shown the VM before this read began, and a Machine exists before
    /// its VM: a new one is found.
    async fn is_needed(&self, request: &Request, orphan: &Orphan) -> Result<bool, String> {
        let machines = self.machines(&orphan.machine).await.map_err(|error| {
            let remedy = match error.class {
                // A machine of that name in another namespace would have the VM.
                FailureClass::Forbidden => {
                    "; allow to list machines in all namespaces, as the ClusterRole nodewright-machines does"
                }
                _ => "",
            };
            format!("failed to look for machine {}: {error}{remedy}", orphan.machine)
        })?;
        let is_free = |machine: &Machine| {
            namespace(machine) == &*request.key.namespace
                && !is_deleting(machine)
                && orphan.keeps.as_deref().is_some_and(|keeps| {
                    vm_id(machine).is_none_or(|own| instance_id(own) == instance_id(keeps))
                        && instance_id(keeps) != instance_id(&orphan.provider_id)
                })
        };
        Ok(!machines.iter().all(|machine| machine.as_ref().is_some_and(is_free)))
    }

    /// The Machines of a name, in all namespaces; `None` for one that cannot be decoded.
    async fn machines(&self, name: &str) -> Result<Vec<Option<Machine>>, RequestError> {
        let answer = self.control.send(ApiCall::get(machines_named(name))).await?;
        let Ok(Some(machines)) = items::<Box<RawValue>>(answer.body()) else { return Ok(vec![None]) };
        Ok(machines.into_iter().map(|item| without_managed_fields::from_slice(item.get().as_bytes()).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use futures::{
        FutureExt,
        future::{BoxFuture, ready},
    };
    use http::HeaderValue;
    use nodewright_api::{Code, RawJson};
    use nodewright_driver::{Class, DriverError, Instance, ListedVm, MachineRequest, Result as DriverResult};
    use nodewright_observability::metrics::Metrics;
    use nodewright_runtime::{
        cache::Stores,
        leadership::{Leadership, tokio_clock},
        object::ObjectRef,
    };
    use nodewright_testing::api_server::{ApiServer, Fault, Match};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        shared::CONTROL,
        testing::{NOW, class},
    };

    /// A provider that answers deletions of orphans with this.
    struct Deleting(DriverResult<()>);

    impl Driver for Deleting {
        fn name(&self) -> &'static str {
            "simulated"
        }
        fn validate(&self, _: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
            unreachable!()
        }
        fn identity(&self) -> Vec<&str> {
            vec![]
        }
        fn deadline(&self) -> Duration {
            Duration::from_secs(30)
        }
        fn consistency(&self) -> Duration {
            Duration::ZERO
        }
        fn create(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
            unreachable!()
        }
        fn delete(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Option<String>>> {
            unreachable!()
        }
        fn status(&self, _: MachineRequest) -> BoxFuture<'static, DriverResult<Instance>> {
            unreachable!()
        }
        fn list(&self, _: Class) -> BoxFuture<'static, DriverResult<BTreeMap<String, ListedVm>>> {
            unreachable!()
        }
        fn delete_orphan(&self, _: OrphanRequest) -> BoxFuture<'static, DriverResult<()>> {
            ready(self.0.clone()).boxed()
        }
    }

    /// A caller of this API server, to whose deletions the driver gives this answer.
    fn caller(server: &ApiServer, answer: DriverResult<()>, metrics: &Metrics) -> Arc<Caller> {
        let driver = Arc::new(Deleting(answer));
        let agent = HeaderValue::from_static("test");
        Arc::new(Caller {
            control: Connection::new(server.client(), agent, Leadership::unlimited(), 1, Arc::new(Metrics::new())),
            clock: tokio_clock(NOW.parse().unwrap()),
            calls: DriverCalls::register(metrics, driver.name()),
            metrics: OrphanMetrics::register(metrics, Stores::default(), driver.as_ref()),
            driver,
        })
    }

    /// What a sweep makes of VM `p:///1` of Machine `m`, where the Machine has this VM of several.
    async fn sweep(caller: &Arc<Caller>, keeps: Option<&str>) -> SweepResult {
        let (provider_id, keeps) = ("p:///1".to_owned(), keeps.map(str::to_owned));
        let orphan = Orphan { provider_id, machine: "m".to_owned(), keeps, explained: true };
        let request = Request {
            key: ObjectRef::new(CONTROL, "default", "class"),
            class: class(),
            deadline: Duration::from_secs(30),
        };
        let outcome = caller.clone().perform(Call::Sweep(Arc::new(request), Arc::new([orphan]))).await;
        let Outcome::Swept(mut results) = outcome else { unreachable!("{outcome:?}") };
        results.remove(0).1
    }

    /// The series of deletions after a sweep of an orphan, to which the driver gives this answer.
    async fn swept(answer: DriverResult<()>) -> Vec<String> {
        let metrics = Metrics::new();
        sweep(&caller(&ApiServer::new(), answer, &metrics), None).await;
        let text = metrics.encode().unwrap();
        let ours =
            text.lines().filter(|line| line.contains("orphan_vm_deletions_total{") || line.starts_with("mcm_cloud"));
        ours.filter(|line| !line.contains("_bucket{") && !line.contains("_sum{")).map(str::to_owned).collect()
    }

    /// The last look before a deletion. One of several VMs of a Machine goes only if the Machine surely has another one.
    #[tokio::test]
    async fn a_vm_is_deleted_only_if_no_machine_may_have_it() {
        let machine = |namespace: &str, spec: Value| {
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m", "namespace": namespace},
                "spec": spec})
        };
        let with_vm = |namespace, id: &str| machine(namespace, json!({"class": {"name": "class"}, "providerID": id}));
        let new = machine("default", json!({"class": {"name": "class"}}));
        let mut deleting = with_vm("default", "p:///2");
        deleting["metadata"]["deletionTimestamp"] = NOW.into();
        deleting["metadata"]["finalizers"] = json!(["a/b"]);
        let unreadable = machine("default", json!({"class": 7}));
        let other = {
            let mut other = with_vm("default", "p:///1");
            other["metadata"]["name"] = "other".into();
            other
        };
        let (own, second) = (with_vm("default", "p:///1"), with_vm("default", "p:///2"));
        let foreign = with_vm("team", "p:///2");
        let table = [
            ("no Machine", vec![], None, true),
            ("a Machine of another name", vec![&other], None, true),
            ("a Machine", vec![&new], None, false),
            ("a Machine with that VM", vec![&own], None, false),
            ("one with another VM", vec![&second], Some("p:///2"), true),
            ("one with that VM, where another was believed", vec![&own], Some("p:///2"), false),
            ("one that has yet to record its VM", vec![&new], Some("p:///2"), true),
            ("one with another VM, which is this one", vec![&own], Some("p:///1"), false),
            ("one that is being deleted", vec![&deleting], Some("p:///2"), false),
            ("one of another namespace", vec![&foreign], Some("p:///2"), false),
            ("two", vec![&second, &foreign], Some("p:///2"), false),
            ("one that cannot be decoded", vec![&unreadable], Some("p:///2"), false),
        ];
        for (what, machines, keeps, is_deleted) in table {
            let server = ApiServer::new();
            for machine in machines {
                let metadata = &machine["metadata"];
                let namespace = metadata["namespace"].as_str().unwrap();
                let machines = format!("/apis/machine.sapcloud.io/v1alpha1/namespaces/{namespace}/machines");
                server.seed(&machines, machine.clone());
                // A seed is never being deleted.
                server.change(&format!("{machines}/{}", metadata["name"].as_str().unwrap()), |seeded| {
                    seeded["metadata"]["deletionTimestamp"] = metadata["deletionTimestamp"].clone();
                });
            }
            let result = sweep(&caller(&server, Ok(()), &Metrics::new()), keeps).await;
            assert_eq!(result == SweepResult::Deleted, is_deleted, "{what}: {result:?}");
        }
    }

    #[tokio::test]
    async fn a_vm_stays_while_machines_cannot_be_read() {
        for (status, has_remedy) in [(403, true), (500, false)] {
            let server = ApiServer::new();
            server.fail_always(Match::verb("list").path_end("/machines"), Fault::Status(status));
            let result = sweep(&caller(&server, Ok(()), &Metrics::new()), None).await;
            let SweepResult::Failed(why) = result else { unreachable!("{result:?}") };
            assert!(why.starts_with("failed to look for machine m: "), "{why}");
            assert_eq!(why.contains("nodewright-machines"), has_remedy, "{why}");
        }
    }

    fn results(deleted: u8, kept: u8, failed: u8) -> [String; 3] {
        [("deleted", deleted), ("kept", kept), ("failed", failed)]
            .map(|(result, count)| format!(r#"machine_orphan_vm_deletions_total{{result="{result}"}} {count}"#))
    }

    /// machine-controller-manager's drivers count each deletion, no matter what asks for it.
    #[tokio::test]
    async fn a_deletion_of_an_orphan_is_a_call_of_the_driver() {
        let call = r#"provider="simulated",operation="delete_machine""#;
        let series = swept(Ok(())).await;
        let duration = format!("mcm_cloud_api_driver_request_duration_seconds_count{{{call}}} 1");
        assert!(
            series.contains(&duration) && series.iter().all(|line| !line.contains("requests_failed")),
            "{series:#?}"
        );
        assert!(results(1, 0, 0).iter().all(|line| series.contains(line)), "{series:#?}");

        let series = swept(Err(DriverError::new(Code::Unavailable, "x"))).await;
        let failure = format!(r#"mcm_cloud_api_driver_requests_failed_total{{{call},error_code="14"}} 1"#);
        assert!(series.contains(&failure), "{series:#?}");
        assert!(results(0, 0, 1).iter().all(|line| series.contains(line)), "{series:#?}");
    }
}
