//! `kill -9` of the manager, at the worst moments.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use nodewright_api::Machine;
use nodewright_e2e_scenarios::{Change, Environment, TestResult, ensure};

const MACHINES: usize = 12;

/// When the manager is killed: as soon as this many …
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// … machines have been created,
    Machines(usize),
    /// … VMs have been created (the answer is still in flight),
    Vms(usize),
    /// … machines know their VM,
    Linked(usize),
    /// … nodes have registered,
    Nodes(usize),
    /// … machines are being deleted,
    Deleting(usize),
    /// … machines are shown as terminating,
    Terminating(usize),
    /// … VMs are gone,
    VmsGone(usize),
    /// … nodes are being deleted or gone,
    NodesLeaving(usize),
    /// … machines are gone.
    Gone(usize),
}

const CREATIONS: [Moment; 5] =
    [Moment::Machines(1), Moment::Vms(1), Moment::Machines(MACHINES), Moment::Linked(4), Moment::Nodes(3)];
const DELETIONS: [Moment; 5] =
    [Moment::Deleting(1), Moment::Terminating(5), Moment::VmsGone(2), Moment::NodesLeaving(3), Moment::Gone(5)];

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_manager_makes_neither_too_many_nor_too_few() -> TestResult {
    let env = Environment::builder("crash")
        .cloud_flags(["--create-latency-ms=150", "--boot-seconds=0.5", "--delete-seconds=0.5"])
        .manager_flags([
            // A computer that does something else as well may answer a renewal after two seconds.
            "--leader-elect-lease-duration=6s",
            "--leader-elect-renew-deadline=5s",
            "--leader-elect-retry-period=500ms",
        ])
        .start()
        .await?;
    env.apply_class("small").await?;
    env.apply(&env.pool("a", 0)).await?;
    for (created, deleted) in CREATIONS.into_iter().zip(DELETIONS) {
        let round = Round::begin(&env).await?;
        env.scale("a", u32::try_from(MACHINES)?).await?;
        round.kill_at(created).await?;
        env.wait_for_running(MACHINES).await?;
        round.counts_are(created, MACHINES, 0).await?;

        env.scale("a", 0).await?;
        round.kill_at(deleted).await?;
        env.wait_for_nothing().await?;
        round.counts_are(deleted, MACHINES, MACHINES).await?;
    }
    if env.cluster().control_plane().is_some() {
        // The audit log records a request of a killed client as a timeout, whether it was applied or not.
        let (requests, all) = (env.requests().await?, u64::try_from(MACHINES * CREATIONS.len())?);
        for (verb, done) in [("patch", 201), ("delete", 200)] {
            let (certain, open) = (requests.exactly(verb, "machines", done), requests.exactly(verb, "machines", 504));
            assert!(certain <= all && all <= certain + open, "{verb}: not {all}\n{requests}");
        }
    }
    env.end().await
}

/// From no machine to all of them, and back.
struct Round<'a> {
    env: &'a Environment,
    machines: usize,
    nodes: usize,
    created: u64,
    deleted: u64,
}

impl<'a> Round<'a> {
    async fn begin(env: &'a Environment) -> TestResult<Self> {
        let stats = env.cloud().stats().await?;
        let (machines, nodes) = (env.machines().mark(), env.nodes().mark());
        Ok(Self { env, machines, nodes, created: stats.created, deleted: stats.deleted })
    }

    async fn kill_at(&self, moment: Moment) -> TestResult {
        self.env.in_time(&format!("the moment {moment:?}"), self.reach(moment)).await??;
        let mut manager = self.env.manager().await?;
        manager.kill_9();
        Ok(manager.start_again().await?)
    }

    async fn reach(&self, moment: Moment) -> TestResult {
        let (machines, since) = (self.env.machines(), self.machines);
        match moment {
            Moment::Machines(count) => machines.until(|all| distinct(all, since, |_| true) >= count).await,
            Moment::Linked(count) => {
                machines.until(|all| distinct(all, since, |it| it.object.provider_id().is_some()) >= count).await;
            }
            Moment::Deleting(count) => {
                machines.until(|all| distinct(all, since, |it| it.object.is_deleting()) >= count).await;
            }
            Moment::Terminating(count) => {
                let is = |it: &Change<Machine>| it.object.phase().as_str() == "Terminating";
                machines.until(|all| distinct(all, since, is) >= count).await;
            }
            Moment::Gone(count) => machines.until(|all| distinct(all, since, |it| it.gone) >= count).await,
            Moment::Nodes(count) => self.env.nodes().until(|all| distinct(all, self.nodes, |_| true) >= count).await,
            Moment::NodesLeaving(count) => {
                let leaves = |it: &Change<Node>| it.gone || it.object.metadata.deletion_timestamp.is_some();
                self.env.nodes().until(|all| distinct(all, self.nodes, leaves) >= count).await;
            }
            Moment::Vms(count) => self.until_cloud(|created, _| created >= count).await?,
            Moment::VmsGone(count) => self.until_cloud(|_, deleted| deleted >= count).await?,
        }
        Ok(())
    }

    async fn until_cloud(&self, reached: impl Fn(usize, usize) -> bool) -> TestResult {
        loop {
            let stats = self.env.cloud().stats().await?;
            let since = |now: u64, before: u64| usize::try_from(now - before);
            if reached(since(stats.created, self.created)?, since(stats.deleted, self.deleted)?) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// This many machines and VMs were created in this round, and this many are gone.
    async fn counts_are(&self, moment: Moment, made: usize, gone: usize) -> TestResult {
        let machines = self.env.machines();
        let stats = self.env.cloud().stats().await?;
        let counts = (machines.born_since(self.machines)?, machines.gone_since(self.machines)?);
        ensure(counts == (made, gone), || format!("{moment:?}: {counts:?} machines, not {made} and {gone}"))?;
        let counts = (stats.created - self.created, stats.deleted - self.deleted);
        let wanted = (u64::try_from(made)?, u64::try_from(gone)?);
        ensure(counts == wanted, || format!("{moment:?}: {counts:?} VMs, not {wanted:?}"))
    }
}

/// The number of objects with such a change since a mark.
fn distinct<K: kube::Resource>(all: &[Change<K>], since: usize, is: impl Fn(&Change<K>) -> bool) -> usize {
    let found = all.iter().skip(since).filter(|change| is(change)).filter_map(|change| change.object.uid());
    found.collect::<BTreeSet<_>>().len()
}
