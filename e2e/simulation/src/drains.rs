//! The invariants of drains: I17 to I21 of `docs/reference/simulation.md`. What pods, volumes and budgets there are is taken from
//! the changes at the API server, and evaluated apart from what that server, its controllers and the product make of it.

use std::{collections::BTreeMap, time::Duration};

use nodewright_api::{GoDuration, labels};
use nodewright_testing::api_server::{ChangeRecord, RequestRecord};
use serde_json::Value;
use tokio::time::Instant;

use crate::workload::{Budget, Truth, Workload};

/// The default drain timeout, the time until the pods of a Node that is not ready are deleted, and the time that a volume has to be
/// detached.
const DRAIN_TIMEOUT: Duration = Duration::from_hours(2);
const NOT_READY_LIMIT: Duration = Duration::from_mins(5);
const DETACH_TIMEOUT: Duration = Duration::from_mins(2);
/// Times in objects are whole seconds.
const ROUNDED: Duration = Duration::from_secs(1);
/// A drain that is forced or overdue has a minute for the pods and one for the volumes; a request may take a while more.
const FORCED: Duration = Duration::from_secs(60 + 60 + 30);
/// More time for each fault of a step: the next manager begins the two minutes again.
const EACH_FAULT: Duration = Duration::from_secs(150);
/// After an outage, or the end of a manager.
const AFTER_FAULT: Duration = Duration::from_mins(8);
/// A manager that starts lists all objects within this time.
const LISTED: Duration = Duration::from_secs(5);
/// The API server may answer from the past by this much.
const FURTHEST_LAG: Duration = Duration::from_secs(35);

/// What the oracles of drains may expect of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Expectations {
    /// Whether the clocks of managers are right: with wrong clocks, drains are overdue at other times.
    pub(super) trusts_clocks: bool,
    /// Whether the API server answers from the past.
    pub(super) is_lagging: bool,
    /// The number of faults of single steps.
    pub(super) faults: u32,
}

#[derive(Default)]
pub(super) struct Drains {
    expectations: Expectations,
    pods: BTreeMap<String, Pod>,
    nodes: BTreeMap<String, Node>,
    /// By name.
    attachments: BTreeMap<String, Attachment>,
    /// The volume of each claim.
    claims: BTreeMap<String, String>,
    /// Whether each volume is at the provider.
    volumes: BTreeMap<String, bool>,
    budgets: BTreeMap<String, Counted>,
    /// The machines that are being deleted, by UID, and the names of the others.
    terminating: BTreeMap<String, Termination>,
    kept: BTreeMap<String, String>,
    /// Since when nothing but the target's API server disturbs managers.
    calm_since: Option<Instant>,
    /// When the API server of the target cluster was last away: the beginning and the end.
    target_away: Option<(Instant, Instant)>,
}

struct Pod {
    uid: String,
    app: String,
    node: String,
    bound: Instant,
    claims: Vec<String>,
    /// Whether a drain removes it.
    leaves: bool,
    is_ready: bool,
    is_finished: bool,
    /// The end of its grace period, if it is being deleted.
    ends: Option<Instant>,
}

#[derive(Default)]
struct Node {
    cordoned: Option<Instant>,
    /// Since when it is not ready, and whether its kubelet is silent.
    not_ready: Option<Instant>,
    is_silent: bool,
    /// Since when its status lists no volume.
    bare: Option<Instant>,
}

struct Attachment {
    volume: String,
    node: String,
    made: Instant,
    /// Since when no pod of the Node uses it.
    loose: Option<Instant>,
}

struct Counted {
    app: String,
    desired: u32,
    /// How many healthy pods the status counts.
    said: u64,
    /// Whether pods have become unhealthy that the status has yet to count, other than by evictions.
    is_misled: bool,
}

struct Termination {
    name: String,
    since: Instant,
    drain_timeout: Duration,
    is_forced: Option<Instant>,
    /// Whether its VM has been deleted.
    is_reported: bool,
}

