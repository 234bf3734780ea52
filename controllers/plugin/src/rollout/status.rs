//! Waits for the end of a rollout.

use std::time::Duration;

use nodewright_api::{
    ConditionStatus, MachineDeployment,
    conditions::machine_deployment::{PROGRESSING, RECONCILING, STALLED},
    reasons::machine_deployment::PROGRESS_DEADLINE_EXCEEDED,
    stored::REVISION,
};
use nodewright_runtime::object::name;
use tokio::time::{Instant, sleep};

use super::deployment;
use crate::{
    fault::{Fault, Outcome, fail},
    output::print,
    read::Scope,
};

/// The pause between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// How far a rollout is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Waiting(String),
    Done(String),
    Failed(String),
}

/// By kubectl's rules, in its words.
pub(crate) fn progress(deployment: &MachineDeployment, revision: i64) -> Progress {
    let (of, status) = (name(deployment), deployment.status.clone().unwrap_or_default());
    let running = REVISION.of(deployment).unwrap_or_default();
    if revision > 0 && revision != running {
        let text = format!("desired revision ({revision}) is different from the running revision ({running})");
        return Progress::Failed(text);
    }
    if deployment.metadata.generation.unwrap_or_default() > status.observed_generation {
        return Progress::Waiting("Waiting for machinedeployment spec update to be observed...".to_owned());
    }
    let late = deployment.condition(PROGRESSING).filter(|it| it.reason == PROGRESS_DEADLINE_EXCEEDED);
    if late.is_some() {
        return Progress::Failed(format!("machinedeployment {of:?} exceeded its progress deadline"));
    }
    let waiting =
        |what: String| Progress::Waiting(format!("Waiting for machinedeployment {of:?} rollout to finish: {what}..."));
    let (wanted, updated) = (deployment.spec.replicas, status.updated_replicas);
    if updated < wanted {
        return waiting(format!("{updated} out of {wanted} new replicas have been updated"));
    }
    if status.replicas > updated {
        return waiting(format!("{} old replicas are pending termination", status.replicas - updated));
    }
    if status.available_replicas < updated {
        return waiting(format!("{} of {updated} updated replicas are available", status.available_replicas));
    }
    Progress::Done(format!("machinedeployment {of:?} successfully rolled out"))
}

/// What is waited for, as the deployment itself says.
fn awaited(deployment: &MachineDeployment) -> Option<String> {
    let is_true = |kind| deployment.condition(kind).filter(|it| it.status == ConditionStatus::True);
    let condition = is_true(STALLED).or_else(|| is_true(RECONCILING))?;
    Some(format!("{}: {}", condition.reason, condition.message))
}

/// Prints each change until the rollout has ended. Without `watch` it prints once.
pub(crate) async fn status(scope: &Scope, name: &str, options: (bool, i64, Option<Duration>)) -> Outcome<()> {
    let (watch, revision, timeout) = options;
    let end = timeout.filter(|it| !it.is_zero()).map(|timeout| Instant::now() + timeout);
    let (mut said, mut reason, mut seen) = (String::new(), None, false);
    loop {
        match deployment(scope, name).await {
            Ok(found) => {
                seen = true;
                match progress(&found, revision) {
                    Progress::Failed(text) => return fail(text),
                    Progress::Done(text) => {
                        print(&format!("{text}\n"));
                        return Ok(());
                    }
                    Progress::Waiting(text) if text != said => {
                        print(&format!("{text}\n"));
                        said = text;
                    }
                    Progress::Waiting(_) => {}
                }
                let why = awaited(&found);
                if why != reason {
                    if let Some(why) = &why {
                        eprintln!("  {why}");
                    }
                    reason = why;
                }
            }
            Err(error) if seen && error.is_not_found() => return fail("object has been deleted"),
            // What passes is no answer.
            Err(error @ (Fault::Unreachable { .. } | Fault::Timeout { .. })) if seen && watch => {
                eprintln!("  {error}; trying again");
            }
            Err(error) => return Err(error),
        }
        if !watch {
            return Ok(());
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return fail("timed out waiting for the condition");
        }
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(status: &Value, condition: &Value) -> MachineDeployment {
        let mut object = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
            "metadata": {"name": "pool", "generation": 2, "annotations": {"deployment.kubernetes.io/revision": "3"}},
            "spec": {"replicas": 3, "template": {}}, "status": status});
        object["status"]["conditions"] = condition.clone();
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_words_are_kubectls() {
        let counts = |updated: i32, all: i32, available: i32| json!({"observedGeneration": 2, "updatedReplicas": updated, "replicas": all, "availableReplicas": available});
        let prefix = "Waiting for machinedeployment \"pool\" rollout to finish: ";
        let waiting = |text: &str| Progress::Waiting(format!("{prefix}{text}..."));
        let table = [
            (counts(1, 4, 3), waiting("1 out of 3 new replicas have been updated")),
            (counts(3, 4, 3), waiting("1 old replicas are pending termination")),
            (counts(3, 3, 2), waiting("2 of 3 updated replicas are available")),
            (counts(3, 3, 3), Progress::Done("machinedeployment \"pool\" successfully rolled out".to_owned())),
            (
                json!({"observedGeneration": 1}),
                Progress::Waiting("Waiting for machinedeployment spec update to be observed...".to_owned()),
            ),
        ];
        for (status, expected) in table {
            assert_eq!(progress(&at(&status, &json!([])), 0), expected);
        }
        let late = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
        let failed = progress(&at(&counts(1, 3, 1), &late), 0);
        assert_eq!(failed, Progress::Failed("machinedeployment \"pool\" exceeded its progress deadline".to_owned()));
        assert!(matches!(progress(&at(&counts(3, 3, 3), &json!([])), 3), Progress::Done(_)));
        assert!(matches!(progress(&at(&counts(3, 3, 3), &json!([])), 2), Progress::Failed(_)));
    }
}
