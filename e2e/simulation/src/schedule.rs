//! The faults of a run and their times, as data, so that a run can be printed, replayed and shrunk.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{names::DRAIN_WATCHED, pools::PoolChange, rollouts::RolloutAct};
use nodewright_e2e_cloud::FaultOrder;

/// All faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schedule(pub Vec<Trouble>);

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Trouble {
    /// What becomes of a step: of a manager's write, or of one of its calls to the cloud. Steps are counted from the start of the
    /// run, over all managers; leases and events do not count.
    Step {
        /// The number of the step, from 0.
        step: u64,
        /// The result.
        request_result: RequestResult,
    },
    /// The result of a manager's request to the API server that is identified by its verb and kind, not by its place among all
    /// steps.
    Request {
        /// Its verb: `create`, `patch`, `delete`.
        verb: String,
        /// The plural of the kind.
        plural: String,
        /// The number among these requests, from 0.
        number: u64,
        /// The result.
        request_result: RequestResult,
    },
    /// The user changes something between the decision for a step and the step itself.
    Edit {
        /// The number of the step, from 0.
        step: u64,
        /// The change.
        edit: Edit,
    },
    /// An event at a time.
    At {
        /// Milliseconds from the start of the run.
        millis: u64,
        /// The event.
        act: Act,
    },
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestResult {
    /// The manager is killed just before it would send the request.
    CrashBefore,
    /// The request takes effect, and the manager is killed before it gets the answer.
    CrashAfter,
    /// The request takes effect, and the connection breaks before the answer.
    LoseAnswer,
    /// The connection breaks at once, and the request takes effect after this many seconds.
    CommitLate(u32),
    /// The request takes effect at once, and is answered after this many seconds.
    AnswerLate(u32),
    /// The request takes effect after this many seconds, and is then answered.
    ArriveLate(u32),
    /// The request is refused with this status.
    Refuse(u16),
    /// The request takes effect, and is still answered with this status.
    RefuseAfter(u16),
    /// The request has no effect, and is never answered.
    Hang,
    /// The request takes effect, and is never answered.
    HangAfter,
}

/// A user's change with a single request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edit {
    /// Sets the number of replicas.
    Scale(u32),
    /// Sets the class of the machines.
    Roll(String),
    /// Deletes the n-th machine by name, modulo their number.
    DeleteMachine(usize),
    /// Does the same by force: the machine gets the label for that.
    ForceDeleteMachine(usize),
    /// Removes the n-th machine by name, modulo their number, together with its finalizers, and creates it again under the same
    /// name.
    RecreateMachine(usize),
    /// Replaces the label of the node template by one with this name.
    Relabel(String),
    /// Deletes the deployment.
    DeletePool,
    /// Annotates the n-th machine by name, modulo their number, or its Node: it is preserved, or no longer. An empty value removes the
    /// annotation.
    Preserve {
        /// The number of the machine.
        machine: usize,
        /// Whether its Node is annotated.
        on_node: bool,
        /// The value of the annotation.
        value: String,
    },
    /// Sets how many failed machines the deployment preserves by itself.
    AutoPreserve(u32),
}

/// An error of a user that no controller expects. The user corrects it after a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum UserError {
    /// Copies the n-th machine by name, modulo their number. The correction deletes the copy.
    Copy {
        /// The number of the machine.
        machine: usize,
        /// Whether the copy has the labels of the machine.
        labelled: bool,
    },
    /// Creates a machine by hand that names a VM of another cluster. The correction deletes it.
    Claim,
    /// The same, and the machine is Running: it comes from machine-controller-manager, or from a backup with its status.
    RunningClaim,
    /// The Node of the n-th machine records others' labels as its machine's own. Its kubelet has the permission to write that.
    ForgeRecord(usize),
    /// Sets the `spec.providerID` of the n-th machine to a VM of another cluster.
    ProviderId(usize),
    /// Sets the label `node` of the n-th machine to a Node that belongs to no machine.
    NodeLabel(usize),
    /// Sets another cluster name in the classes, so that their VMs are not found.
    ClassCluster,
    /// Sets a Secret in a class that does not exist.
    ClassSecret(String),
    /// Sets a creation timeout of a second in the deployment, within which no VM boots.
    ShortTimeout,
    /// Creates a second Node with the providerID of the n-th machine. The correction deletes it.
    NodeByHand(usize),
    /// The VM of the n-th machine is deleted, and its Node is replaced by one with the same name and label that belongs to a VM of
    /// another cluster and is not ready. The correction deletes that.
    NodeNamesake(usize),
    /// In another namespace, which another manager serves, a machine appears with the name of the n-th machine, and its VM with the
    /// same tags. It is never corrected.
    Neighbour(usize),
    /// The same with the name that the next machine of the first set will have.
    NeighbourAhead,
    /// Retires the ordinals of all machines of the n-th set. It is never corrected.
    EditLedger(usize),
    /// Writes the n-th object of a kind (its plural) in a form that our types cannot decode, and restarts the manager.
    Garble(String, usize),
}

