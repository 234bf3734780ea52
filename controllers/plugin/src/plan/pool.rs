//! Which nodes of a pool would move to its target, in which rounds, by the decisions of the manager.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use nodewright_controllers::machine_config_pool::{Objects, PoolSettings, Preview, preview};
use nodewright_runtime::object::name;
use serde_json::{Value, json};

use super::{all, durations, manager};
use crate::{
    client::Cluster,
    fault::{Fault, Outcome},
    output::{Format, counted, document, seconds, table},
    read::Scope,
    resources::{CONTROLLER_CONFIGS, KUBELET_CONFIGS, MACHINE_CONFIGS, NODES, POOLS},
};

/// The plan of a pool, for people or programs.
pub(crate) async fn pool(
    scope: &Scope,
    name: &str,
    update: Option<Duration>,
    format: Option<Format>,
) -> Outcome<String> {
    let plan = planned(&objects(&scope.target).await?, name)?;
    let absent = manager::absent(scope, scope.namespace.as_deref(), manager::OF_POOLS).await;
    if let Some(format @ (Format::Json | Format::Yaml)) = format {
        let mut value = value(name, &plan, update);
        value["noManager"] = absent.into();
        return document(&value, format);
    }
    let absent = absent.map_or_else(String::new, |text| text + "\n");
    Ok(text(name, &plan, update) + &absent)
}

/// How long the rounds take, one after the other, and where that is from.
fn estimate(plan: &Preview, update: Option<Duration>) -> (SignedDuration, String) {
    let (update, source) = durations::update(update);
    let rounds = i32::try_from(plan.rounds.len()).unwrap_or(i32::MAX);
    (update.saturating_mul(rounds), source)
}

/// The plan of a pool.
pub(super) struct Planned {
    preview: Preview,
    /// Whether the rounds wait for a user.
    is_paused: bool,
}

pub(super) fn planned(objects: &Objects, named: &str) -> Outcome<Planned> {
    let preview = preview(objects, named, &PoolSettings::default(), Timestamp::now()).map_err(Fault::Message)?;
    let is_paused = objects.pools.iter().any(|pool| name(pool) == named && pool.spec.paused);
    Ok(Planned { preview, is_paused })
}

pub(super) async fn objects(cluster: &Cluster) -> Outcome<Objects> {
    Ok(Objects {
        pools: all(cluster, POOLS, None).await?,
        machine_configs: all(cluster, MACHINE_CONFIGS, None).await?,
        controller_configs: all(cluster, CONTROLLER_CONFIGS, None).await?,
        kubelet_configs: all(cluster, KUBELET_CONFIGS, None).await?,
        nodes: all(cluster, NODES, None).await?,
    })
}

pub(super) fn value(name: &str, plan: &Planned, update: Option<Duration>) -> Value {
    let Planned { preview: plan, is_paused } = plan;
    let mut value = json!(plan);
    value["pool"] = name.into();
    value["paused"] = (*is_paused).into();
    value["estimate"] = json!({"seconds": estimate(plan, update).0.as_secs(), "assumed": update.is_none()});
    value
}

pub(super) fn text(name: &str, plan: &Planned, update: Option<Duration>) -> String {
    let Planned { preview: plan, is_paused } = plan;
    let mut lines = vec![format!("pool {name}: {}", plan.target.name)];
    lines.extend(plan.target.held.clone());
    lines.push(format!("maxUnavailable: {}, {} unavailable now", plan.max_unavailable, plan.disrupted));
    let mut rows = vec![["ROUND", "NODE", "ZONE", "FROM"].map(str::to_owned).to_vec()];
    for (at, round) in plan.rounds.iter().enumerate() {
        rows.extend(round.iter().map(|it| {
            let begun = if it.is_begun { " (begun)" } else { "" };
            vec![(at + 1).to_string(), it.node.clone(), it.zone.clone().unwrap_or_default(), it.from.clone() + begun]
        }));
    }
    let moved = rows.len() - 1;
    if moved > 0 {
        lines.push(format!("\n{}", table(&rows)));
    }
    let (nodes, rounds) = (counted(plan.nodes, "node"), counted(plan.rounds.len(), "round"));
    lines.push(format!("{moved} of {nodes} move in {rounds}; {} run the target", plan.updated));
    if moved > 0 && *is_paused {
        lines.push("the pool is paused: the rounds begin once spec.paused is false".to_owned());
    }
    if moved > 0 {
        let (takes, source) = estimate(plan, update);
        lines.push(format!("about {}, if no node fails; estimated with {source}", seconds(takes)));
    }
    lines.extend(plan.stays.iter().map(|stay| {
        format!("{} {}{}", stay.node, stay.message, if stay.is_unavailable { " (unavailable)" } else { "" })
    }));
    lines.join("\n") + "\n"
}
