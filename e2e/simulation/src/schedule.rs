//! What goes wrong in a run, and when: data, so that a run can be printed, replayed and shortened.

use std::fmt;

use serde::{Deserialize, Serialize};

use nodewright_e2e_cloud::FaultOrder;

/// All that goes wrong in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schedule(pub Vec<Trouble>);

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Trouble {
    /// Something becomes of a step: of a write of a manager, or of one of its calls to the cloud. Steps are counted from
    /// the start of the run, those of all managers together; leases and events do not count.
    Step {
        /// Which step, from 0.
        step: u64,
        /// What becomes of it.
        fate: Fate,
    },
    /// Something becomes of a request of a manager to the API server that is told by what it asks for, not by its place
    /// among all steps.
    Request {
        /// Its verb: `create`, `patch`, `delete`.
        verb: String,
        /// The kind, by its plural.
        plural: String,
        /// Which of those, from 0.
        number: u64,
        /// What becomes of it.
        fate: Fate,
    },
    /// The user changes something in the moment between the decision for a step and the step itself.
    Edit {
        /// Before which step, from 0.
        step: u64,
        /// What the user does.
        edit: Edit,
    },
    /// Something happens at a time.
    At {
        /// Milliseconds from the start of the run.
        millis: u64,
        /// What happens.
        act: Act,
    },
}

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// The manager is killed just before it would be sent.
    CrashBefore,
    /// It takes effect, and the manager is killed before it has the answer.
    CrashAfter,
    /// It takes effect, and the connection breaks before the answer.
    LoseAnswer,
    /// The connection breaks at once; it takes effect after so many seconds.
    CommitLate(u32),
    /// It takes effect at once, and is answered after so many seconds.
    AnswerLate(u32),
    /// It takes effect after so many seconds, and is answered then.
    ArriveLate(u32),
    /// It is refused with this status.
    Refuse(u16),
    /// It takes effect, and is answered by this status all the same.
    RefuseAfter(u16),
    /// It does nothing and is never answered.
    Hang,
    /// It takes effect and is never answered.
    HangAfter,
}

/// What a user does with one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edit {
    /// So many machines are wanted.
    Scale(u32),
    /// Machines of this class are wanted.
    Roll(String),
    /// A machine is deleted: the n-th by name, counted around.
    DeleteMachine(usize),
    /// A machine is removed with its finalizers, and made again under the same name: the n-th by name, counted around.
    RecreateMachine(usize),
    /// Nodes are to have a label of this name, and no longer the one before it.
    Relabel(String),
    /// The deployment is deleted.
    DeletePool,
}

/// What a user does that no controller expects, and mends after a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Mistake {
    /// A copy is made of a machine, the n-th by name, counted around; in the end the copy is deleted.
    Copy {
        /// Which machine.
        machine: usize,
        /// Whether the copy has its labels.
        labelled: bool,
    },
    /// A machine is made by hand that names a VM of another cluster; in the end it is deleted.
    Claim,
    /// The same, and the machine runs: it comes from machine-controller-manager, or from a backup with its status.
    RunningClaim,
    /// The Node of the n-th machine says that its machine has put there what others have: its kubelet may write that.
    ForgeRecord(usize),
    /// The `spec.providerID` of the n-th machine is that of a VM of another cluster.
    ProviderId(usize),
    /// The label `node` of the n-th machine names a Node of no machine.
    NodeLabel(usize),
    /// The classes name another cluster, so that their VMs are not found.
    ClassCluster,
    /// A class names a Secret that does not exist.
    ClassSecret(String),
    /// There is a second Node with the providerID of the n-th machine; in the end it is deleted.
    NodeByHand(usize),
    /// The n-th object of a kind (its plural) is one that our types do not read, and the manager is started again.
    Garble(String, usize),
}

