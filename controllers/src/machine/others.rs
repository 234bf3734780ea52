//! Deletes what a provider lists for a Machine, except the VM that it shares with another one.

use std::collections::BTreeMap;

use nodewright_api::Code;
use nodewright_driver::{Class, Driver, DriverError, ListedVm, MachineRequest, OrphanRequest};
use nodewright_runtime::leadership::Clock;

use super::calls::Outcome;
use crate::shared::{indexes::instance_id, mcm_metrics::DriverCalls};

/// A driver whose calls are recorded.
#[derive(Clone, Copy)]
pub(super) struct Recorded<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) calls: &'a DriverCalls,
    pub(super) clock: &'a dyn Clock,
}

impl Recorded<'_> {
    async fn list(&self, class: Class) -> Result<BTreeMap<String, ListedVm>, DriverError> {
        self.calls.measure("list_machine", self.clock, self.driver.list(class)).await
    }

    async fn delete_orphan(&self, orphan: OrphanRequest) -> Result<(), DriverError> {
        self.calls.measure("delete_machine", self.clock, self.driver.delete_orphan(orphan)).await
    }
}

/// Deletes each VM by its id: a driver that takes another Machine's VM for this one's would delete that by the name. `NotFound` once
/// the provider lists none, and `Done` until then. A VM that was made for another Machine of the name stays; so does one of which
/// nothing says for whom it was made, while there are other Machines of the name.
pub(super) async fn delete(
    driver: Recorded<'_>,
    machine: &MachineRequest,
    namesakes: impl AsyncFnOnce() -> Result<Vec<String>, DriverError>,
) -> Outcome {
    let listed = match driver.list(machine.class.clone()).await {
        Ok(listed) => listed,
        // Of a list it says nothing of the VMs.
        Err(error) if error.code == Code::NotFound => {
            return Outcome::Failed(DriverError { code: Code::Unavailable, ..error });
        }
        Err(error) => return Outcome::Failed(error),
    };
    let shared = machine.provider_id.as_deref().map(instance_id);
    let is_other = |id: &str, vm: &ListedVm| vm.machine == machine.name && Some(instance_id(id)) != shared;
    let mut others: Vec<_> = listed.into_iter().filter(|(id, vm)| is_other(id, vm)).collect();
    others.retain(|(_, vm)| vm.owner_uid.is_none() || machine.owns(vm.owner_uid.as_deref()));
    if others.iter().any(|(_, vm)| vm.owner_uid.is_none()) {
        match namesakes().await {
            Ok(namesakes) if namesakes.is_empty() => {}
            Ok(_) => others.retain(|(_, vm)| vm.owner_uid.is_some()),
            Err(error) => return Outcome::Failed(error),
        }
    }
    if others.is_empty() {
        return Outcome::Failed(DriverError::new(Code::NotFound, "the provider lists no other VM of the machine"));
    }
    for (provider_id, _) in others.into_iter().filter(|(_, vm)| !vm.is_deleting) {
        let other = OrphanRequest { provider_id, machine: machine.name.clone(), class: machine.class.clone() };
        match driver.delete_orphan(other).await {
            // It went meanwhile.
            Err(error) if error.code == Code::NotFound => {}
            // That a driver cannot delete by an id says nothing of the VM.
            Err(error) if error.code == Code::Unimplemented => {
                return Outcome::Failed(DriverError { code: Code::Unavailable, ..error });
            }
            Err(error) => return Outcome::Failed(error),
            Ok(()) => {}
        }
    }
    Outcome::Done
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use futures::{
        FutureExt,
        future::{BoxFuture, ready},
    };
    use jiff::Timestamp;
    use nodewright_api::RawJson;
    use nodewright_driver::{Instance, Result, SecretText};
    use nodewright_observability::metrics::Metrics;
    use nodewright_runtime::leadership::tokio_clock;
    use parking_lot::Mutex;

    use super::*;
    use crate::testing::class;

    /// A provider that lists these VMs, and notes which are deleted.
    struct Listing {
        vms: Result<BTreeMap<String, ListedVm>>,
        answer: Result<()>,
        deleted: Mutex<Vec<(String, String)>>,
    }

    impl Driver for Listing {
        fn name(&self) -> &'static str {
            "listing"
        }
        fn validate(&self, _: &RawJson) -> BoxFuture<'static, Option<Vec<(String, String)>>> {
            ready(None).boxed()
        }
        fn identity(&self) -> Vec<&str> {
            vec![]
        }
        fn deadline(&self) -> Duration {
            Duration::from_secs(1)
        }
        fn consistency(&self) -> Duration {
            Duration::ZERO
        }
        fn create(&self, _: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
            unreachable!()
        }
        fn delete(&self, _: MachineRequest) -> BoxFuture<'static, Result<Option<String>>> {
            unreachable!("it might delete the VM that is shared")
        }
        fn status(&self, _: MachineRequest) -> BoxFuture<'static, Result<Instance>> {
            unreachable!()
        }
        fn list(&self, _: Class) -> BoxFuture<'static, Result<BTreeMap<String, ListedVm>>> {
            ready(self.vms.clone()).boxed()
        }
        fn delete_orphan(&self, orphan: OrphanRequest) -> BoxFuture<'static, Result<()>> {
            self.deleted.lock().push((orphan.provider_id, orphan.machine));
            ready(self.answer.clone()).boxed()
        }
    }

    fn sharing() -> MachineRequest {
        MachineRequest {
            name: "m".to_owned(),
            namespace: "n".to_owned(),
            uid: "u".to_owned(),
            adopted_uid: None,
            provider_id: Some("p:///shared".to_owned()),
            is_proven: true,
            last_known_state: String::new(),
            class: class(),
            user_data: SecretText::default(),
            node_template: Arc::default(),
            traceparent: None,
        }
    }

    fn delete_of(driver: &Listing, namesakes: Result<Vec<String>>) -> Outcome {
        delete_counted(driver, &DriverCalls::default(), namesakes)
    }

    fn delete_counted(driver: &Listing, calls: &DriverCalls, namesakes: Result<Vec<String>>) -> Outcome {
        let clock = tokio_clock(Timestamp::UNIX_EPOCH);
        let driver = Recorded { driver, calls, clock: clock.as_ref() };
        delete(driver, &sharing(), async || namesakes).now_or_never().unwrap()
    }

    fn deleted(vms: &[(&str, &str)], going: &[&str], answer: Result<()>) -> (Outcome, Vec<(String, String)>) {
        let listed = vms.iter().map(|(id, machine)| {
            let is_deleting = going.contains(id);
            ((*id).to_owned(), ListedVm { is_deleting, ..ListedVm::of(*machine) })
        });
        let driver = Listing { vms: Ok(listed.collect()), answer, deleted: Mutex::default() };
        let outcome = delete_of(&driver, Ok(vec![]));
        (outcome, driver.deleted.into_inner())
    }

    #[test]
    fn what_is_listed_for_the_machine_goes_and_the_shared_vm_stays() {
        let vms = [("p:///shared", "m"), ("p:///own", "m"), ("p:///other", "other")];
        let own = vec![("p:///own".to_owned(), "m".to_owned())];
        assert_eq!(deleted(&vms, &[], Ok(())), (Outcome::Done, own.clone()));
        assert_eq!(deleted(&vms, &["p:///own"], Ok(())), (Outcome::Done, vec![]), "it goes already");
        let none = deleted(&[("p:///shared", "m"), ("p:///other", "other")], &[], Ok(()));
        assert_eq!((none.0.error().map(|error| error.code), none.1), (Some(Code::NotFound), vec![]));
        let refusal = DriverError::new(Code::PermissionDenied, "no");
        assert_eq!(deleted(&vms, &[], Err(refusal.clone())), (Outcome::Failed(refusal), own.clone()));
        let gone = Err(DriverError::new(Code::NotFound, "gone"));
        assert_eq!(deleted(&vms, &[], gone), (Outcome::Done, own.clone()), "the next list says what there is");
        let unable = Err(DriverError::new(Code::Unimplemented, "by id"));
        let (outcome, asked) = deleted(&vms, &[], unable);
        assert_eq!((outcome.error().map(|error| error.code), asked), (Some(Code::Unavailable), own), "it runs on");
    }

    #[test]
    fn vms_of_other_machines_of_the_name_stay() {
        let delete_with = |owner: Option<&str>, namesakes: &[&str]| {
            let vm = ListedVm { owner_uid: owner.map(str::to_owned), ..ListedVm::of("m") };
            let vms = Ok(BTreeMap::from([("p:///own".to_owned(), vm)]));
            let driver = Listing { vms, answer: Ok(()), deleted: Mutex::default() };
            let namesakes = namesakes.iter().map(|&name| name.to_owned()).collect();
            delete_of(&driver, Ok(namesakes));
            driver.deleted.into_inner().len()
        };
        let table =
            [(Some("u"), &["b/m"] as &[&str], 1), (Some("another"), &[], 0), (None, &[], 1), (None, &["b/m"], 0)];
        for (owner, namesakes, deleted) in table {
            assert_eq!(delete_with(owner, namesakes), deleted, "{owner:?} {namesakes:?}");
        }
        let vms = Ok(BTreeMap::from([("p:///own".to_owned(), ListedVm::of("m"))]));
        let driver = Listing { vms, answer: Ok(()), deleted: Mutex::default() };
        let forbidden = || Err(DriverError::new(Code::PermissionDenied, "no"));
        let outcome = delete_of(&driver, forbidden());
        assert_eq!((outcome, driver.deleted.into_inner().len()), (Outcome::Failed(forbidden().unwrap_err()), 0));
    }

    #[test]
    fn a_list_that_fails_does_not_say_that_there_is_none() {
        for (code, expected) in [(Code::NotFound, Code::Unavailable), (Code::Internal, Code::Internal)] {
            let vms = Err(DriverError::new(code, "no list"));
            let driver = Listing { vms, answer: Ok(()), deleted: Mutex::default() };
            let outcome = delete_of(&driver, Ok(vec![]));
            assert_eq!(outcome.error().map(|error| error.code), Some(expected));
        }
    }

    #[test]
    fn its_calls_are_those_of_mcms_metrics() {
        let metrics = Metrics::new();
        let calls = DriverCalls::register(&metrics, "p");
        let vms = || Ok(BTreeMap::from([("p:///own".to_owned(), ListedVm::of("m"))]));
        for answer in [Ok(()), Err(DriverError::new(Code::PermissionDenied, "no"))] {
            delete_counted(&Listing { vms: vms(), answer, deleted: Mutex::default() }, &calls, Ok(vec![]));
        }
        let text = metrics.encode().unwrap();
        for (series, value) in [
            (r#"request_duration_seconds_count{provider="p",operation="list_machine"}"#, 2),
            (r#"request_duration_seconds_count{provider="p",operation="delete_machine"}"#, 1),
            (r#"requests_failed_total{provider="p",operation="delete_machine",error_code="7"}"#, 1),
        ] {
            let line = format!("mcm_cloud_api_driver_{series} {value}");
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
