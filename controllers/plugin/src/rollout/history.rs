//! The revisions of a deployment.

use jiff::Timestamp;
use nodewright_api::{MachineDeployment, MachineSet, MachineTemplate, labels};
use nodewright_runtime::object::{annotation, controller_uid, created, name, uid};
use serde::Serialize;

use super::{deployment, full_name};
use crate::{
    fault::{Outcome, fail},
    output::{Format, age, document, table},
    read::Scope,
    resources::SETS,
    snapshot::{Snapshot, revision},
};

/// The annotation by which kubectl records why a revision was made.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// A revision, for programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    change_cause: Option<String>,
    machine_set: String,
    class: String,
    replicas: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Timestamp>,
    template: MachineTemplate,
}

/// The deployment and its sets, the oldest revision first.
pub(super) async fn revisions(scope: &Scope, of: &str) -> Outcome<(MachineDeployment, Vec<MachineSet>)> {
    let deployment = deployment(scope, of).await?;
    let mut snapshot = Snapshot::default();
    let sets = scope.control.list(SETS, scope.namespace.as_deref(), "").await?;
    for set in &sets {
        snapshot.add(set);
    }
    let is_own = |set: &MachineSet| controller_uid(set) == Some(uid(&deployment)) && revision(set) > 0;
    let mut sets: Vec<_> = snapshot.sets.into_iter().filter(is_own).collect();
    sets.sort_by_key(revision);
    Ok((deployment, sets))
}

/// The template of a revision, without what names its set.
pub(super) fn template(set: &MachineSet) -> MachineTemplate {
    let mut template = set.spec.template.clone();
    if let Some(labels) = template.metadata.labels.as_mut() {
        labels.remove(labels::MACHINE_TEMPLATE_HASH);
    }
    template
}

pub(super) fn template_text(set: &MachineSet) -> Outcome<String> {
    let text = document(&template(set), Format::Yaml)?;
    let lines = text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n");
    Ok(format!("Machine Template:\n{lines}\n"))
}

fn entry(set: &MachineSet) -> Entry {
    Entry {
        revision: revision(set),
        change_cause: annotation(set, CHANGE_CAUSE).map(str::to_owned),
        machine_set: name(set).to_owned(),
        class: set.spec.template.spec.class.name.clone(),
        replicas: set.spec.replicas,
        created: created(set),
        template: template(set),
    }
}

/// All revisions, or the template of one.
pub(crate) async fn history(scope: &Scope, of: &str, number: i64, format: Option<Format>) -> Outcome<String> {
    let (_, sets) = revisions(scope, of).await?;
    let chosen: Vec<_> = sets.iter().filter(|set| number == 0 || revision(set) == number).collect();
    if number != 0 && chosen.is_empty() {
        return fail("unable to find the specified revision");
    }
    if let Some(format @ (Format::Json | Format::Yaml)) = format {
        return document(&chosen.into_iter().map(entry).collect::<Vec<_>>(), format);
    }
    if let [set] = chosen.as_slice()
        && number != 0
    {
        return Ok(format!("{} with revision #{number}\n{}", full_name(of), template_text(set)?));
    }
    if chosen.is_empty() {
        return Ok(format!("{}\nNo rollout history found.\n", full_name(of)));
    }
    let is_wide = format == Some(Format::Wide);
    let mut head = vec!["REVISION", "CHANGE-CAUSE"];
    head.extend(["MACHINESET", "CLASS", "REPLICAS", "AGE"].iter().filter(|_| is_wide));
    let row = |set: &&MachineSet| {
        let Entry { revision, change_cause, machine_set, class, replicas, created, .. } = entry(set);
        let mut row = vec![revision.to_string(), change_cause.unwrap_or_else(|| "<none>".to_owned())];
        let created = created.map(|created| age(created, Timestamp::now())).unwrap_or_default();
        row.extend([machine_set, class, replicas.to_string(), created].into_iter().filter(|_| is_wide));
        row
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(head.into_iter().map(str::to_owned).collect()).chain(chosen.iter().map(row)).collect();
    Ok(format!("{}\n{}", full_name(of), table(&rows)))
}
