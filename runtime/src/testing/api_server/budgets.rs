//! The controller of disruption budgets: how many pods may go.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::store::seconds;

/// Says in a budget whether anything may go.
pub(super) fn set_condition(budget: &mut Value, now: Timestamp) {
    let allows = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) > 0;
    let (status, reason) = if allows { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": budget["status"]["observedGeneration"],
        "lastTransitionTime": seconds(now),
    });
    let conditions = &mut budget["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|it| it["type"] == condition["type"]) {
        None => conditions.push(condition),
        Some(present) => {
            let since = present["lastTransitionTime"].clone();
            let is_same = present["status"] == condition["status"];
            *present = condition;
            if is_same {
                present["lastTransitionTime"] = since;
            }
        }
    }
}
