//! Which machines of a deployment would be created, deleted and updated, in which order, by the plans of the manager.

use std::collections::BTreeSet;

use jiff::Timestamp;
use nodewright_api::{Machine, MachineClass, MachineDeployment, MachinePhase, StrategyType};
use nodewright_controllers::{
    rollout_preview::{Change, End, Objects, Preview, Verb, deployment as key, preview},
    shared::fleet::FleetSettings,
};
use nodewright_runtime::{
    clip::few,
    object::{controller_uid, is_deleting, name, namespace, uid},
};
use serde_json::{Value, json};

use super::{
    Takes, all,
    durations::{Estimate, estimate},
    holds::Holds,
    manager, obstacles,
};
use crate::{
    fault::{Fault, Outcome, fail},
    output::{Format, age, counted, document, table, whole},
    read::Scope,
    resources::{CLASSES, DEPLOYMENTS, MACHINES, NODES, POOLS, SETS},
};

/// How many names of machines are printed in a line.
const NAMES: usize = 5;

/// The objects of a namespace that a plan of its machines needs.
#[derive(Clone, Default)]
pub(super) struct Fleet {
    pub(super) objects: Objects,
    /// `None` if they may not be read.
    pub(super) classes: Option<Vec<MachineClass>>,
    /// The names of the classes that do not exist yet.
    pub(super) new_classes: BTreeSet<String>,
}

impl Fleet {
    pub(super) async fn read(scope: &Scope, namespace: Option<&str>) -> Outcome<Self> {
        let control = &scope.control;
        let pools = match all(&scope.target, POOLS, None).await {
            Err(error) if error.is_not_served() => vec![],
            Err(error) if error.is_forbidden() => {
                eprintln!("note: nodes that a MachineConfigPool disrupts count as available: {}", error.short());
                vec![]
            }
            pools => pools?,
        };
        let objects = Objects {
            deployments: all(control, DEPLOYMENTS, namespace).await?,
            sets: all(control, SETS, namespace).await?,
            machines: all(control, MACHINES, namespace).await?,
            pools,
            nodes: None,
        };
        let classes = all(control, CLASSES, namespace).await.ok();
        Ok(Self { objects, classes, new_classes: BTreeSet::new() })
    }

    /// Reads the nodes, if the plan of a deployment needs them: a large cluster has many.
    pub(super) async fn read_nodes(&mut self, scope: &Scope, deployment: &MachineDeployment) -> Outcome<()> {
        if is_in_place(deployment) && self.objects.nodes.is_none() {
            self.objects.nodes = Some(scope.target.list(NODES, None, "").await?);
        }
        Ok(())
    }
}

fn is_in_place(deployment: &MachineDeployment) -> bool {
    deployment.spec.strategy.effective_type() == StrategyType::InPlaceUpdate
}

/// What becomes of a deployment.
pub(super) struct Plan {
    pub(super) deployment: MachineDeployment,
    preview: Preview,
    estimate: Estimate,
    /// Whether the class is known to be missing.
    lacks_class: bool,
    /// What has to end first, and the controllers do not foresee: a sentence each.
    obstacles: Vec<String>,
    /// How many machines that exist do not run yet.
    creating: usize,
    /// Its machines that are being deleted already, the first one first, and since when.
    deleting: Vec<(String, Timestamp)>,
    holds: Holds,
    now: Timestamp,
}

/// The plan of a deployment, for people or programs.
pub(crate) async fn rollout(scope: &Scope, named: &str, takes: &Takes, format: Option<Format>) -> Outcome<String> {
    let mut fleet = Fleet::read(scope, scope.namespace.as_deref()).await?;
    let found = fleet.objects.deployments.iter().find(|deployment| name(*deployment) == named);
    let Some(deployment) = found.cloned() else {
        return fail(format!("there is no MachineDeployment {named} (see --namespace)"));
    };
    fleet.read_nodes(scope, &deployment).await?;
    let plan = Plan::read(scope, fleet, deployment, takes).await?;
    let absent = manager::absent(scope, scope.namespace.as_deref(), manager::OF_MACHINES).await;
    match format {
        Some(format @ (Format::Json | Format::Yaml)) => {
            let mut value = plan.value();
            value["noManager"] = absent.into();
            document(&value, format)
        }
        format => {
            let absent = absent.map_or_else(String::new, |text| text + "\n");
            Ok(plan.text(format == Some(Format::Wide)) + &absent)
        }
    }
}

