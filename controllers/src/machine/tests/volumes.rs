//! Whose the volumes of a drain are: when the driver is asked, and what becomes of its answer.

use std::{cell::OnceCell, collections::BTreeSet};

use futures::{
    FutureExt,
    future::{pending, ready},
};
use http::HeaderValue;
use nodewright_api::RawJson;
use nodewright_driver::Result as DriverResult;
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{effect::Effect, leadership::Leadership, request::Connection};
use nodewright_testing::api_server::{ApiServer, Fault, Match};

use super::{
    terminate::{cordoned, dying},
    *,
};
use crate::machine::{volume_ids, volumes};

const VOLUMES: &str = "/api/v1/persistentvolumes";

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

/// A Machine that is being deleted. Its Node has a Pod without a volume, and for each of these volumes a Pod.
fn draining(volumes: &[&str]) -> Fixture {
    let pod = |name: &str| json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")}});
    let with_volume = |volume: &&str| {
        let mut pod = pod(volume);
        pod["spec"] = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]});
        pod
    };
    let pods: Vec<Value> = [pod("plain")].into_iter().chain(volumes.iter().map(with_volume)).collect();
    let mut fixture = fixture(dying()).node(cordoned()).pods(&pods);
    fixture.snapshot.driver.knows_volumes = true;
    fixture.attached(volumes)
}

impl Fixture {
    fn attached(mut self, volumes: &[&str]) -> Self {
        let claims = volumes.iter().map(|&it| (("default".to_owned(), it.to_owned()), it.to_owned()));
        let here = volumes.iter().map(|volume| {
            let source = json!({"persistentVolumeName": volume});
            let attachment = json!({"metadata": {"name": volume}, "spec": {"nodeName": "n", "source": source}});
            Arc::new(serde_json::from_value(attachment).unwrap())
        });
        let attached = Attached { claims: claims.collect(), here: here.collect(), elsewhere: vec![] };
        self.snapshot.drain.volumes = Volumes::Known(attached);
        self
    }

    /// The question about these volumes has been put so many seconds ago.
    fn asked(mut self, volumes: &[&str], seconds_ago: i64) -> Self {
        let call = volumes::question(&Scope::of(&self.snapshot, &self.moment(), &OnceCell::new()), names(volumes));
        self.outcomes.begin(&call, self.now - SignedDuration::from_secs(seconds_ago));
        self
    }

    /// The question about these volumes has this answer.
    fn reported(mut self, volumes: &[&str], outcome: Outcome) -> Self {
        self = self.asked(volumes, 5);
        let call = self.call(Verb::VolumeIds);
        self.outcomes.finish(&call, self.now, outcome);
        self
    }
}

fn foreign(volumes: &[&str]) -> Outcome {
    Outcome::ForeignVolumes(names(volumes))
}

#[test]
fn the_driver_is_asked_once_about_a_set_of_volumes() {
    let plan = draining(&["a", "b"]).plan();
    let called = plan.steps().find_map(|planned| match &planned.step {
        Step::Call(call) => Some(call.clone()),
        _ => None,
    });
    let call = called.expect("it is asked");
    assert_eq!((call.verb, &call.request.volumes), (Verb::VolumeIds, &names(&["a", "b"])));
    let evicted = |pods: &[&str]| pods.iter().map(|pod| format!("evict Pod default/{pod}")).collect::<Vec<_>>();
    assert_eq!(draining(&["a", "b"]).steps().len(), 2, "the pod without a volume leaves meanwhile");
    let known = |attached: &[&str]| draining(attached).reported(&["a", "b"], foreign(&["b"]));
    assert_eq!(known(&["a", "b"]).steps(), evicted(&["a", "plain", "b"]));
    assert_eq!(known(&["b"]).steps(), evicted(&["plain", "b"]), "fewer volumes need no other answer");
    assert!(known(&["a", "b", "c"]).steps().contains(&"call VolumeIds".to_owned()), "another volume does");
}

#[test]
fn nobody_is_asked_without_need() {
    let mut cannot = draining(&["a"]);
    cannot.snapshot.driver.knows_volumes = false;
    assert_eq!(cannot.steps().len(), 2, "both pods leave");
    assert_eq!(draining(&[]).steps(), ["evict Pod default/plain"]);
    let mut forced = draining(&["a"]);
    forced.now = at("2026-06-01T23:00:00Z");
    assert!(!forced.steps().contains(&"call VolumeIds".to_owned()), "{:?}", forced.steps());
}

