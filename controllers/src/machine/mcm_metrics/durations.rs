//! How long the parts of a Machine's life took, the last one of each deployment, and how many Machines have not joined in time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use jiff::{Timestamp, Unit};
use nodewright_api::{
    Machine, MachineClass, MachinePhase, MachineSet, OperationType, conditions::machine::NODE_JOINED, labels,
    stored::NodeProgress,
};
use nodewright_runtime::{
    cache::Stores,
    object::{controller, created, label, namespace, uid},
};
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::{
    machine::calls::{Call, Outcome, Verb},
    shared::{
        CONTROL,
        mcm_metrics::{HELP, Label},
    },
};

/// The label of a Machine that names its deployment, for machine-controller-manager's metrics and for the cluster autoscaler.
const DEPLOYMENT: &str = "name";

/// A part of a Machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Create,
    Initialize,
    Join,
    Drain,
    Delete,
}

const PARTS: [(Part, &str); 5] = [
    (Part::Create, "mcm_machine_create_duration_seconds"),
    (Part::Initialize, "mcm_machine_initialize_duration_seconds"),
    (Part::Join, "mcm_machine_join_duration_seconds"),
    (Part::Drain, "mcm_machine_drain_duration_seconds"),
    (Part::Delete, "mcm_machine_delete_duration_seconds"),
];

/// What Machines have in common whose durations are one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    namespace: String,
    deployment: String,
    /// Type and zone; a drain has none.
    placement: Option<(String, String)>,
}

#[derive(Debug, Default)]
struct Seen {
    seconds: BTreeMap<(Part, Place), i64>,
    failed_joins: BTreeMap<Place, i64>,
    /// The UIDs of Machines whose VM is being deleted, and whether the driver has accepted that.
    deletions: HashMap<String, bool>,
}

#[derive(Default)]
pub(super) struct Durations {
    stores: Stores,
    seen: Mutex<Seen>,
}

impl fmt::Debug for Durations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durations").finish_non_exhaustive()
    }
}

impl Durations {
    pub(super) fn of(stores: &Stores) -> Self {
        Self { stores: stores.clone(), seen: Mutex::default() }
    }

    pub(super) fn changed(&self, old: &Machine, new: Option<&Machine>) {
        let Some(new) = new else {
            self.seen.lock().deletions.remove(uid(old));
            return;
        };
        if old.phase() == new.phase() {
            return;
        }
        if has_joined(old, new) {
            self.note(Part::Join, new, created(new).zip(new.phase_since()));
        } else if is_late(old, new)
            && let Some(place) = self.place(new)
        {
            *self.seen.lock().failed_joins.entry(place).or_default() += 1;
        }
    }

    pub(super) fn called(&self, call: &Call, (begun, ended): (Timestamp, Timestamp), outcome: &Outcome) {
        if !matches!(call.verb, Verb::Create | Verb::Initialize | Verb::Delete) {
            return;
        }
        let request = &call.request.machine;
        let machine = self.stores.of::<Machine>(CONTROL).by_name(&request.namespace, &request.name);
        let Some(machine) = machine.filter(|machine| uid(machine.as_ref()) == request.uid) else { return };
        match (call.verb, outcome) {
            (Verb::Create, Outcome::Instance(_)) => {
                self.note(Part::Create, &machine, created(machine.as_ref()).map(|created| (created, ended)));
            }
            (Verb::Initialize, Outcome::Instance(_)) => self.note(Part::Initialize, &machine, Some((begun, ended))),
            (Verb::Delete, _) => self.deleted(&machine, (begun, ended), outcome.error().is_none()),
            _ => {}
        }
    }

    /// The first call ends the drain. A VM that is slow to go is deleted again: what counts is the first call that is accepted.
    fn deleted(&self, machine: &Machine, (begun, ended): (Timestamp, Timestamp), is_accepted: bool) {
        let known = {
            let deletions = &mut self.seen.lock().deletions;
            let known = deletions.get(uid(machine)).copied();
            deletions.insert(uid(machine).to_owned(), is_accepted || known == Some(true));
            known
        };
        if known.is_none() && machine.node_name().is_some() {
            self.note(Part::Drain, machine, machine.phase_since().map(|since| (since, begun)));
        }
        if is_accepted && known != Some(true) {
            let since = machine.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            self.note(Part::Delete, machine, since.map(|since| (since, ended)));
        }
    }