impl Plan {
    /// The plan of a deployment as it is, or would be, with what may hold it back.
    pub(super) async fn read(
        scope: &Scope,
        fleet: Fleet,
        deployment: MachineDeployment,
        takes: &Takes,
    ) -> Outcome<Self> {
        let machines: Vec<_> = own(&fleet.objects, &deployment).cloned().collect();
        let plan = Self::of(fleet, deployment, takes)?;
        let holds = Holds::read(scope, &machines, &plan.preview.changes).await;
        Ok(Self { holds, ..plan })
    }

    fn of(fleet: Fleet, mut deployment: MachineDeployment, takes: &Takes) -> Outcome<Self> {
        let Fleet { mut objects, classes, new_classes } = fleet;
        obstacles::end_with_new_classes(&new_classes, &mut deployment, &mut objects.machines);
        let class = &deployment.spec.template.spec.class.name;
        let estimate = estimate(takes, class, &objects.machines);
        let (lacks_class, of_class) = obstacles::of_class(classes.as_deref(), class);
        let deleting = in_deletion(&objects, &deployment);
        // As the times of objects.
        let now = whole(Timestamp::now());
        let obstacles =
            of_class.into_iter().chain(obstacles::of_machines(&deployment, own(&objects, &deployment), now)).collect();
        let is_new = |it: &&Machine| !is_deleting(*it) && *it.phase() != MachinePhase::Running;
        let creating = own(&objects, &deployment).filter(is_new).count();
        objects.deployments.retain(|it| name(it) != name(&deployment));
        objects.deployments.push(deployment.clone());
        let key = key(namespace(&deployment), name(&deployment));
        let preview = preview(objects, &key, &FleetSettings::default(), estimate.durations, now);
        let preview = preview.map_err(Fault::Message)?;
        let holds = Holds::default();
        Ok(Self { deployment, preview, estimate, lacks_class, obstacles, creating, deleting, holds, now })
    }

    pub(super) fn value(&self) -> Value {
        let changes = self.preview.changes.iter().map(|change| {
            json!({"at": change.at, "change": verb(change.verb), "machine": change.machine, "set": change.set})
        });
        let (complete, waits) = match &self.preview.end {
            End::Complete(_) if self.is_done() && self.obstacles.is_empty() => (Some(self.now), None),
            End::Complete(at) if self.obstacles.is_empty() => (Some(*at), None),
            End::Complete(_) => (None, Some(self.obstacles.clone())),
            End::Waits(waits) => (None, Some(waits.iter().chain(&self.obstacles).cloned().collect())),
        };
        let durations = self.estimate.durations;
        json!({
            "deployment": name(&self.deployment), "changes": changes.collect::<Vec<_>>(), "newSets": self.preview.new_sets,
            "fewestRunning": self.preview.fewest_running, "most": self.preview.most,
            "complete": complete, "waits": waits, "lacksClass": self.lacks_class,
            "deleting": self.deleting.iter().map(|(machine, _)| machine).collect::<Vec<_>>(),
            "holds": self.holds.value(),
            "estimate": {"creationSeconds": durations.creation.as_secs(), "deletionSeconds": durations.deletion.as_secs(),
                "updateSeconds": durations.update.as_secs(), "assumed": self.estimate.assumed},
        })
    }