/// An event at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// The user deletes the deployment and its sets without their machines (`--cascade=orphan`), and creates the deployment
    /// again.
    OrphanMachines,
    /// Another client writes into machines, sets and the deployment, this many times, every 20 ms.
    Disturb(u32),
    /// Another client removes the status of machines, sets and the deployment, this many times, every 20 ms.
    WipeStatus(u32),
    /// Another client removes the owners of machines and sets, this many times, every 20 ms.
    TakeOwners(u32),
    /// All objects of the namespace are deleted and restored from a backup, with new UIDs.
    Restore,
    /// After this many seconds the store of the API server is set back to its state of now, under the managers that run. Nothing
    /// happens in runs with pods, which would be restored without their owners' knowledge.
    SetBack(u32),
    /// The sets say that they were sized for a later generation of the deployment, which has gone with a restore.
    SizeAhead,
    /// The API server loses the field ownership of all objects.
    DropManagedFields,
    /// The manager is killed; another one starts.
    Crash,
    /// For this many seconds a second manager works beside the first, and both believe that they lead.
    SecondManager(u32),
    /// The manager's clock jumps forward by this many seconds, or back.
    JumpClock(i64),
    /// The second manager's clock jumps forward by this many seconds, or back.
    JumpRival(i64),
    /// From now on the manager's clock gains this many seconds in an hour.
    DriftClock(i64),
    /// This many seconds pass for the manager without its timers noticing: it was stopped, or its computer slept.
    Sleep(u32),
    /// The watches of a kind (its plural) are silent for this many seconds.
    HoldWatches(String, u32),
    /// The events of the watches of a kind are late by this many milliseconds, for a minute.
    LateWatches(String, u32),
    /// The same for the second manager's watches alone.
    LateRival(String, u32),
    /// The manager is killed, and for a minute the next one talks to an API server that lags by this many milliseconds: reads
    /// at any resource version get old state, and all events are late.
    LaggingServer(u32),
    /// The watches of a kind break.
    CutWatches(String),
    /// The API server drops its history: watches that lag must list again.
    Compact,
    /// For this many seconds, the API server is unreachable.
    ApiDown(u32),
    /// For half a minute, each answer of the API server to a manager takes this many milliseconds.
    ApiSlow(u32),
    /// For a time, the API server refuses a share of a manager's requests with this status.
    ApiRefuses {
        /// The status: 409, 429, 500, 503, 504.
        code: u16,
        /// The share in percent.
        percent: u8,
        /// The duration.
        seconds: u32,
    },
    /// For a time, the API server never answers a share of a manager's requests, including reads and watches.
    ApiSwallows {
        /// The share in percent.
        percent: u8,
        /// The duration.
        seconds: u32,
    },
    /// For this many seconds, managers cannot reach the API server of the target cluster: all that concerns Nodes, pods, their
    /// volumes and disruption budgets.
    TargetDown(u32),
    /// For this many seconds, a policy refuses the evictions and deletions of pods that managers ask for, with this status.
    RefusePods(u16, u32),
    /// For this many seconds, the disruption controller does not count.
    StaleBudgets(u32),
    /// The same, and a user changes the disruption budgets, so that their status is older than their spec.
    EditBudgets(u32),
    /// For this many seconds, the cloud is unreachable.
    CloudDown(u32),
    /// A fault of the cloud.
    Cloud(FaultOrder),
    /// The n-th VM by name dies, modulo their number.
    KillVm(usize),
    /// Somebody deletes the n-th VM by name, modulo their number.
    VanishVm(usize),
    /// Somebody deletes the n-th VM by name, modulo their number, and removes its machine with the finalizers.
    LoseMachine(usize),
    /// So many VMs appear that have the tags of machines that do not exist.
    LoseVms(u32),
    /// The kubelet of a VM is silent for this many seconds.
    SilenceKubelet(usize, u32),
    /// A user makes an error, and corrects it after this many seconds.
    Err(UserError, u32),
    /// The pool of node configuration changes, or its Nodes do.
    Pool(PoolChange),
    /// Something happens to pools that update their Nodes, or to the Nodes.
    Rollout(RolloutAct),
    /// A user's change with a single request.
    #[serde(untagged)]
    Edit(Edit),
}