impl Drains {
    pub(super) fn of(workload: &Workload, expectations: Expectations) -> Self {
        let budgets = workload.budgets().into_iter().map(|Truth { name, app, budget, wanted }| {
            (name, Counted { app, desired: Budget::desired(budget, wanted), said: 0, is_misled: false })
        });
        Self { expectations, budgets: budgets.collect(), ..Self::default() }
    }

    /// Observes a change. Returns the violations.
    pub(super) fn change(&mut self, plural: &str, name: &str, change: &ChangeRecord) -> Vec<String> {
        let (old, new) = (change.old.as_deref(), change.new.as_deref());
        match plural {
            "pods" => {
                let wrongs = self.pod(name, new);
                self.loosen();
                return wrongs;
            }
            "nodes" => self.node(name, new),
            "machines" => self.machine(old, new),
            "persistentvolumeclaims" => {
                let volume = new.and_then(|claim| claim["spec"]["volumeName"].as_str());
                self.claims.extend(volume.map(|volume| (name.to_owned(), volume.to_owned())));
            }
            "persistentvolumes" => {
                let driver = new.map(|volume| &volume["spec"]["csi"]["driver"]);
                self.volumes.extend(driver.map(|driver| (name.to_owned(), *driver == crate::workload::PROVIDER)));
            }
            "volumeattachments" => {
                self.attachment(name, new);
                self.loosen();
            }
            "poddisruptionbudgets" => self.counted(name, new),
            _ => {}
        }
        vec![]
    }

    fn pod(&mut self, name: &str, new: Option<&Value>) -> Vec<String> {
        let old = self.pods.remove(name);
        let was_healthy = old.as_ref().is_some_and(Pod::is_healthy);
        let bound = old.as_ref().filter(|old| !old.node.is_empty()).map(|old| old.bound);
        let ends = old.as_ref().and_then(|old| old.ends);
        let new = new.map(|pod| Pod::of(pod, bound, ends));
        let is_healthy = new.as_ref().is_some_and(|new| new.pod.is_healthy());
        let app = old.as_ref().or(new.as_ref().map(|new| &new.pod)).map(|pod| pod.app.clone()).unwrap_or_default();
        let is_evicted = new.as_ref().is_some_and(|new| new.is_evicted);
        self.pods.extend(new.map(|new| (name.to_owned(), new.pod)));
        if was_healthy == is_healthy {
            return vec![];
        }
        let healthy = self.healthy(&app);
        let mut wrongs = vec![];
        for (budget, counted) in self.budgets.iter_mut().filter(|(_, counted)| counted.app == app) {
            let desired = counted.desired as usize;
            if healthy as u64 == counted.said {
                counted.is_misled = false;
            } else if is_healthy {
                // A status that counts too few misleads nobody.
            } else if !is_evicted {
                counted.is_misled = true;
            } else if healthy < desired && !counted.is_misled {
                wrongs.push(format!(
                    "I18: pod {name} was evicted: budget {budget} wants {desired} healthy pods, and there are {healthy}"
                ));
            }
        }
        wrongs
    }

    /// The number of healthy pods of an app.
    fn healthy(&self, app: &str) -> usize {
        self.pods.values().filter(|pod| pod.app == app && pod.is_healthy()).count()
    }

    /// Once a budget counts as many pods as there are, it misleads nobody.
    fn counted(&mut self, name: &str, new: Option<&Value>) {
        let Some(app) = self.budgets.get(name).map(|counted| counted.app.clone()) else { return };
        let healthy = self.healthy(&app) as u64;
        let said = new.and_then(|budget| budget["status"]["currentHealthy"].as_u64()).unwrap_or(0);
        if let Some(counted) = self.budgets.get_mut(name) {
            counted.said = said;
            counted.is_misled &= said != healthy;
        }
    }