    /// `wide`: with a line for each machine.
    pub(super) fn text(&self, wide: bool) -> String {
        let (spec, class) = (&self.deployment.spec, &self.deployment.spec.template.spec.class.name);
        let machines = counted(usize::try_from(spec.replicas).unwrap_or_default(), "machine");
        let mut lines =
            vec![format!("machinedeployment/{}: {machines} of class {class}{}", name(&self.deployment), self.bounds())];
        lines.extend(self.preview.new_sets.iter().map(|set| format!("machineset/{set} is created")));
        if !self.preview.changes.is_empty() {
            lines.push(format!("\n{}", self.table(wide)));
        }
        lines.extend(self.summary());
        lines.extend(self.holds.lines());
        lines.join("\n") + "\n"
    }

    fn bounds(&self) -> String {
        let bounds = self.deployment.update_bounds().ok();
        bounds.map_or_else(String::new, |bounds| {
            format!(", maxSurge {}, maxUnavailable {}", bounds.max_surge, bounds.max_unavailable)
        })
    }

    fn table(&self, wide: bool) -> String {
        let mut rows = vec![["AT", "CHANGE", "SET", "MACHINES"].map(str::to_owned).to_vec()];
        let is_one = |a: &Change, b: &Change| !wide && (a.at, a.verb, &a.set) == (b.at, b.verb, &b.set);
        rows.extend(self.preview.changes.chunk_by(is_one).map(|group| {
            let named: Option<Vec<_>> = group.iter().map(|change| change.machine.as_deref()).collect();
            // The names follow from the UID of a set that does not exist yet.
            let machines = named.map_or_else(|| counted(group.len(), "machine"), |named| few(NAMES, named.into_iter()));
            let at = format!("+{}", age(self.now, group[0].at));
            vec![at, verb(group[0].verb).to_owned(), group[0].set.clone(), machines]
        }));
        table(&rows)
    }

    fn summary(&self) -> Vec<String> {
        let Preview { changes, fewest_running, most, end, .. } = &self.preview;
        let of = |verb: Verb| changes.iter().filter(|change| change.verb == verb).count();
        let (created, deleted, changed) = (of(Verb::Create), of(Verb::Delete), of(Verb::Update));
        let is_in_place = is_in_place(&self.deployment);
        let updated =
            if is_in_place { format!(" {} updated in place,", of(Verb::UpdateInPlace)) } else { String::new() };
        let mut lines = vec![format!(
            "{} created, {deleted} deleted,{updated} {changed} changed without a replacement; at least {fewest_running} run and at most {most} exist meanwhile",
            counted(created, "machine")
        )];
        let deleting = self.deletions();
        let indented = |texts: Vec<String>| texts.into_iter().map(|text| format!("  {text}")).collect::<Vec<_>>();
        match end {
            End::Complete(_) if self.is_done() && self.obstacles.is_empty() => {
                lines.push("nothing is left to do".to_owned());
            }
            End::Complete(at) => {
                let only = if changes.is_empty() && self.creating == 0 { "only deletions are left: " } else { "" };
                lines.extend(self.creations());
                lines.extend(deleting.map(|text| format!("{only}{text}")));
                let mut then = "";
                if !self.obstacles.is_empty() {
                    lines.push("it does not come to its end before this does:".to_owned());
                    lines.extend(indented(self.obstacles.clone()));
                    then = "then ";
                }
                let earliest = if self.holds.hold() { " at the earliest" } else { "" };
                lines.push(format!(
                    "{then}complete after about {}{earliest}, if no machine fails and nobody changes anything",
                    age(self.now, *at)
                ));
                let update = if is_in_place { format!(", {}", self.estimate.source_of_update) } else { String::new() };
                lines.push(format!("{}{update}", self.estimate.source));
            }
            End::Waits(waits) => {
                let of = format!("machinedeployment/{}", name(&self.deployment));
                let unknown = format!("its objects do not show why: see kubectl nodewright why {of}");
                let waits: Vec<_> = waits.iter().chain(&self.obstacles).cloned().chain(deleting).collect();
                lines.push("it does not come to its end by itself:".to_owned());
                lines.extend(indented(if waits.is_empty() { vec![unknown] } else { waits }));
            }
        }
        lines
    }