    /// Notes how long a part took, in seconds. A Machine without a deployment has no series, as in machine-controller-manager.
    fn note(&self, part: Part, machine: &Machine, during: Option<(Timestamp, Timestamp)>) {
        let Some((place, (begun, ended))) = self.place(machine).zip(during) else { return };
        let seconds = ended.duration_since(begun).round(Unit::Second).map_or(0, |took| took.as_secs().max(0));
        let placement = place.placement.filter(|_| part != Part::Drain);
        self.seen.lock().seconds.insert((part, Place { placement, ..place }), seconds);
    }

    fn place(&self, machine: &Machine) -> Option<Place> {
        let (namespace, deployment) = (namespace(machine), label(machine, DEPLOYMENT)?);
        let class = self.stores.of::<MachineClass>(CONTROL).by_name(namespace, machine.class_name());
        let template = class.as_ref().and_then(|class| class.node_template.as_ref());
        let kind = template.map(|template| template.instance_type.clone()).unwrap_or_default();
        let labels = machine.spec.node_template.metadata.labels.as_ref();
        let zone = labels.and_then(|labels| labels.get(labels::ZONE)).cloned().unwrap_or_default();
        let (namespace, deployment) = (namespace.to_owned(), deployment.to_owned());
        Some(Place { namespace, deployment, placement: Some((kind, zone)) })
    }
}

/// Whether a Machine has become Running for the first time.
fn has_joined(old: &Machine, new: &Machine) -> bool {
    let is_created = new.status.as_ref().is_some_and(|it| it.last_operation.operation_type == OperationType::Create);
    let had_not = matches!(old.phase(), MachinePhase::Unset | MachinePhase::Pending | MachinePhase::CrashLoopBackOff);
    had_not && *new.phase() == MachinePhase::Running && is_created
}

/// Whether a Machine has failed because it had not joined in time.
fn is_late(old: &Machine, new: &Machine) -> bool {
    let is_over =
        |machine: &Machine| machine.condition(NODE_JOINED).and_then(NodeProgress::of) == Some(NodeProgress::TimedOut);
    *new.phase() == MachinePhase::Failed && !is_over(old) && is_over(new)
}

impl Place {
    fn labels(&self) -> Vec<Label<'_>> {
        let mut labels = vec![("namespace", self.namespace.as_str()), ("machine_deployment", self.deployment.as_str())];
        if let Some((kind, zone)) = &self.placement {
            labels.extend([("instance_type", kind.as_str()), ("zone", zone.as_str())]);
        }
        labels
    }
}

/// The deployments that have sets: a process for Machines alone does not watch deployments.
fn deployments(stores: &Stores) -> HashSet<(String, String)> {
    let sets = stores.of::<MachineSet>(CONTROL).all();
    let deployment = |set: &Arc<MachineSet>| {
        let owner = controller(set.as_ref())?;
        Some((namespace(set.as_ref()).to_owned(), owner.name.clone()))
    };
    sets.iter().filter_map(deployment).collect()
}

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let exist = deployments(&self.stores);
        let exists = |place: &Place| exist.contains(&(place.namespace.clone(), place.deployment.clone()));
        let mut seen = self.seen.lock();
        seen.seconds.retain(|(_, place), _| exists(place));
        seen.failed_joins.retain(|place, _| exists(place));
        for (part, name) in PARTS {
            let of_part = seen.seconds.iter().filter(|((of, _), _)| *of == part);
            let of_part = of_part.map(|((_, place), seconds)| (place, *seconds));
            write(&mut encoder, name, MetricType::Gauge, of_part)?;
        }
        // A counter there. OpenMetrics would add `_total` to the name of one.
        let counts = seen.failed_joins.iter().map(|(place, count)| (place, *count));
        write(&mut encoder, "mcm_machine_num_failed_join", MetricType::Unknown, counts)
    }
}

fn write<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    kind: MetricType,
    series: impl Iterator<Item = (&'a Place, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, HELP, None, kind)?;
    for (place, value) in series {
        ConstGauge::new(value).encode(family.encode_family(&place.labels())?)?;
    }
    Ok(())
}
