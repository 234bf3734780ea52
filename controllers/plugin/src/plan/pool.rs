//! Which nodes of a pool would move to its target, in which rounds, by the decisions of the manager.

use jiff::Timestamp;
use nodewright_controllers::machine_config_pool::{Objects, Preview, Settings, preview};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    client::Cluster,
    fault::{Fault, Outcome},
    output::{Format, counted, document, table},
    read::Scope,
    resources::{CONTROLLER_CONFIGS, KUBELET_CONFIGS, MACHINE_CONFIGS, NODES, POOLS, Resource},
};

/// All objects of a kind. A plan needs each of them.
async fn all<K: DeserializeOwned>(cluster: &Cluster, of: Resource) -> Outcome<Vec<K>> {
    let objects = cluster.list(of, None, "").await?;
    let decode = |object: Value| {
        let text = object.to_string();
        serde_json::from_str(&text).map_err(|error| {
            let named = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let field = nodewright_api::failed_field(&text, &error);
            Fault::Message(format!("{} {named} cannot be decoded: field {field}", of.kind))
        })
    };
    objects.into_iter().map(decode).collect()
}

/// The plan of a pool, for people or programs.
pub(crate) async fn pool(scope: &Scope, name: &str, format: Option<Format>) -> Outcome<String> {
    let cluster = &scope.target;
    let objects = Objects {
        pools: all(cluster, POOLS).await?,
        machine_configs: all(cluster, MACHINE_CONFIGS).await?,
        controller_configs: all(cluster, CONTROLLER_CONFIGS).await?,
        kubelet_configs: all(cluster, KUBELET_CONFIGS).await?,
        nodes: all(cluster, NODES).await?,
    };
    let plan = preview(&objects, name, &Settings::default(), Timestamp::now()).map_err(Fault::Message)?;
    match format {
        Some(format @ (Format::Json | Format::Yaml)) => document(&value(name, &plan), format),
        _ => Ok(text(name, &plan)),
    }
}

fn value(name: &str, plan: &Preview) -> Value {
    let rounds: Vec<Vec<Value>> = plan
        .rounds
        .iter()
        .map(|round| round.iter().map(|it| json!({"node": it.node, "zone": it.zone, "from": it.from})).collect())
        .collect();
    let staying = plan.stays.iter().map(|it| {
        json!({"node": it.node, "zone": it.zone, "from": it.from, "reason": it.reason, "message": it.message,
            "unavailable": it.is_unavailable})
    });
    json!({
        "pool": name,
        "target": {"name": plan.target.name, "exists": plan.target.exists, "held": plan.target.held},
        "nodes": plan.nodes, "updated": plan.updated, "unavailable": plan.disrupted,
        "maxUnavailable": plan.max_unavailable, "rounds": rounds, "staying": staying.collect::<Vec<_>>(),
    })
}

fn text(name: &str, plan: &Preview) -> String {
    let mut lines = vec![format!("pool {name}: {}", plan.target.name)];
    lines.extend(plan.target.held.clone());
    lines.push(format!("maxUnavailable: {}, {} unavailable now", plan.max_unavailable, plan.disrupted));
    let mut rows = vec![["ROUND", "NODE", "ZONE", "FROM"].map(str::to_owned).to_vec()];
    for (at, round) in plan.rounds.iter().enumerate() {
        rows.extend(round.iter().map(|it| {
            vec![(at + 1).to_string(), it.node.clone(), it.zone.clone().unwrap_or_default(), it.from.clone()]
        }));
    }
    let moved = rows.len() - 1;
    if moved > 0 {
        lines.push(format!("\n{}", table(&rows)));
    }
    let (nodes, rounds) = (counted(plan.nodes, "node"), counted(plan.rounds.len(), "round"));
    lines.push(format!("{moved} of {nodes} move in {rounds}; {} run the target", plan.updated));
    lines.extend(plan.stays.iter().map(|stay| {
        format!("{} {}{}", stay.node, stay.message, if stay.is_unavailable { " (unavailable)" } else { "" })
    }));
    lines.join("\n") + "\n"
}