impl From<Edit> for Act {
    fn from(edit: Edit) -> Self {
        Self::Edit(edit)
    }
}

impl Act {
    /// Whether only the manager and the servers that it talks to fail, while machines and users behave normally.
    pub fn is_controller_side(&self) -> bool {
        match self {
            Self::Crash
            | Self::Sleep(_)
            | Self::SecondManager(_)
            | Self::HoldWatches(..)
            | Self::LateWatches(..)
            | Self::LateRival(..)
            | Self::LaggingServer(_)
            | Self::CutWatches(_)
            | Self::Compact
            | Self::ApiSlow(_)
            | Self::ApiRefuses { .. }
            | Self::ApiSwallows { .. }
            | Self::DropManagedFields
            | Self::TargetDown(_)
            | Self::RefusePods(..)
            | Self::StaleBudgets(_)
            | Self::EditBudgets(_)
            | Self::CloudDown(_) => true,
            Self::Edit(_)
            | Self::Err(..)
            | Self::Pool(_)
            | Self::Rollout(_)
            | Self::OrphanMachines
            | Self::Disturb(_)
            | Self::WipeStatus(_)
            | Self::TakeOwners(_)
            | Self::Restore
            | Self::SetBack(_)
            | Self::SizeAhead
            | Self::JumpClock(_)
            | Self::JumpRival(_)
            | Self::DriftClock(_)
            | Self::ApiDown(_)
            | Self::Cloud(_)
            | Self::KillVm(_)
            | Self::VanishVm(_)
            | Self::LoseMachine(_)
            | Self::LoseVms(_)
            | Self::SilenceKubelet(..) => false,
        }
    }
}

impl Act {
    /// Whether it is a fault of the target cluster alone, for which an overdue drain does not wait.
    pub fn is_of_target(&self) -> bool {
        match self {
            Self::TargetDown(_) | Self::RefusePods(..) | Self::StaleBudgets(_) | Self::EditBudgets(_) => true,
            Self::HoldWatches(kind, _) | Self::LateWatches(kind, _) | Self::CutWatches(kind) => {
                DRAIN_WATCHED.contains(&kind.as_str())
            }
            _ => false,
        }
    }
}

impl Schedule {
    /// Whether only the manager and the servers that it talks to fail.
    pub fn is_controller_side(&self) -> bool {
        self.0.iter().all(|trouble| match trouble {
            Trouble::Step { .. } | Trouble::Request { .. } => true,
            Trouble::Edit { .. } => false,
            Trouble::At { act, .. } => act.is_controller_side(),
        })
    }

    /// The results of all single steps and requests.
    pub fn request_results(&self) -> impl Iterator<Item = RequestResult> {
        self.0.iter().filter_map(|trouble| match trouble {
            Trouble::Step { request_result, .. } | Trouble::Request { request_result, .. } => Some(*request_result),
            Trouble::Edit { .. } | Trouble::At { .. } => None,
        })
    }

    /// Whether another client writes into all objects. They are then written often.
    pub fn is_exciting(&self) -> bool {
        let is_exciting = |act: &Act| matches!(act, Act::Disturb(_) | Act::WipeStatus(_) | Act::TakeOwners(_));
        self.acts().iter().any(|(_, act)| is_exciting(act))
    }

    /// How many managers write at the same time, if they acquire no leases.
    pub fn managers(&self) -> usize {
        if self.acts().iter().any(|(_, act)| matches!(act, Act::SecondManager(_))) { 2 } else { 1 }
    }

    /// The number of faults of single steps and requests.
    pub fn aimed(&self) -> u32 {
        let is_aimed = |trouble: &&Trouble| !matches!(trouble, Trouble::At { .. });
        u32::try_from(self.0.iter().filter(is_aimed).count()).unwrap_or(u32::MAX)
    }