#[test]
fn an_answer_is_awaited_for_half_a_minute_and_a_failure_not_at_all() {
    let asked = |ago: i64| draining(&["a", "b"]).asked(&["a", "b"], ago);
    assert_eq!(asked(29).steps(), ["evict Pod default/plain"]);
    let wake = asked(29).plan().wake.expect("it looks again");
    assert!(wake <= asked(29).now + SignedDuration::from_secs(1), "{wake}");
    assert_eq!(asked(30).steps(), ["evict Pod default/a", "evict Pod default/plain"], "one by one");
    for code in [Code::Unavailable, Code::PermissionDenied, Code::Unimplemented] {
        let reported = draining(&["a", "b"]).reported(&["a", "b"], failed(code));
        assert_eq!(
            reported.steps(),
            ["evict Pod default/a", "evict Pod default/plain"],
            "{code}: it is not asked again"
        );
    }
}

/// The class and its Secrets are not read for a healthy Node that is drained for an update.
#[test]
fn the_question_needs_no_class() {
    let mut classless = draining(&["a"]);
    classless.snapshot.class = Err(changed_identity());
    assert!(classless.steps().contains(&"call VolumeIds".to_owned()), "{:?}", classless.steps());
}

#[test]
fn the_question_blocks_no_call_about_the_vm() {
    let fixture = draining(&["a"]);
    let (question, deletion) = (fixture.call(Verb::VolumeIds), fixture.call(Verb::Delete));
    assert_ne!(question.serialization_key(), deletion.serialization_key());
    assert!(question.groups().iter().all(|group| !deletion.groups().contains(group)));
}

/// A cluster with these `PersistentVolumes`. Those of `own` are the provider's.
fn cluster() -> ApiServer {
    let server = ApiServer::new();
    for (name, driver) in [("a", "own"), ("b", "other"), ("c", "own")] {
        let spec = json!({"csi": {"driver": driver, "volumeHandle": name}});
        server.seed(
            VOLUMES,
            json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}),
        );
    }
    server
}

/// The ids that a provider gives to volumes of its CSI driver.
fn ids(specs: &[RawJson]) -> Vec<Option<String>> {
    let id = |spec: &RawJson| {
        let spec: Value = spec.parse().unwrap();
        (spec["csi"]["driver"] == "own").then(|| spec["csi"]["volumeHandle"].to_string())
    };
    specs.iter().map(id).collect()
}

async fn looked_up(
    server: &ApiServer,
    of: &[&str],
    answer: impl FnOnce(Vec<RawJson>) -> DriverResult<Vec<Option<String>>>,
) -> Outcome {
    let agent = HeaderValue::from_static("test");
    let target = Connection::new(server.client(), agent, Leadership::unlimited(), 9, Arc::new(Metrics::new()));
    volume_ids::look_up(|specs| ready(answer(specs)).boxed(), &target, &names(of)).await
}

#[tokio::test]
async fn volumes_are_read_by_their_names_and_what_does_not_exist_is_nobodys() {
    let server = cluster();
    let outcome = looked_up(&server, &["a", "b", "c", "gone"], |specs| Ok(ids(&specs))).await;
    assert_eq!(outcome, foreign(&["b", "gone"]));
    let requests = server.take_requests();
    assert!(requests.len() == 4 && requests.iter().all(|request| request.verb == "get"), "{requests:?}");
    let none = looked_up(&server, &["gone"], |_| unreachable!("there is nothing to ask about")).await;
    assert_eq!(none, foreign(&["gone"]));
}

#[tokio::test]
async fn what_cannot_be_read_or_said_is_a_failure() {
    let code = |outcome: Outcome| outcome.error().map(|error| error.code);
    let server = cluster();
    let short = looked_up(&server, &["a", "b"], |_| Ok(vec![None])).await;
    assert_eq!(code(short), Some(Code::Internal), "which volume it means is not known");
    let refused = DriverError::new(Code::Unimplemented, "no");
    assert_eq!(looked_up(&server, &["a"], |_| Err(refused.clone())).await, Outcome::Failed(refused));
    for (status, expected) in [(403, Code::PermissionDenied), (500, Code::Unavailable)] {
        server.heal();
        server.fail_always(Match::verb("get").path(VOLUMES), Fault::Status(status));
        let outcome = looked_up(&server, &["a", "b"], |_| unreachable!("it is not asked")).await;
        assert_eq!(code(outcome), Some(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_has_half_a_minute() {
    let (server, begun) = (cluster(), tokio::time::Instant::now());
    let agent = HeaderValue::from_static("test");
    let target = Connection::new(server.client(), agent, Leadership::unlimited(), 9, Arc::new(Metrics::new()));
    let outcome = volume_ids::look_up(|_| pending().boxed(), &target, &names(&["a"])).await;
    assert_eq!(outcome.error().map(|error| error.code), Some(Code::DeadlineExceeded));
    assert_eq!(begun.elapsed().as_secs(), 30);
}
