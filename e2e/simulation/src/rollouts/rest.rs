//! Whether all pools are as their users want them: a part of I6.

use nodewright_api::{annotations, taints};
use nodewright_testing::api_server::ApiServer;
use serde_json::Value;

use super::{agents::name, content_path, node::Member};
use crate::names::{CONFIGS, NODES, POOLS, is_member};

/// The difference from what users want. What a paused pool has yet to do is none.
pub(in super::super) fn difference(server: &ApiServer) -> Option<String> {
    let pools = server.objects(POOLS);
    let names: Vec<String> = pools.iter().map(|pool| name(pool).to_owned()).collect();
    let mut nodes = server.objects(NODES);
    nodes.retain(|node| is_member(name(node)));
    for pool in &pools {
        if pool["status"]["observedGeneration"] != pool["metadata"]["generation"] {
            return Some(format!("pool {} has not been observed", name(pool)));
        }
        if pool["spec"]["paused"] == true {
            continue;
        }
        let target = pool["spec"]["configuration"]["name"].as_str().unwrap_or_default();
        if let Some(old) = outdated(server, name(pool), target) {
            return Some(old);
        }
        let mut own = nodes.iter().filter(|node| Member::of(node).pool(names.iter()) == Some(name(pool)));
        if let Some(left) = own.find_map(|node| behind(node, target)) {
            return Some(format!("pool {}: {left}; {}", name(pool), updating(pool)));
        }
        let claims = &pool["metadata"]["annotations"][annotations::DISRUPTIONS];
        if claims != "{}" {
            return Some(format!("pool {} has the claims {claims}", name(pool)));
        }
        if !is_true(pool, "Updated") || is_true(pool, "Degraded") {
            return Some(format!("pool {} is not updated: {}", name(pool), pool["status"]["conditions"]));
        }
    }
    None
}

/// What the target of a pool lacks of its MachineConfigs.
fn outdated(server: &ApiServer, pool: &str, target: &str) -> Option<String> {
    let arguments = |config: &Value| config["spec"]["kernelArguments"].as_array().cloned().unwrap_or_default();
    let wanted = server.object(&content_path(pool)).map(|config| arguments(&config)).unwrap_or_default();
    let has = server.object(&format!("{CONFIGS}/{target}")).map(|config| arguments(&config)).unwrap_or_default();
    let lacks = wanted.iter().find(|argument| !has.contains(argument))?;
    Some(format!("the target of pool {pool} lacks {lacks}"))
}

/// What is left to do on a Node.
fn behind(node: &Value, target: &str) -> Option<String> {
    let member = Member::of(node);
    let is_updated = member.is_done() && member.current == target && member.is_open();
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let is_marked = taints.any(|taint| taint["key"] == taints::UPDATE_IN_PROGRESS);
    // One that was given another target and back may say that it was open then.
    if is_updated && !is_marked && ["", "open"].contains(&member.record.as_str()) {
        return None;
    }
    Some(format!(
        "node {} is to run {target}, and is {member:?}, with the taints {}",
        name(node),
        node["spec"]["taints"]
    ))
}

fn condition<'a>(pool: &'a Value, kind: &str) -> Option<&'a Value> {
    pool["status"]["conditions"].as_array()?.iter().find(|it| it["type"] == kind)
}

fn is_true(pool: &Value, kind: &str) -> bool {
    condition(pool, kind).is_some_and(|it| it["status"] == "True")
}

fn updating(pool: &Value) -> String {
    condition(pool, "Updating").map(|it| it["message"].to_string()).unwrap_or_default()
}
