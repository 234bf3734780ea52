//! A fleet grows, shrinks and rolls, while each process is killed ten times.

use std::time::Duration;

use nodewright_e2e_lab::ec2::Moto;
use nodewright_e2e_scenarios::{Environment, TestResult};

use crate::{
    exactness::Inventory,
    moments::{Moment, moments},
    processes::{Processes, class, nodes_alone},
};

/// The environment variable with the seed of another run.
const SEED_VARIABLE: &str = "NODEWRIGHT_E2E_SEED";
const SMALL: usize = 3;
const LARGE: usize = 50;
const REST: usize = 5;
/// The VMs that are made: up to the large fleet, and again the rest of it in the roll.
const MADE: usize = LARGE + REST;
/// How many VMs have been made or have ended before the last ones are deleted.
const CHANGES: usize = MADE + LARGE;
/// Time between two looks at EC2's list.
const LOOK: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs moto, which `make test-aws` installs"]
async fn a_fleet_is_exact_whatever_is_killed_lost_or_late() -> TestResult {
    let given = std::env::var(SEED_VARIABLE).ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("{SEED_VARIABLE}={seed}");
    let _alone = nodes_alone().await;
    let env = Environment::builder("aws").without_kubelets().without_manager().start().await?;
    let mut processes = Processes::start(&env, seed).await?;
    let moto = processes.moto().clone();
    for (name, machine_type) in [("small", "t3.small"), ("medium", "t3.medium")] {
        for object in class(&env, processes.account(), name, machine_type) {
            env.apply(&object).await?;
        }
    }
    env.apply(&env.pool("a", u32::try_from(SMALL)?)).await?;
    env.wait_for_running(SMALL).await?;

    let killed = kill_all(&env, &mut processes, moments(seed, SMALL + 1..CHANGES));
    tokio::try_join!(killed, change(&env, &moto))?;

    env.kubectl("delete mcd,mcs,mc,mcc --all").await?;
    env.wait_for_nothing().await?;
    env.wait_for("the last VM to go", async || Ok(Inventory::take(&moto).await?.count_live() == 0)).await?;
    Inventory::take(&moto).await?.is_exact(&env, MADE)?;
    nothing_is_left_in(&moto).await?;
    processes.check()?;
    drop(processes);
    env.end().await
}

/// What the users do: more machines, fewer, and other ones in their place.
async fn change(env: &Environment, moto: &Moto) -> TestResult {
    let are_live = async |count: usize| Ok(Inventory::take(moto).await?.count_live() == count);
    env.scale("a", u32::try_from(LARGE)?).await?;
    env.wait_for_running(LARGE).await?;
    Inventory::take(moto).await?.is_exact(env, LARGE)?;

    env.scale("a", u32::try_from(REST)?).await?;
    env.wait_for_running(REST).await?;
    env.wait_for("the VMs of the rest", async || are_live(REST).await).await?;
    Inventory::take(moto).await?.is_exact(env, LARGE)?;

    env.apply(&env.pool("a", u32::try_from(REST)?).class("medium")).await?;
    env.wait_for_machines("machines of the other class", |machines| {
        machines.len() == REST && machines.values().all(|machine| machine.spec.class.name == "medium")
    })
    .await?;
    env.wait_for_running(REST).await?;
    env.wait_for("the VMs of the other class", async || are_live(REST).await).await?;
    Inventory::take(moto).await?.is_exact(env, MADE)
}

/// Kills processes as their moments come.
async fn kill_all(env: &Environment, processes: &mut Processes, moments: Vec<Moment>) -> TestResult {
    for moment in moments {
        while Inventory::take(processes.moto()).await?.changes() < moment.changes {
            tokio::time::sleep(LOOK).await;
        }
        println!("{moment:?}");
        processes.kill_9(env, moment.victim).await?;
    }
    Ok(())
}

/// The volumes and interfaces of the VMs are gone with them.
async fn nothing_is_left_in(moto: &Moto) -> TestResult {
    for action in ["DescribeVolumes", "DescribeNetworkInterfaces"] {
        let left = moto.ask("ec2", &format!("Action={action}")).await?;
        let count = left.matches("<key>Name</key>").count();
        nodewright_e2e_scenarios::ensure(count == 0, || format!("{action} still has {count} of a machine: {left}"))?;
    }
    Ok(())
}
