//! Snapshots in, plans out: how a Machine is provisioned, evaluated and terminated, step by step.

mod claims;
mod cloud;
mod health;

mod limits;
mod mcm_in_place;
mod mcm_metrics;
mod mcm_preservation;
mod observed;
mod ownership;
mod preserve;
mod provision;
mod terminate;
mod tokens;
mod unreadable;
mod update;
mod volumes;
mod waiting;
mod without_target;

use crate::shared::driver::DriverProperties;
use std::sync::Arc;
use std::{cell::OnceCell, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{Code, Machine, MachineSet};
use nodewright_driver::{Class, DriverError, Instance, SecretData};
use nodewright_runtime::{
    cache::{Lookup, Stores},
    controller::Controller,
    effect::Outcomes,
    object::{Cluster, ObjectRef},
    plan::{Failure, FailureClass, Refusal, Step, StepVerb, Waiting},
};
use serde_json::{Value, json};

use super::{
    Call, MachineController, MachineSettings, Outcome, Verb,
    budget::{BudgetGroup, Level, Limit, brake::Brake, holds_place, may_be_replaced},
    claim::{Claim, Vm},
    provider::Provider,
    scope::Scope,
    snapshot::{ClassError, Owner, Snapshot},
};
use crate::{
    machine::memory::{Context, Note, Plan},
    shared::{
        TARGET,
        cloud_manager::{CloudManager, CloudNodeMode},
        drain::{Attached, PodView, View, Volumes},
        ledger::Ledger,
        node::Node,
    },
    testing::{MachineBuilder, MachineExt, NOW, Uncalled, class, machine, machine_set},
};

/// A snapshot, the outcomes of calls, and the time.
struct Fixture {
    snapshot: Snapshot,
    outcomes: Outcomes<Call>,
    refusals: Vec<Refusal>,
    notes: BTreeMap<Note, Timestamp>,
    waits: Vec<Waiting>,
    now: Timestamp,
    since: Timestamp,
    connected_since: Option<Timestamp>,
    attempt: u32,
    failure: Option<Failure>,
    status_written: Option<Timestamp>,
    traces: bool,
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn fixture(machine: MachineBuilder) -> Fixture {
    let machine = Arc::new(machine.build());
    // Most tests are not about the claim: the VM that is named is proven.
    let vm = if machine.provider_id().is_some() { Vm::Proven } else { Vm::of(&machine) };
    let snapshot = Snapshot {
        shared_budget: None,
        claimed_since: None,
        machine,
        class: Ok(class()),
        class_held: true,
        machine_class: None,
        is_node_left: false,
        scoped_watches: vec![],
        changed_identity: None,
        claim: Claim { vm, ..Claim::default() },
        node: None,
        nodes_listed: true,
        unseen_node: Lookup::Missing,
        foreign_node: None,
        unreadable_node: None,
        owner: Owner::None,
        pool: BudgetGroup::default(),
        drain: View::empty(TARGET),
        settings: Arc::default(),
        driver: DriverProperties::of(&Uncalled),
        cloud_manager: CloudManager::default(),
    };
    Fixture {
        snapshot,
        outcomes: Outcomes::default(),
        refusals: vec![],
        notes: BTreeMap::new(),
        waits: vec![],
        now: at(NOW),
        since: at("2026-06-01T09:00:00Z"),
        connected_since: None,
        attempt: 0,
        failure: None,
        status_written: None,
        traces: false,
    }
}

impl Fixture {
    #[allow(clippy::needless_pass_by_value)] // a test gives its values away
    fn node(mut self, node: Value) -> Self {
        let mut base = json!({"metadata": {"name": "n", "uid": "uid-n", "resourceVersion": "7"}, "spec": {"providerID": "p:///1"}});
        json_patch::merge(&mut base, &node);
        self.snapshot.node = Some(Arc::new(serde_json::from_value(base).unwrap()));
        self
    }

    fn pods(mut self, pods: &[Value]) -> Self {
        let parse = |pod: &Value| Arc::new(serde_json::from_value::<PodView>(pod.clone()).unwrap());
        self.snapshot.drain.pods = Some(pods.iter().map(parse).collect());
        self
    }

    fn set(mut self, set: MachineSet) -> Self {
        self.snapshot.owner = Owner::Set(Arc::new(set));
        self
    }

    /// The deployment has these Machines, too.
    fn beside(mut self, others: impl IntoIterator<Item = Machine>) -> Self {
        let mut all: Vec<_> = others.into_iter().map(Arc::new).collect();
        all.push(self.snapshot.machine.clone());
        let only = |is: fn(&Machine) -> bool| all.iter().filter(|machine| is(machine)).cloned().collect::<Vec<_>>();
        let deleted = self.snapshot.node.as_ref().and_then(|node| node.metadata.deletion_timestamp.as_ref());
        let without_node: Vec<_> = deleted.map(|at| (self.snapshot.machine.clone(), at.0)).into_iter().collect();
        let mut pool = BudgetGroup { total: all.len(), ..BudgetGroup::default() };
        pool.add(&only(holds_place), &only(may_be_replaced), &without_node, &MachineSettings::default());
        self.snapshot.pool = pool;
        self
    }

    fn call(&self, verb: Verb) -> Call {
        let (snapshot, context) = (&self.snapshot, self.moment());
        Provider::of(&Scope::of(snapshot, &context, &OnceCell::new()), snapshot.class.as_ref().unwrap()).call(verb)
    }

    /// A call has ended so many seconds ago.
    fn answered(mut self, verb: Verb, seconds_ago: i64, outcome: Outcome) -> Self {
        let (call, when) = (self.call(verb), self.now - SignedDuration::from_secs(seconds_ago));
        self.outcomes.begin(&call, when);
        self.outcomes.finish(&call, when, outcome);
        self
    }

    fn running(mut self, verb: Verb) -> Self {
        let call = self.call(verb);
        self.outcomes.begin(&call, self.now);
        self
    }

    fn moment(&self) -> Context<'_> {
        Context {
            now: self.now,
            clock_skew: jiff::SignedDuration::ZERO,
            leader_since: self.since,
            connected_since: self.connected_since.unwrap_or(self.since),
            attempt: self.attempt,
            failure: self.failure.as_ref(),
            outcomes: &self.outcomes,
            refusals: &self.refusals,
            notes: &self.notes,
            waits: &self.waits,
            status_written: self.status_written,
            traces: self.traces,
        }
    }

    fn plan(&self) -> Plan {
        self.plan_with(MachineSettings::default())
    }

    fn plan_with(&self, settings: MachineSettings) -> Plan {
        let cloud_manager = match settings.cloud_node.mode {
            CloudNodeMode::Auto(_) => self.snapshot.cloud_manager.clone(),
            mode => CloudManager::take(&Stores::default(), mode, None),
        };
        let snapshot = Snapshot { settings: Arc::new(settings), cloud_manager, ..self.snapshot.clone() };
        let plan = MachineController::plan(&self.moment(), &snapshot);
        waiting::is_reported_after_a_while(self, &snapshot, &plan);
        plan
    }

    fn steps(&self) -> Vec<String> {
        self.plan().steps().map(|planned| tell(&planned.step)).collect()
    }
}

fn tell(step: &Step<Call>) -> String {
    match step {
        Step::Apply(apply) => match apply.fragment().pointer("/status/currentStatus/phase") {
            Some(phase) => format!("status {}", phase.as_str().unwrap_or_default()),
            None if apply.fragment().get("status").is_some() => format!("status of {}", apply.at),
            None => format!("apply {}", apply.fragment()),
        },
        Step::Edit { at, .. } => format!("edit {at}"),
        Step::Confirm(at) | Step::ConfirmUnchanged(at) => format!("confirm {at}"),
        Step::Delete(at) => format!("delete {at}"),
        Step::DeleteNow(at) => format!("delete now {at}"),
        Step::Evict(at) => format!("evict {at}"),
        Step::Call(call) => format!("call {:?}", call.verb),
        Step::Create { key, .. } => format!("create {key}"),
    }
}

fn status_of(plan: &Plan) -> Value {
    let mut found = plan.steps().filter_map(|planned| match &planned.step {
        Step::Apply(apply) => apply.fragment().get("status").cloned(),
        _ => None,
    });
    found.next().expect("a status is written")
}

fn failed(code: Code) -> Outcome {
    Outcome::Failed(DriverError::new(code, "no"))
}

fn vm() -> Outcome {
    Outcome::Instance(Instance {
        provider_id: "p:///1".into(),
        node_name: "n".into(),
        owner_uid: Some("uid-m".into()),
        ..Instance::default()
    })
}

fn refusal() -> Failure {
    Failure::of::<Node>(StepVerb::Patch, ObjectRef::new(TARGET, "", "n"), FailureClass::Invalid, "year is out of range")
}

/// The class finds other VMs than it has made.
fn changed_identity() -> ClassError {
    let message = "providerSpec.cluster was changed: set it back".to_owned();
    ClassError { reason: "ClassIdentityChanged", message, never_used: false }
}

/// The data of a Secret that has no key `userData`.
fn without_user_data() -> SecretData {
    SecretData::of(vec![Arc::default()])
}

fn linked(phase: &str) -> MachineBuilder {
    machine("m").phase(phase).label("node", "n").with("/spec/providerID", json!("p:///1"))
}

const READY: &str = "True";

fn conditions(ready: &str) -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": ready, "reason": "Kubelet",
        "lastTransitionTime": "2026-06-01T11:59:00Z"}]}})
}

fn synced(ready: &str) -> Value {
    let mut node = conditions(ready);
    json_patch::merge(
        &mut node,
        &json!({"metadata": {"finalizers": ["node.machine.sapcloud.io/machine-controller"],
        "labels": {"node.gardener.cloud/machine-name": "m"}}}),
    );
    node
}
