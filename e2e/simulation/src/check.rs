//! The bounds of a run that was written by hand. Without them, a typing error could make a run endless.

use std::time::Duration;

use super::{
    acts::lasts,
    names::{DRAIN_WATCHED, GARBLED, POOL_WATCHED, WATCHED},
    run::Run,
    schedule::{Act, Edit, RequestResult, Trouble, UserError},
};
use nodewright_e2e_cloud as cloud;

/// No event begins later or lasts longer.
const LONGEST: Duration = Duration::from_hours(24);
const MOST_MACHINES: u32 = 500;
const MOST_PODS: u64 = 200;
/// The most repetitions of an act that writes into all objects.
const MOST_TIMES: u32 = 1_000;

/// Returns the field that is out of bounds, and the allowed values.
pub(super) fn check(run: &Run) -> Result<(), String> {
    for (field, machines) in [("replicas", run.replicas), ("surge", run.surge), ("unavailable", run.unavailable)] {
        check_machines(field, machines)?;
    }
    check_workload(run)?;
    for pool in run.rollout.iter().flat_map(|rollout| &rollout.pools) {
        check_machines("rollout.pools.nodes", pool.nodes)?;
    }
    if run.calls_at_once == Some(0) {
        return Err("calls_at_once: 0 is less than 1".to_owned());
    }
    for (number, phase) in run.phases.iter().enumerate() {
        check_act(&format!("phases[{number}]"), phase)?;
    }
    for (number, trouble) in run.schedule.0.iter().enumerate() {
        let field = format!("schedule[{number}]");
        match trouble {
            Trouble::Step { request_result, .. } | Trouble::Request { request_result, .. } => {
                check_result(&field, *request_result)?;
            }
            Trouble::Edit { edit, .. } => check_edit(&field, edit)?,
            Trouble::At { millis, act } => {
                check_time(&field, Duration::from_millis(*millis))?;
                check_act(&field, act)?;
            }
        }
    }
    Ok(())
}

fn check_workload(run: &Run) -> Result<(), String> {
    let apps = run.workload.iter().flat_map(|workload| &workload.apps);
    let pods: u64 = apps.clone().map(|app| u64::from(app.pods)).sum();
    if pods > MOST_PODS {
        return Err(format!("workload: {pods} pods are more than {MOST_PODS}"));
    }
    for app in apps {
        let detaches = app.volume.and_then(|volume| volume.detaches).unwrap_or(0);
        check_time("workload", Duration::from_secs(detaches.into()))?;
    }
    Ok(())
}

fn check_act(field: &str, act: &Act) -> Result<(), String> {
    match act {
        Act::Cloud(order) => cloud::validate_fault(order).map_err(|failure| format!("{field}: {}", failure.message))?,
        Act::Edit(edit) => check_edit(field, edit)?,
        Act::JumpClock(seconds) | Act::JumpRival(seconds) | Act::DriftClock(seconds) => {
            check_time(field, Duration::from_secs(seconds.unsigned_abs()))?;
        }
        Act::Sleep(seconds) => check_time(field, Duration::from_secs((*seconds).into()))?,
        Act::Disturb(times) | Act::WipeStatus(times) | Act::TakeOwners(times) if *times > MOST_TIMES => {
            return Err(format!("{field}: {times} times are more than {MOST_TIMES}"));
        }
        Act::ApiRefuses { code, .. } | Act::RefusePods(code, _) => check_refusal(field, *code)?,
        Act::Err(UserError::Garble(plural, _), _) if !GARBLED.contains(&plural.as_str()) => {
            return Err(format!("{field}: {plural:?} is none of {GARBLED:?}"));
        }
        Act::HoldWatches(plural, _)
        | Act::LateWatches(plural, _)
        | Act::LateRival(plural, _)
        | Act::CutWatches(plural)
            if !WATCHED.iter().chain(&DRAIN_WATCHED).chain(&POOL_WATCHED).any(|kind| kind == plural) =>
        {
            return Err(format!("{field}: {plural:?} is none of {WATCHED:?}, {DRAIN_WATCHED:?} and {POOL_WATCHED:?}"));
        }
        _ => {}
    }
    check_time(field, lasts(act))
}