    /// Whether the API server answers from the past.
    pub fn is_lagging(&self) -> bool {
        self.acts().iter().any(|(_, act)| matches!(act, Act::LaggingServer(_)))
    }

    /// Whether nobody would notice what happens to VMs if their kubelets sent no heartbeats.
    pub fn needs_heartbeats(&self) -> bool {
        let is_fatal = |act: &Act| {
            matches!(
                act,
                Act::KillVm(_) | Act::VanishVm(_) | Act::LoseMachine(_) | Act::SilenceKubelet(..) | Act::SetBack(_)
            )
        };
        self.acts().iter().any(|(_, act)| is_fatal(act))
    }

    /// The number of VMs that die or become silent.
    pub fn deaths(&self) -> u32 {
        let is_death = |act: &Act| {
            matches!(act, Act::KillVm(_) | Act::VanishVm(_) | Act::LoseMachine(_) | Act::SilenceKubelet(..))
        };
        u32::try_from(self.acts().iter().filter(|(_, act)| is_death(act)).count()).unwrap_or(u32::MAX)
    }

    /// Whether clocks are wrong. Deadlines are then evaluated by a wrong clock.
    pub fn has_wrong_clocks(&self) -> bool {
        self.acts()
            .iter()
            .any(|(_, act)| matches!(act, Act::JumpClock(_) | Act::JumpRival(_) | Act::DriftClock(_) | Act::Sleep(_)))
    }

    /// Whether a user sets a creation timeout that no machine meets.
    pub fn has_short_timeout(&self) -> bool {
        self.acts().iter().any(|(_, act)| matches!(act, Act::Err(UserError::ShortTimeout, _)))
    }

    /// Whether each manager sees Machines as they are within seconds, and nobody removes what their statuses say.
    pub fn sees_machines_in_time(&self) -> bool {
        let is_late = |act: &Act| match act {
            Act::HoldWatches(kind, _) | Act::LateWatches(kind, _) | Act::LateRival(kind, _) => kind != "nodes",
            Act::SecondManager(_)
            | Act::LaggingServer(_)
            | Act::Restore
            | Act::SetBack(_)
            | Act::WipeStatus(_)
            | Act::TakeOwners(_)
            | Act::OrphanMachines
            | Act::Err(..) => true,
            _ => false,
        };
        !self.has_wrong_clocks() && !self.acts().iter().any(|(_, act)| is_late(act))
    }

    /// Whether objects keep their ages, by the time of the run.
    pub fn keeps_ages(&self) -> bool {
        !self.acts().iter().any(|(_, act)| matches!(act, Act::Restore | Act::Sleep(_)))
    }

    /// Whether users' errors are the only faults.
    pub fn only_users_err(&self) -> bool {
        let is_user = |act: &Act| {
            matches!(act, Act::Err(..) | Act::Edit(Edit::Scale(_) | Edit::Relabel(_) | Edit::DeleteMachine(_)))
        };
        self.0.iter().all(|trouble| matches!(trouble, Trouble::At { act, .. } if is_user(act)))
    }

    /// The timed events, in order.
    pub fn acts(&self) -> Vec<(u64, Act)> {
        let timed = self.0.iter().filter_map(|trouble| match trouble {
            Trouble::At { millis, act } => Some((*millis, act.clone())),
            Trouble::Step { .. } | Trouble::Request { .. } | Trouble::Edit { .. } => None,
        });
        let mut acts: Vec<_> = timed.collect();
        acts.sort_by_key(|(millis, _)| *millis);
        acts
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_written_and_read() {
        let request = |number| Trouble::Request {
            verb: "delete".to_owned(),
            plural: "machinesets".to_owned(),
            number,
            request_result: RequestResult::CommitLate(25),
        };
        let schedule = Schedule(vec![
            Trouble::Step { step: 4, request_result: RequestResult::CrashBefore },
            request(2),
            Trouble::Edit { step: 3, edit: Edit::DeletePool },
            Trouble::At { millis: 5, act: Edit::Scale(4).into() },
            Trouble::At { millis: 6, act: Edit::DeletePool.into() },
            Trouble::At { millis: 7, act: Act::Crash },
        ]);
        let text = schedule.to_string();
        assert!(
            text.contains(r#"{"at":{"millis":5,"act":{"scale":4}}},{"at":{"millis":6,"act":"delete-pool"}}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), schedule);
    }
}