/// What happens at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Act {
    /// The user deletes the deployment and its sets without their machines (`--cascade=orphan`), and makes the deployment
    /// again.
    OrphanMachines,
    /// Somebody else writes into machines, sets and the deployment, so many times, every 20 ms.
    Disturb(u32),
    /// Somebody else takes their status off machines, sets and the deployment, so many times, every 20 ms.
    WipeStatus(u32),
    /// Somebody else takes their owners off machines and sets, so many times, every 20 ms.
    TakeOwners(u32),
    /// All objects of the namespace are removed and put back from a backup, with other UIDs.
    Restore,
    /// The API server forgets who owns the fields of all objects.
    DropManagedFields,
    /// The manager is killed; another one starts.
    Crash,
    /// For so many seconds a second manager works beside the first, and both believe that they may.
    SecondManager(u32),
    /// The manager's clock jumps ahead by so many seconds, or back.
    JumpClock(i64),
    /// So many seconds go by for the manager, and its timers do not notice: it was stopped, or its computer slept.
    Sleep(u32),
    /// The watches of a kind (its plural) are silent for so many seconds.
    HoldWatches(String, u32),
    /// What the watches of a kind have to tell comes so many milliseconds late, for a minute.
    LateWatches(String, u32),
    /// What the watches of the second manager alone have to tell of a kind comes so many milliseconds late, for a minute.
    LateRival(String, u32),
    /// The manager is killed, and the next one talks for a minute to an API server that lies so many milliseconds behind:
    /// who takes any version gets an old one, and all changes come late.
    LaggingServer(u32),
    /// The watches of a kind break.
    CutWatches(String),
    /// The API server forgets its history: watches that lie behind have to list again.
    Compact,
    /// For so many seconds nobody reaches the API server.
    ApiDown(u32),
    /// For half a minute each answer of the API server to a manager takes so many milliseconds.
    ApiSlow(u32),
    /// For so many seconds the API server refuses a share (in percent) of a manager's requests with this status.
    ApiRefuses {
        /// The status: 409, 429, 500, 503, 504.
        code: u16,
        /// Of a hundred requests.
        percent: u8,
        /// For so long.
        seconds: u32,
    },
    /// For so many seconds a share (in percent) of a manager's requests, reads and watches too, is never answered.
    ApiSwallows {
        /// Of a hundred requests.
        percent: u8,
        /// For so long.
        seconds: u32,
    },
    /// For so many seconds nobody reaches the cloud.
    CloudDown(u32),
    /// The cloud errs.
    Cloud(FaultOrder),
    /// A VM dies: the n-th by name, counted around.
    KillVm(usize),
    /// The kubelet of a VM is silent for so many seconds.
    SilenceKubelet(usize, u32),
    /// A user makes a mistake, and mends it after so many seconds.
    Err(Mistake, u32),
    /// What a user does with one request.
    #[serde(untagged)]
    Edit(Edit),
}

impl From<Edit> for Act {
    fn from(edit: Edit) -> Self {
        Self::Edit(edit)
    }
}

impl Act {
    /// Whether only the manager and what it talks to err: machines and users go on as if nothing had happened.
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
            | Self::CloudDown(_) => true,
            Self::Edit(_)
            | Self::Err(..)
            | Self::OrphanMachines
            | Self::Disturb(_)
            | Self::WipeStatus(_)
            | Self::TakeOwners(_)
            | Self::Restore
            | Self::JumpClock(_)
            | Self::ApiDown(_)
            | Self::Cloud(_)
            | Self::KillVm(_)
            | Self::SilenceKubelet(..) => false,
        }
    }
}

impl Schedule {
    /// Whether only the manager and what it talks to err.
    pub fn is_controller_side(&self) -> bool {
        self.0.iter().all(|trouble| match trouble {
            Trouble::Step { .. } | Trouble::Request { .. } => true,
            Trouble::Edit { .. } => false,
            Trouble::At { act, .. } => act.is_controller_side(),
        })
    }

    /// What becomes of single steps and requests, whichever these are.
    pub fn fates(&self) -> impl Iterator<Item = Fate> {
        self.0.iter().filter_map(|trouble| match trouble {
            Trouble::Step { fate, .. } | Trouble::Request { fate, .. } => Some(*fate),
            Trouble::Edit { .. } | Trouble::At { .. } => None,
        })
    }

    /// Whether somebody else writes into everything, or two managers do at a time: then all is written often.
    pub fn is_exciting(&self, elects: bool) -> bool {
        self.acts().iter().any(|(_, act)| match act {
            Act::Disturb(_) | Act::WipeStatus(_) | Act::TakeOwners(_) => true,
            Act::SecondManager(_) => !elects,
            _ => false,
        })
    }

    /// How many VMs die or fall silent.
    pub fn deaths(&self) -> u32 {
        let is_death = |act: &Act| matches!(act, Act::KillVm(_) | Act::SilenceKubelet(..));
        u32::try_from(self.acts().iter().filter(|(_, act)| is_death(act)).count()).unwrap_or(u32::MAX)
    }

    /// Whether clocks go wrong: then what is judged by time is judged by the wrong one.
    pub fn has_wrong_clocks(&self) -> bool {
        self.acts().iter().any(|(_, act)| matches!(act, Act::JumpClock(_) | Act::Sleep(_)))
    }

    /// Whether users make mistakes and nothing else goes wrong.
    pub fn only_users_err(&self) -> bool {
        let is_user = |act: &Act| {
            matches!(act, Act::Err(..) | Act::Edit(Edit::Scale(_) | Edit::Relabel(_) | Edit::DeleteMachine(_)))
        };
        self.0.iter().all(|trouble| matches!(trouble, Trouble::At { act, .. } if is_user(act)))
    }

    /// What happens when, in its order.
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
            fate: Fate::CommitLate(25),
        };
        let schedule = Schedule(vec![
            Trouble::Step { step: 4, fate: Fate::CrashBefore },
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
