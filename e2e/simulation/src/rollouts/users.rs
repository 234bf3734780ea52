//! What users and accidents do to pools and their Nodes.

use std::{sync::Arc, time::Duration};

use nodewright_api::{annotations, machine_config::GROUP};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Agents, RolloutAct, Writer,
    agents::{State, as_writer, desire, name},
    content, content_path, max_unavailable,
    node::Member,
    role_labels,
};
use crate::names::{CONFIGS, NODES, POOLS};

/// How late timers may be.
const ROUNDED: Duration = Duration::from_millis(50);

/// Starts an act. [`end`] ends what lasts, but for the faults of agents and kubelets, which know their ends.
pub(in super::super) fn begin(agents: &Agents, act: &RolloutAct) {
    let mut state = agents.state.lock();
    let until = Instant::now() + act.lasts();
    match act {
        RolloutAct::Configure(pool, number) => {
            let Some(pool) = state.pool(*pool) else { return };
            state.server.change(&content_path(&pool), |config| config["spec"] = content(*number));
        }
        RolloutAct::Pause(pool, is_paused) => {
            state.change_pool(*pool, |pool| pool["spec"]["paused"] = (*is_paused).into());
        }
        RolloutAct::MaxUnavailable(pool, text) => {
            state.change_pool(*pool, |pool| pool["spec"]["maxUnavailable"] = max_unavailable(text));
        }
        RolloutAct::WipeClaims(pool) => state.change_pool(*pool, |pool| write_claims(pool, &Value::Null)),
        RolloutAct::StaleClaims(pool, _) => state.save_claims(*pool),
        RolloutAct::Agent(node, fault, _) => {
            let Some(node) = state.member(*node) else { return };
            state.machines.entry(name(&node).to_owned()).or_default().fault = Some((*fault, until));
        }
        RolloutAct::NotReady(node, _) => {
            let Some(node) = state.member(*node) else { return };
            state.machines.entry(name(&node).to_owned()).or_default().down_until = Some(until);
        }
        RolloutAct::Cordon(node, _) => state.cordon(*node, until),
        RolloutAct::Uncordon(node) => state.change_node(*node, uncordon),
        RolloutAct::Desire(node, config) => state.desire(*node, *config),
        RolloutAct::Wipe(node) => state.wipe(*node, until),
        RolloutAct::Lose(node, _) => state.lose(*node, until),
        RolloutAct::Move(node, pool) => {
            let Some(pool) = state.pool(*pool) else { return };
            state.change_node(*node, |node| give_role(node, &pool));
        }
    }
}

/// Ends an act that has run its time.
pub(in super::super) fn end(agents: &Agents, act: &RolloutAct) {
    let mut state = agents.state.lock();
    match act {
        RolloutAct::Cordon(..) | RolloutAct::Wipe(_) => state.open(),
        RolloutAct::Lose(..) => state.bring_back(),
        RolloutAct::StaleClaims(pool, _) => state.restore_claims(*pool),
        _ => {}
    }
}

impl State {
    fn change_pool(&self, number: usize, change: impl FnOnce(&mut Value)) {
        let Some(pool) = self.pool(number) else { return };
        as_writer(&self.oracles, Writer::User, || drop(self.server.change(&format!("{POOLS}/{pool}"), change)));
    }

    fn change_node(&self, number: usize, change: impl FnOnce(&mut Value)) {
        if let Some(node) = self.member(number) {
            self.write(&node, Writer::User, change);
        }
    }

    fn save_claims(&mut self, number: usize) {
        let Some(pool) = self.pool(number) else { return };
        let object = self.server.object(&format!("{POOLS}/{pool}"));
        let claims = object.map(|pool| pool["metadata"]["annotations"][annotations::DISRUPTIONS].clone());
        self.saved_claims.insert(pool, claims.unwrap_or_default());
    }

    fn restore_claims(&mut self, number: usize) {
        let saved = self.pool(number).and_then(|pool| self.saved_claims.remove(&pool));
        if let Some(claims) = saved {
            self.change_pool(number, |pool| write_claims(pool, &claims));
        }
    }

