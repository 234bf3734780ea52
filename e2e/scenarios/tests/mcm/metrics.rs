//! Both have the same values in the metrics that machine-controller-manager has.

use std::collections::{BTreeMap, BTreeSet};

use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure};
use serde_json::json;

use crate::{
    controllers::{Controllers, Side},
    environment::play,
    objects::{self, LARGE},
};

/// A series by its family and labels in order, with its value.
type Series = BTreeMap<String, f64>;

/// Families that are not compared: sets have no `spec.machineClass`, and a scrape that failed is machine-controller-manager's alone.
/// What else it has, there has to be here; there may be more.
const OTHERS: [&str; 2] = ["mcm_machine_set_info{", "mcm_misc_scrape_failure_total"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-mcm"]
async fn metrics_keep_their_names_labels_and_values_at_a_takeover() -> TestResult {
    play("metrics", "metrics", async |env| work(env).await).await
}

async fn work(env: &Environment) -> TestResult {
    objects::apply_classes(env).await?;
    let controllers = Controllers::start(env, Side::Mcm).await?;
    env.apply(&objects::pool(env, 3)).await?;
    env.wait_for_running(3).await?;
    objects::patch_pool(env, &json!({"revisionHistoryLimit": 4, "progressDeadlineSeconds": 900})).await?;
    objects::roll(env, LARGE).await?;
    env.wait_for_machines("the end of the roll", |all| {
        all.len() == 3 && all.values().all(|machine| machine.class_name() == LARGE)
    })
    .await?;
    env.wait_for_running(3).await?;
    let settled = async |controllers: &Controllers| {
        env.wait_for("metrics of a pool at rest", async || {
            let all = of(&controllers.metrics().await?);
            let has =
                |name: &str, value: f64| all.iter().any(|it| it.0.starts_with(name) && (it.1 - value).abs() < 0.1);
            Ok(has("mcm_machine_deployment_status_updated_replicas{", 3.0)
                && has("mcm_machine_deployment_status_available_replicas{", 3.0))
        })
        .await?;
        Ok::<_, Failure>(of(&controllers.metrics().await?))
    };
    let theirs = settled(&controllers).await?;
    controllers.kill_9();
    let mut controllers = Controllers::start(env, Side::Nodewright).await?;
    let ours = settled(&controllers).await?;
    controllers.check()?;
    compare(&theirs, &ours)
}

fn compare(theirs: &Series, ours: &Series) -> TestResult {
    let compared = |series: &Series| -> Series {
        let is_other = |name: &str| OTHERS.iter().any(|other| name.starts_with(other));
        series.iter().filter(|(name, _)| !is_other(name)).map(|(name, value)| (name.clone(), *value)).collect()
    };
    let (theirs, ours) = (compared(theirs), compared(ours));
    let families: BTreeSet<_> = theirs.keys().filter_map(|name| name.split('{').next()).collect();
    println!("{} families, {} series: {families:?}", families.len(), theirs.len());
    ensure(families.len() >= 25, || format!("machine-controller-manager has only {families:?}"))?;
    let differing: Vec<_> = theirs.iter().filter(|(name, value)| ours.get(*name) != Some(value)).collect();
    let family = |name: &str| name.split('{').next().unwrap_or_default().to_owned();
    let known: BTreeSet<String> = differing.iter().map(|(name, _)| family(name)).collect();
    let here: Vec<_> = ours.iter().filter(|(name, _)| known.contains(&family(name))).collect();
    ensure(differing.is_empty(), || format!("there: {differing:#?}, here: {here:#?}"))
}

/// The series of machine-controller-manager's own families in a text.
fn of(text: &str) -> Series {
    let ours = ["mcm_machine_", "mcm_misc_"];
    let lines = text.lines().filter(|line| ours.iter().any(|name| line.starts_with(name)));
    lines
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((sorted(name), value.parse().ok()?))
        })
        .collect()
}

/// A series with its labels in order.
fn sorted(name: &str) -> String {
    let Some((family, labels)) = name.trim_end_matches('}').split_once('{') else { return name.to_owned() };
    // No value of a label in these scenarios has a comma.
    let labels: BTreeSet<_> = labels.split(',').collect();
    format!("{family}{{{}}}", labels.into_iter().collect::<Vec<_>>().join(","))
}
