//! The steps by which a Node gets what its provider knows.

use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::{conditions::machine as conditions, reasons::machine as reasons, stored::MissingVm};
use nodewright_driver::{Instance, InstanceMetadata};
use nodewright_runtime::plan::{Notes, Step};

use super::decision::{Blocked, Decision, decide};
use crate::{
    machine::{
        calls::{Call, Verb},
        health,
        health::VmState,
        memory::Note,
        node_sync::CloudMarks,
        partial_plan::PartialPlan,
        provider::Provider,
        scope::Scope,
        status::StatusDraft,
    },
    shared::{TARGET, cloud_node, node::Node, node_claims::class_of_node, ownership::vm_id},
};

/// What becomes of a Node beside its health.
#[derive(Default)]
pub(in super::super) struct Changes {
    /// The questions to the provider, and when it is asked next.
    pub(in super::super) part: PartialPlan,
    /// Whether the next plan needs the answers of the provider.
    pub(in super::super) keeps_outcomes: bool,
    /// The write of the addresses, which comes before the marks.
    pub(in super::super) addresses: Option<Step<Call>>,
    pub(in super::super) marks: CloudMarks,
}

pub(in super::super) fn changes(scope: &Scope<'_>, node: &Node) -> Changes {
    let changes = match decide(scope, node) {
        Decision::Nothing => Changes::default(),
        Decision::Blocked(Blocked { due, .. }) => Changes::of(PartialPlan::default().waking_at(due)),
        Decision::Ask(why) => Changes::of(asked(scope, why)),
        Decision::AwaitAnswer => Changes::of(PartialPlan::default()),
        Decision::Initialize { addresses, instance, metadata } => {
            let marks = initial_marks(node, instance, metadata);
            Changes { addresses: written(node, &addresses), marks, ..Changes::of(PartialPlan::default()) }
        }
        Decision::Refresh { addresses, answered } => {
            let part = PartialPlan::default().noting(Note::Described(answered));
            Changes { addresses: written(node, &addresses), ..Changes::of(part) }
        }
        Decision::AwaitRefresh { due, before } => {
            let mut part = PartialPlan::default().waking_at(due);
            part.plan.notes = before.map_or(Notes::Keep, |before| Notes::Replace(vec![Note::Described(before)]));
            Changes { part, ..Changes::default() }
        }
    };
    changes.with_power(scope, node)
}

fn written(node: &Node, addresses: &[NodeAddress]) -> Option<Step<Call>> {
    Step::edit_status(TARGET, node, cloud_node::address_patch(node, addresses))
}

impl Changes {
    /// A part that goes by the answers of the provider: these are kept.
    fn of(part: PartialPlan) -> Self {
        Self { part, keeps_outcomes: true, ..Self::default() }
    }

    /// Keeps the twins of the labels equal, the taint of a stopped VM, and the class whose lists have the VM. Nothing is untainted here
    /// before it is initialized.
    fn with_power(mut self, scope: &Scope<'_>, node: &Node) -> Self {
        if !scope.initializes_nodes() {
            return self;
        }
        self.marks.class = scope.snapshot.machine_class.as_deref().map(class_of_node);
        if !node.is_uninitialized() {
            self.marks.labels = cloud_node::labels_behind_twins(node);
        }
        self.marks.is_stopped = match health::vm_state(scope) {
            _ if node.is_ready() => Some(false),
            VmState::Stopped => Some(true),
            _ => None,
        };
        self
    }
}

fn asked(scope: &Scope<'_>, why: &'static str) -> PartialPlan {
    let Ok(class) = &scope.snapshot.class else { return PartialPlan::default() };
    PartialPlan::step(why, Step::Call(Provider::of(scope, class).call(Verb::Describe)))
}

fn initial_marks(node: &Node, instance: &Instance, metadata: &InstanceMetadata) -> CloudMarks {
    CloudMarks {
        provider_id: node.provider_id().is_none().then(|| instance.provider_id.clone()),
        labels: cloud_node::initial_labels(node, metadata),
        is_initialized: true,
        ..CloudMarks::default()
    }
}

/// The status of a Machine says why its Node is not initialized.
pub(in super::super) fn shown<'a>(scope: &Scope<'_>, node: Option<&Node>, draft: StatusDraft<'a>) -> StatusDraft<'a> {
    // Most Nodes are initialized: what else is decided about them is no part of the status.
    let blocked = node.filter(|node| node.is_uninitialized()).and_then(|node| match decide(scope, node) {
        Decision::Blocked(Blocked { cause, .. }) => cause,
        _ => None,
    });
    match blocked {
        Some((reason, message)) => draft.condition(conditions::NODE_INITIALIZED, false, reason, message),
        None => draft.without(conditions::NODE_INITIALIZED),
    }
}

/// The status of a Machine whose Node is unhealthy says whether its VM exists, and runs.
pub(in super::super) fn vm_shown<'a>(scope: &Scope<'_>, draft: StatusDraft<'a>) -> StatusDraft<'a> {
    if !scope.initializes_nodes() {
        return draft;
    }
    match (health::vm_state(scope), vm_id(scope.machine)) {
        // Another process may have asked, or this one before it started again.
        (VmState::Open, _) | (_, None) => draft,
        (VmState::Gone, Some(id)) => draft.fact(MissingVm { id }.text()).without(conditions::INSTANCE_RUNNING),
        (VmState::Stopped, Some(id)) => {
            let text = format!("VM {id} is stopped; the machine fails unless it is started");
            let draft = draft.without(conditions::INSTANCE_EXISTS);
            draft.condition(conditions::INSTANCE_RUNNING, false, reasons::VM_STOPPED, text)
        }
        (VmState::Exists, _) => vm_not_shown(draft),
    }
}

/// The status of a Machine whose Node is healthy says nothing of that.
pub(in super::super) fn vm_not_shown(draft: StatusDraft<'_>) -> StatusDraft<'_> {
    draft.without(conditions::INSTANCE_EXISTS).without(conditions::INSTANCE_RUNNING)
}