    /// A user patches the Node to one of the configurations that its pool has, as some do to choose the order.
    fn desire(&self, number: usize, config: usize) {
        let Some(node) = self.member(number) else { return };
        let member = Member::of(&node);
        let Some(pool) = member.pool(self.pools.iter()).filter(|_| member.has_agent()) else { return };
        let mut configs = self.server.objects(CONFIGS);
        let prefix = format!("rendered-{pool}-");
        configs.retain(|config| name(config).starts_with(&prefix));
        if let Some(place) = config.checked_rem(configs.len()) {
            self.write(&node, Writer::User, |node| desire(node, name(&configs[place])));
        }
    }

    fn lose(&mut self, number: usize, until: Instant) {
        let Some(node) = self.member(number) else { return };
        let mut again = Arc::unwrap_or_clone(node);
        let path = format!("{NODES}/{}", name(&again));
        as_writer(&self.oracles, Writer::User, || drop(self.server.remove(&path)));
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            again["metadata"][field] = Value::Null;
        }
        wipe(&mut again);
        again["spec"] = json!({});
        again["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        if let Some(metadata) = again["metadata"].as_object_mut() {
            metadata.retain(|_, value| !value.is_null());
        }
        self.lost.push((until, again));
    }

    /// The Nodes come back whose time has come.
    fn bring_back(&mut self) {
        let now = Instant::now() + ROUNDED;
        for (_, node) in self.lost.extract_if(.., |(until, _)| *until <= now).collect::<Vec<_>>() {
            as_writer(&self.oracles, Writer::Agent, || drop(self.server.seed(NODES, node)));
        }
    }

    fn cordon(&mut self, number: usize, until: Instant) {
        let Some(node) = self.member(number) else { return };
        self.cordoned.push((until, name(&node).to_owned()));
        if !Member::of(&node).is_cordoned {
            self.write(&node, Writer::User, |node| node["spec"]["unschedulable"] = true.into());
        }
    }

    fn wipe(&mut self, number: usize, until: Instant) {
        let Some(node) = self.member(number) else { return };
        self.cordoned.push((until, name(&node).to_owned()));
        self.write(&node, Writer::User, wipe);
    }

    /// Users open the Nodes that they have closed, each in its time. Some may be cordoned for their drain by now.
    fn open(&mut self) {
        let now = Instant::now() + ROUNDED;
        for (_, node) in self.cordoned.extract_if(.., |(until, _)| *until <= now).collect::<Vec<_>>() {
            let node = self.server.object(&format!("{NODES}/{node}"));
            if let Some(node) = node.filter(|node| Member::of(node).is_cordoned) {
                self.write(&node, Writer::User, uncordon);
            }
        }
    }
}

fn write_claims(pool: &mut Value, claims: &Value) {
    let metadata = &mut pool["metadata"];
    if metadata["annotations"].is_null() {
        metadata["annotations"] = json!({});
    }
    if let Some(all) = metadata["annotations"].as_object_mut() {
        match claims {
            Value::Null => drop(all.remove(annotations::DISRUPTIONS)),
            claims => drop(all.insert(annotations::DISRUPTIONS.to_owned(), claims.clone())),
        }
    }
}

fn uncordon(node: &mut Value) {
    if let Some(spec) = node["spec"].as_object_mut() {
        spec.remove("unschedulable");
    }
}

fn wipe(node: &mut Value) {
    if let Some(all) = node["metadata"]["annotations"].as_object_mut() {
        let is_ours = |key: &str| [annotations::CONFIG_DRAIN, annotations::CONFIG_GIVEN].contains(&key);
        all.retain(|key, _| !key.starts_with(GROUP) && !is_ours(key));
    }
}

fn give_role(node: &mut Value, pool: &str) {
    if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
        labels.retain(|key, _| !key.starts_with(super::ROLE_LABEL));
        labels.extend(role_labels(pool));
    }
}