    /// Whether all machines that are wanted run.
    fn is_done(&self) -> bool {
        let is_complete = matches!(self.preview.end, End::Complete(_));
        is_complete && self.preview.changes.is_empty() && self.creating == 0 && self.deleting.is_empty()
    }

    /// How many machines are being created already.
    fn creations(&self) -> Option<String> {
        let verb = if self.creating == 1 { "is" } else { "are" };
        (self.creating > 0)
            .then(|| format!("{} {verb} there that {verb} not running yet", counted(self.creating, "machine")))
    }

    /// How many machines are being deleted already, and which one may be stuck.
    fn deletions(&self) -> Option<String> {
        let (first, since) = self.deleting.first()?;
        let (count, verb) = (self.deleting.len(), if self.deleting.len() == 1 { "is" } else { "are" });
        let machines = counted(count, "machine");
        let lasts = age(*since, self.now);
        Some(format!(
            "{machines} {verb} being deleted already, {first} for {lasts}: see kubectl nodewright why machine/{first}"
        ))
    }
}

/// The machines of a deployment.
fn own<'a>(objects: &'a Objects, deployment: &MachineDeployment) -> impl Iterator<Item = &'a Machine> {
    let sets = objects.sets.iter().filter(|set| controller_uid(*set) == Some(uid(deployment)));
    let sets: Vec<_> = sets.map(uid).collect();
    objects.machines.iter().filter(move |it| controller_uid(*it).is_some_and(|owner| sets.contains(&owner)))
}

/// The machines of a deployment that are being deleted, in the order of their deletion.
fn in_deletion(objects: &Objects, deployment: &MachineDeployment) -> Vec<(String, Timestamp)> {
    let own = own(objects, deployment);
    let deleting = own.filter_map(|it| Some((name(it).to_owned(), it.metadata.deletion_timestamp.as_ref()?.0)));
    let mut deleting: Vec<_> = deleting.collect();
    deleting.sort_by(|(a, since_a), (b, since_b)| since_a.cmp(since_b).then_with(|| a.cmp(b)));
    deleting
}

fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "create",
        Verb::Update => "change",
        Verb::UpdateInPlace => "update",
        Verb::Delete => "delete",
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn plan(deployment: Value, classes: Vec<MachineClass>) -> Plan {
        let fleet = Fleet { classes: Some(classes), ..Fleet::default() };
        Plan::of(fleet, serde_json::from_value(deployment).unwrap(), &Takes::default()).unwrap()
    }

    fn deployment(replicas: i32) -> Value {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": "pool", "namespace": "shoot", "uid": "u", "generation": 1, "resourceVersion": "1"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"pool": "pool"}},
                "template": {"metadata": {"labels": {"pool": "pool"}},
                    "spec": {"class": {"kind": "MachineClass", "name": "small"}}}},
        })
    }

    #[test]
    fn a_new_fleet_is_one_line_with_its_time_and_bounds() {
        let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
            "metadata": {"name": "small", "namespace": "shoot"}});
        let plan = plan(deployment(2), vec![serde_json::from_value(class).unwrap()]);
        let set = plan.preview.new_sets[0].clone();
        let text = plan.text(false);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines[0], "machinedeployment/pool: 2 machines of class small, maxSurge 1, maxUnavailable 0");
        assert_eq!(lines[1], format!("machineset/{set} is created"));
        let cells: Vec<_> = lines[3].split_whitespace().collect();
        assert_eq!(cells, ["+0s", "create", &set, "2", "machines"]);
        let rest = [
            "2 machines created, 0 deleted, 0 changed without a replacement; at least 0 run and at most 2 exist meanwhile",
            "complete after about 3m, if no machine fails and nobody changes anything",
            "estimated with 3m until a machine runs (assumed, as there is no machine to learn from; set it with --creation-takes) and 2m until one is gone (assumed, as no object remembers it; set it with --deletion-takes)",
        ];
        assert_eq!(lines[4..], rest);
        assert_eq!(plan.text(true).matches("create ").count(), 2, "{}", plan.text(true));
        assert_eq!(plan.estimate.durations.deletion, SignedDuration::from_mins(2));
    }

    #[test]
    fn what_keeps_it_from_its_end_is_said() {
        let mut paused = deployment(2);
        paused["spec"]["paused"] = true.into();
        let text = plan(paused, vec![]).text(false);
        assert!(text.contains("MachineClass small does not exist"), "{text}");
        assert!(
            text.contains("it does not come to its end by itself:\n  machinedeployment/pool: spec.paused is true"),
            "{text}"
        );
    }

    #[test]
    fn machines_that_are_being_deleted_are_counted_and_the_first_is_named() {
        let since = |seconds: i64| Timestamp::from_second(Timestamp::now().as_second() - seconds).unwrap().to_string();
        let object = |kind: &str, named: &str, of: &str, deleted: Value| {
            let owner = json!([{"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Owner", "name": of, "uid": of, "controller": true}]);
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind, "spec": {"class": {"name": "small"}},
                "metadata": {"name": named, "namespace": "shoot", "uid": named, "ownerReferences": owner, "deletionTimestamp": deleted}})
        };
        let machine = |named: &str, of: &str, deleted: Value| {
            serde_json::from_value(object("Machine", named, of, deleted)).unwrap()
        };
        let set = serde_json::from_value(object("MachineSet", "set", "u", Value::Null)).unwrap();
        let machines = vec![
            machine("b", "set", since(60).into()),
            machine("a", "set", since(3_600).into()),
            machine("c", "set", Value::Null),
            machine("d", "other", since(7_200).into()),
        ];
        let objects = Objects { sets: vec![set], machines, ..Objects::default() };
        let deployment: MachineDeployment = serde_json::from_value(deployment(0)).unwrap();
        let deleting = in_deletion(&objects, &deployment);
        assert_eq!(deleting.iter().map(|(it, _)| it.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let rest = Plan::of(Fleet::default(), deployment, &Takes::default()).unwrap();
        let preview = Preview { changes: vec![], end: End::Complete(rest.now), ..rest.preview.clone() };
        let text = Plan { preview, deleting, ..rest }.text(false);
        let line = "only deletions are left: 2 machines are being deleted already, a for 60m: see kubectl nodewright why machine/a";
        assert!(text.contains(line) && !text.contains("nothing is left"), "{text}");
    }

    #[test]
    fn a_deletion_that_waits_is_no_end() {
        let plan = plan(deployment(0), vec![]);
        let preview =
            Preview { changes: vec![], new_sets: vec![], end: End::Complete(plan.now), ..plan.preview.clone() };
        let (deleting, held) =
            (vec![("a".to_owned(), plan.now)], "machine/a is in deletion for 5m: pod b is left".to_owned());
        let plan = Plan { preview, deleting, obstacles: vec![held.clone()], ..plan };
        let (value, text) = (plan.value(), plan.text(false));
        assert_eq!((&value["complete"], &value["waits"]), (&Value::Null, &json!([held])));
        let lines = ["it does not come to its end before this does:", &format!("  {held}")];
        assert!(lines.iter().all(|line| text.lines().any(|it| it == *line)), "{text}");
        let rest = Plan { deleting: vec![], obstacles: vec![], ..plan };
        assert!(rest.value()["complete"].is_string() && rest.text(false).contains("nothing is left to do"));
    }

    #[test]
    fn where_no_object_shows_what_is_waited_for_there_is_a_command() {
        let plan = plan(deployment(1), vec![]);
        let preview = Preview { end: End::Waits(vec![]), ..plan.preview.clone() };
        let text = Plan { preview, obstacles: vec![], ..plan }.text(false);
        assert!(text.ends_with("see kubectl nodewright why machinedeployment/pool\n"), "{text}");
    }
}