fn check_edit(field: &str, edit: &Edit) -> Result<(), String> {
    match edit {
        Edit::Scale(machines) => check_machines(field, *machines),
        _ => Ok(()),
    }
}

fn check_result(field: &str, request_result: RequestResult) -> Result<(), String> {
    match request_result {
        RequestResult::CommitLate(seconds)
        | RequestResult::AnswerLate(seconds)
        | RequestResult::ArriveLate(seconds) => check_time(field, Duration::from_secs(seconds.into())),
        RequestResult::Refuse(code) | RequestResult::RefuseAfter(code) => check_refusal(field, code),
        _ => Ok(()),
    }
}

fn check_refusal(field: &str, code: u16) -> Result<(), String> {
    if (400..600).contains(&code) {
        return Ok(());
    }
    Err(format!("{field}: {code} is no status of a refusal, from 400 to 599"))
}

fn check_time(field: &str, time: Duration) -> Result<(), String> {
    if time <= LONGEST { Ok(()) } else { Err(format!("{field}: {time:?} is more than a day")) }
}

fn check_machines(field: &str, machines: u32) -> Result<(), String> {
    if machines <= MOST_MACHINES { Ok(()) } else { Err(format!("{field}: {machines} is more than {MOST_MACHINES}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(field: &str, value: serde_json::Value) -> Result<(), String> {
        let mut run = json!({"seed": 1, "replicas": 1, "surge": 1, "unavailable": 0, "elects": false,
            "heartbeats": false, "phases": [], "schedule": []});
        run[field] = value;
        check(&serde_json::from_value(run).map_err(|error| error.to_string())?)
    }

    #[test]
    fn what_would_never_end_is_refused() {
        let list =
            |seconds: f64| json!([{"cloud": {"operation": "list", "effect": {"kind": "latency", "seconds": seconds}}}]);
        let bad = [
            ("replicas", json!(501)),
            ("phases", json!([{"scale": 1_000_000}])),
            ("phases", list(-1.0)),
            ("phases", list(1e300)),
            ("schedule", json!([{"at": {"millis": 86_400_001, "act": "crash"}}])),
            ("schedule", json!([{"at": {"millis": 1, "act": {"api-down": 90_000}}}])),
            ("schedule", json!([{"at": {"millis": 1, "act": {"jump-clock": -90_000}}}])),
            ("schedule", json!([{"step": {"step": 1, "request_result": {"answer-late": 90_000}}}])),
            ("schedule", json!([{"step": {"step": 1, "request_result": {"refuse": 200}}}])),
            ("schedule", json!([{"step": {"step": 1, "request_result": "hang", "n": 2}}])),
            ("schedule", json!([{"at": {"millis": 1, "act": {"disturb": 1_001}}}])),
            ("schedule", json!([{"at": {"millis": 1, "act": {"cut-watches": "bananas"}}}])),
            (
                "schedule",
                json!([{"at": {"millis": 1, "act": {"api-refuses": {"code": 200, "percent": 9, "seconds": 9}}}}]),
            ),
            ("calls_at_once", json!(0)),
            ("workload", json!({"apps": [{"pods": 201}]})),
            ("workload", json!({"apps": [{"pods": 1, "volume": {"storage": "other", "detaches": 90_000}}]})),
            ("schedule", json!([{"at": {"millis": 1, "act": {"refuse-pods": [200, 9]}}}])),
            ("schedule", json!([{"at": {"millis": 1, "act": {"rollout": {"not-ready": [1, 90_000]}}}}])),
            ("rollout", json!({"pools": [{"name": "worker", "nodes": 501}]})),
            ("replica", json!(1)),
        ];
        for (field, value) in bad {
            assert!(checked(field, value.clone()).is_err(), "{field} {value}");
        }
        assert_eq!(checked("phases", json!([{"scale": 500}, {"jump-clock": -600}])), Ok(()));
        assert_eq!(checked("schedule", json!([{"at": {"millis": 86_400_000, "act": {"api-down": 600}}}])), Ok(()));
    }
}