    fn node(&mut self, name: &str, new: Option<&Value>) {
        let (Some(new), now) = (new, Instant::now()) else {
            self.nodes.remove(name);
            return;
        };
        let node = self.nodes.entry(name.to_owned()).or_default();
        let since = |is: bool, before: Option<Instant>| is.then(|| before.unwrap_or(now));
        node.cordoned = since(new["spec"]["unschedulable"] == true, node.cordoned);
        let ready = new["status"]["conditions"].as_array().into_iter().flatten().find(|it| it["type"] == "Ready");
        node.not_ready = since(ready.is_some_and(|ready| ready["status"] != "True"), node.not_ready);
        node.is_silent = ready.is_some_and(|ready| ready["status"] == "Unknown");
        let listed = new["status"]["volumesAttached"].as_array();
        node.bare = since(listed.is_none_or(Vec::is_empty), node.bare);
    }

    fn machine(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let Some(new) = new else {
            let uid = old.and_then(|old| old["metadata"]["uid"].as_str()).unwrap_or_default();
            self.terminating.remove(uid);
            self.kept.remove(uid);
            return;
        };
        let (metadata, text) = (&new["metadata"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let uid = text(&metadata["uid"]);
        if metadata["deletionTimestamp"].is_null() {
            self.kept.insert(uid, text(&metadata["name"]));
            return;
        }
        self.kept.remove(&uid);
        let timeout = new["spec"]["drainTimeout"].as_str().and_then(|text| text.parse::<GoDuration>().ok());
        let termination = self.terminating.entry(uid).or_insert_with(|| Termination {
            name: text(&metadata["name"]),
            since: Instant::now(),
            drain_timeout: DRAIN_TIMEOUT,
            is_forced: None,
            is_reported: false,
        });
        termination.drain_timeout = timeout.map_or(DRAIN_TIMEOUT, GoDuration::to_std);
        let is_forced = metadata["labels"][labels::FORCE_DELETION].as_str().and_then(labels::parse_bool) == Some(true);
        termination.is_forced = is_forced.then(|| termination.is_forced.unwrap_or_else(Instant::now));
    }

    fn attachment(&mut self, name: &str, new: Option<&Value>) {
        let Some(new) = new else {
            self.attachments.remove(name);
            return;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.attachments.entry(name.to_owned()).or_insert_with(|| Attachment {
            volume: text(&new["spec"]["source"]["persistentVolumeName"]),
            node: text(&new["spec"]["nodeName"]),
            made: Instant::now(),
            loose: None,
        });
    }

    /// Notes which attached volumes are used.
    fn loosen(&mut self) {
        let Self { attachments, pods, claims, .. } = self;
        for attachment in attachments.values_mut() {
            let uses = |pod: &Pod| {
                pod.node == attachment.node
                    && !pod.is_finished
                    && pod.claims.iter().any(|claim| claims.get(claim) == Some(&attachment.volume))
            };
            let is_used = pods.values().any(uses);
            attachment.loose = (!is_used).then(|| attachment.loose.unwrap_or_else(Instant::now));
        }
    }

    /// Whether a volume is the provider's: managers take no notice of others.
    fn is_own(&self, attachment: &Attachment) -> bool {
        self.volumes.get(&attachment.volume) == Some(&true)
    }

    /// The attached volumes of a pod that are the provider's.
    fn attached<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Attachment> {
        let is_of = |attachment: &&Attachment| {
            attachment.node == pod.node
                && self.is_own(attachment)
                && pod.claims.iter().any(|claim| self.claims.get(claim) == Some(&attachment.volume))
        };
        self.attachments.values().filter(is_of)
    }

    /// Evaluates a request that a manager sends for a pod.
    pub(super) fn request(&self, request: &RequestRecord, was_removed: impl Fn(&str) -> bool) -> Option<String> {
        let path = request.path.split_once("/pods/")?.1;
        let (name, is_eviction) = match path.split_once('/') {
            Some((name, "eviction")) => (name, true),
            None if request.verb == "delete" => (path, false),
            _ => return None,
        };
        let body = request.body.as_ref();
        let options = body.map(|body| if is_eviction { &body["deleteOptions"] } else { body });
        let uid = options.and_then(|options| options["preconditions"]["uid"].as_str());
        let Some(uid) = uid else { return Some(format!("I21: a manager removes pod {name}, whatever its UID")) };
        let pod = self.pods.get(name).filter(|pod| pod.uid == uid)?;
        if !pod.leaves {
            return Some(format!("I21: a manager removes pod {name}, which is a DaemonSet's or a mirror pod"));
        }
        let Some(termination) = self.terminating.values().find(|it| it.name == pod.node) else {
            let is_kept = self.kept.values().any(|kept| *kept == pod.node) && !was_removed(&pod.node);
            return is_kept
                .then(|| format!("I21: a manager removes pod {name} of node {}, whose machine stays", pod.node));
        };
        if self.is_forced(termination) {
            return None;
        }
        if !is_eviction {
            return Some(format!(
                "I18: pod {name} is deleted, not evicted, and its drain is neither forced nor overdue"
            ));
        }
        self.out_of_turn(name, pod)
    }

    /// Whether a drain deletes pods, and need not wait.
    fn is_forced(&self, termination: &Termination) -> bool {
        let node = self.nodes.get(&termination.name);
        let is_dead = node.and_then(|node| node.not_ready).is_some_and(|at| at.elapsed() + ROUNDED >= NOT_READY_LIMIT);
        let is_overdue = termination.since.elapsed() + ROUNDED >= termination.drain_timeout;
        !self.expectations.trusts_clocks || termination.is_forced.is_some() || is_overdue || is_dead
    }

    /// Whether an object that existed then was seen by any manager that drains the Node.
    fn is_known(&self, node: &str, at: Instant) -> bool {
        let lag = if self.expectations.is_lagging { FURTHEST_LAG } else { LISTED };
        let cordoned = self.nodes.get(node).and_then(|node| node.cordoned);
        cordoned.is_some_and(|cordoned| at + lag <= cordoned)
    }

    /// Pods with volumes leave one by one: why it is not the turn of this one.
    fn out_of_turn(&self, name: &str, pod: &Pod) -> Option<String> {
        let known = |attachment: &&Attachment| self.is_known(&pod.node, attachment.made);
        if pod.ends.is_some() || pod.is_finished || self.attached(pod).find(known).is_none() {
            return None;
        }
        let is_pending = |at: Instant| at + DETACH_TIMEOUT > Instant::now() + ROUNDED;
        // Nobody ends the pods of a silent Node.
        let is_silent = self.nodes.get(&pod.node).is_some_and(|node| node.is_silent);
        let others =
            self.pods.iter().filter(|(other, it)| it.node == pod.node && it.leaves && *other != name && !is_silent);
        let mut others = others.filter(|(_, other)| other.ends.is_some_and(is_pending) && !other.is_finished);
        if let Some((other, _)) = others.find(|(_, other)| self.attached(other).find(known).is_some()) {
            return Some(format!("I20: pod {name} is evicted, and pod {other}, which has a volume as well, is ending"));
        }
        let mut here = self.attachments.values().filter(|it| it.node == pod.node && self.is_own(it)).filter(known);
        let loose = here.find(|attachment| attachment.loose.is_some_and(is_pending))?;
        Some(format!("I20: pod {name} is evicted, and volume {} is being detached", loose.volume))
    }

    /// Evaluates the deletion of a VM. `youngest`: when the last manager started.
    pub(super) fn vm_deleted(&mut self, name: &str, youngest: Option<Instant>) -> Option<String> {
        let termination = self.terminating.values_mut().find(|it| it.name == name && !it.is_reported)?;
        termination.is_reported = true;
        let termination = self.terminating.values().find(|it| it.name == name)?;
        let node = self.nodes.get(name)?;
        if self.is_forced(termination) {
            return None;
        }
        let is_over = |pod: &Pod| node.is_silent && pod.ends.is_some_and(|ends| ends <= Instant::now() + ROUNDED);
        let mut left = self.pods.iter().filter(|(_, pod)| pod.node == name && pod.leaves && !is_over(pod));
        if let Some((pod, _)) = left.find(|(_, pod)| self.is_known(name, pod.bound)) {
            return Some(format!("I17: VM {name} was deleted, and pod {pod} was left on its node"));
        }
        // A manager that starts when the Node names no volume any more does not look for one.
        let is_unseen = node.bare.zip(youngest).is_some_and(|(bare, born)| bare <= born + LISTED);
        let is_pending = |loose: Instant| loose + DETACH_TIMEOUT > Instant::now() + ROUNDED;
        let mut attached = self.attachments.values().filter(|it| it.node == name && self.is_known(name, it.made));
        let attached = attached.find(|attachment| self.is_own(attachment) && attachment.loose.is_some_and(is_pending));
        let attached = attached.filter(|_| !is_unseen)?;
        Some(format!("I17: VM {name} was deleted, and volume {} was attached to its node", attached.volume))
    }

    /// Notes that something other than the target's API server disturbs the managers for this long.
    pub(super) fn disturbed(&mut self, lasts: Duration) {
        let calm = Instant::now() + lasts + AFTER_FAULT;
        self.calm_since = Some(self.calm_since.map_or(calm, |before| before.max(calm)));
    }

    /// Notes that managers do not reach the API server of the target cluster for this long.
    pub(super) fn target_away(&mut self, lasts: Duration) {
        self.target_away = Some((Instant::now(), Instant::now() + lasts));
    }

    /// The machine whose drain has to be over by now, and whose VM is still to be deleted. Each is named once.
    pub(super) fn overdue(&mut self, has_vm: impl Fn(&str) -> bool) -> Option<String> {
        let Self { expectations, terminating, calm_since, .. } = self;
        if !expectations.trusts_clocks || calm_since.is_some_and(|calm| Instant::now() < calm) {
            return None;
        }
        let more = FORCED + EACH_FAULT * expectations.faults;
        let due = |it: &Termination| (it.is_forced.unwrap_or(it.since + it.drain_timeout)) + more;
        let mut late = terminating.values_mut().filter(|it| !it.is_reported && Instant::now() > due(it));
        let late = late.find(|it| has_vm(&it.name))?;
        late.is_reported = true;
        Some(format!("I19: the drain of machine {} is forced or overdue, and its VM was not deleted", late.name))
    }
}

/// A pod, and whether this change is an eviction.
struct Seen {
    pod: Pod,
    is_evicted: bool,
}

impl Pod {
    fn of(pod: &Value, bound: Option<Instant>, ends: Option<Instant>) -> Seen {
        let (metadata, text) = (&pod["metadata"], |value: &Value| value.as_str().unwrap_or_default().to_owned());
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let is_daemon = list(&metadata["ownerReferences"]).iter().any(|owner| owner["kind"] == "DaemonSet");
        let is_mirror = !metadata["annotations"]["kubernetes.io/config.mirror"].is_null();
        let conditions = list(&pod["status"]["conditions"]);
        let has = |kind: &str, field: &str, value: &str| {
            conditions.iter().any(|condition| condition["type"] == kind && condition[field] == value)
        };
        let is_deleting = !metadata["deletionTimestamp"].is_null();
        let grace = Duration::from_secs(metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0));
        let claims = list(&pod["spec"]["volumes"]).into_iter().filter_map(|volume| {
            let ephemeral = || Some(format!("{}-{}", metadata["name"].as_str()?, volume["name"].as_str()?));
            let claim = volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
            claim.or_else(|| ephemeral().filter(|_| !volume["ephemeral"].is_null()))
        });
        let seen = Self {
            uid: text(&metadata["uid"]),
            app: text(&metadata["labels"]["app"]),
            node: text(&pod["spec"]["nodeName"]),
            bound: bound.unwrap_or_else(Instant::now),
            claims: claims.collect(),
            leaves: !is_daemon && !is_mirror,
            is_ready: has("Ready", "status", "True"),
            is_finished: matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
            ends: is_deleting.then(|| ends.unwrap_or_else(|| Instant::now() + grace)),
        };
        Seen { pod: seen, is_evicted: has("DisruptionTarget", "reason", "EvictionByEvictionAPI") }
    }

    fn is_healthy(&self) -> bool {
        self.is_ready && self.ends.is_none()
    }
}
