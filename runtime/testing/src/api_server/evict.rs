//! Evictions, limited by disruption budgets.

use std::sync::Arc;

use serde_json::{Value, json};

use super::checks::FieldError;
use super::delete::DeleteOptions;
use super::refusal;
use super::route::{Id, Part, Resource};
use super::selector;
use super::store::{Refused, Store, Writer, said, seconds};
use super::write::Target;

impl Store {
    /// Deletes a pod if its budget allows it.
    pub(super) fn evict(&mut self, id: &Id, options: &DeleteOptions, writer: &Writer<'_>) -> Result<(), Refused> {
        let pod = self.get(id)?;
        let mut options = options.clone();
        let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let is_leaving = !pod["metadata"]["deletionTimestamp"].is_null();
        if is_over || is_leaving || pod["status"]["phase"] == "Pending" {
            return self.let_go(id, &options, writer);
        }
        if let Some((budget_id, budget)) = self.budget_of(&pod)? {
            let status = &budget["status"];
            let number = |field: &str| status[field].as_i64().unwrap_or(0);
            let has_spare = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
            let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
            if !is_ready(&pod) && (always || has_spare) {
                options.version = options.version.or_else(|| said(&pod, "resourceVersion").map(str::to_owned));
            } else {
                self.take_from_budget(&budget_id, &budget, &id.name, writer)?;
            }
        }
        self.let_go(id, &options, writer)
    }

    /// The budget that selects a pod. An error if several do.
    fn budget_of(&self, pod: &Value) -> Result<Option<(Id, Arc<Value>)>, Refused> {
        let resource = Resource::budgets();
        let matching = self.all(&resource).filter(|budget| {
            budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
                && selector::matches_labels(&budget["spec"]["selector"], &pod["metadata"]["labels"])
        });
        match matching.collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [budget] => Ok(Some((Id::of(&resource, budget), budget.clone()))),
            _ => {
                let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not \
                    support.";
                Err(refusal::new(500, "", message))
            }
        }
    }

    fn take_from_budget(&mut self, id: &Id, budget: &Value, pod: &str, writer: &Writer<'_>) -> Result<(), Refused> {
        let (status, name) = (&budget["status"], &id.name);
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
            let why = format!("The disruption budget {name} is still being processed by the server.");
            return Err(refusal::disruption(&why, 10));
        }
        let allowed = number("disruptionsAllowed");
        if allowed < 0 {
            let budget =
                Id { resource: Resource { plural: "poddisruptionbudget".into(), ..id.resource.clone() }, ..id.clone() };
            return Err(refusal::forbidden(&budget, "pdb disruptions allowed is negative"));
        }
        if allowed == 0 {
            return Err(refusal::disruption(&why_not(name, status), 0));
        }
        if writer.dry_run {
            return Ok(());
        }
        let mut changed = budget.clone();
        changed["status"]["disruptionsAllowed"] = (allowed - 1).into();
        changed["status"]["disruptedPods"][pod] = seconds(writer.now).into();
        if allowed == 1 {
            super::budgets::set_condition(&mut changed, writer.now);
        }
        // A real server writes the budget as a client of itself.
        let writer = Writer { manager: "kube-apiserver", ..writer.clone() };
        let target = Target { id, kind: self.kind(&id.resource), part: Part::Status, writer: &writer };
        target.own(budget, &mut changed);
        self.commit(id, changed);
        Ok(())
    }

    /// Adds the reason to the pod's conditions, and deletes it.
    fn let_go(&mut self, id: &Id, options: &DeleteOptions, writer: &Writer<'_>) -> Result<(), Refused> {
        let pod = self.get(id)?;
        let mut options = options.clone();
        let differs = |asked: &Option<String>, field: &str| {
            asked.as_deref().is_some_and(|asked| Some(asked) != said(&pod, field))
        };
        if writer.dry_run || differs(&options.uid, "uid") || differs(&options.version, "resourceVersion") {
            return self.delete(id, &options, writer).map(drop);
        }
        let mut reported = (*pod).clone();
        let conditions = &mut reported["status"]["conditions"];
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": seconds(writer.now),
        });
        if let Some(conditions) = conditions.as_array_mut()
            && conditions.iter().all(|it| it["type"] != condition["type"])
        {
            conditions.push(condition);
            let stored = self.commit(id, reported);
            options.version = options.version.and(said(&stored, "resourceVersion").map(str::to_owned));
        }
        self.delete(id, &options, writer).map(drop)
    }
}

pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

fn why_not(name: &str, status: &Value) -> String {
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let condition = conditions.find(|it| it["type"] == "DisruptionAllowed" && it["status"] == "False");
    let text = |field: &str| condition.and_then(|it| it[field].as_str()).unwrap_or("");
    let (reason, message) = (text("reason"), text("message"));
    if reason == "SyncFailed" && !message.is_empty() {
        return format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        );
    }
    if number("currentHealthy") <= number("desiredHealthy") {
        let (desired, current) = (number("desiredHealthy"), number("currentHealthy"));
        return format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently");
    }
    if message.is_empty() {
        return format!("The disruption budget {name} does not allow evicting pods currently");
    }
    format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
}

/// Checks the body of an eviction.
pub(super) fn check_body(id: &Id, body: &Value) -> Result<(), Refused> {
    match body["metadata"]["name"].as_str() {
        Some(name) if name == id.name => Ok(()),
        None => Err(refusal::invalid(id, "Eviction", &[FieldError::required("metadata.name", "")])),
        Some(_) => Err(refusal::bad_request("name in URL does not match name in Eviction object")),
    }
}
