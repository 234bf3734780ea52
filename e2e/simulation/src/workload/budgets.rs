//! The disruption controller: how many pods may be evicted. Unlike that of the API server in process, it asks the owners how many
//! pods there should be.

use serde_json::{Map, Value, json};

use super::{
    keeper::State,
    objects::{BUDGETS, PODS, app_name, budget_name, is_deleting, is_ready, name},
};

impl State {
    /// Writes the status of all budgets.
    pub(super) fn count(&mut self) {
        let pods = self.server.objects(PODS);
        for (number, app) in self.workload.apps.iter().enumerate() {
            let app_name = app_name(number);
            let own: Vec<&Value> = pods.iter().map(AsRef::as_ref).filter(|pod| label(pod) == app_name).collect();
            for (place, budget) in app.budgets.iter().enumerate() {
                let path = format!("{BUDGETS}/{}", budget_name(&app_name, place));
                let Some(object) = self.server.object(&path) else { continue };
                let status = counted(&object, &own, (app.pods, budget.desired(app.pods)));
                if status != object["status"] {
                    self.server.change(&path, |budget| budget["status"] = status);
                }
            }
        }
    }
}

fn label(pod: &Value) -> &str {
    pod["metadata"]["labels"]["app"].as_str().unwrap_or_default()
}

fn counted(budget: &Value, pods: &[&Value], (expected, desired): (u32, u32)) -> Value {
    // Evicted pods that have yet to get their deletion timestamp.
    let reported = budget["status"]["disruptedPods"].as_object().cloned().unwrap_or_default();
    let stays = |reported: &str| pods.iter().any(|pod| name(pod) == reported && !is_deleting(pod));
    let disrupted: Map<String, Value> = reported.into_iter().filter(|(pod, _)| stays(pod)).collect();
    let is_healthy = |pod: &&&Value| is_ready(pod) && !is_deleting(pod) && !disrupted.contains_key(name(pod));
    let healthy = u32::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(u32::MAX);
    let mut status = json!({
        "observedGeneration": budget["metadata"]["generation"],
        "expectedPods": expected,
        "desiredHealthy": desired,
        "currentHealthy": healthy,
        "disruptionsAllowed": healthy.saturating_sub(desired),
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = disrupted.into();
    }
    status
}
