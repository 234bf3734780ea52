//! The fleet brake: so many Machines are unhealthy at once that the cause is not theirs, and that to replace them would do harm.
//!
//! # Guarantees
//! * It follows from the objects alone, at each plan: it begins and ends by itself, and a new leader decides the same.
//! * It costs a look-up for each MachineClass, however many Machines there are.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use nodewright_api::{Machine, MachineClass, MachinePhase, MachineSet, OperationType};
use nodewright_observability::metrics::Metrics;
use nodewright_runtime::{
    cache::{Index, Store, Stores},
    object::{is_deleting, name, namespace},
};
use prometheus_client::encoding::EncodeLabelSet;

use crate::shared::{CONTROL, gauges::register_gauge, indexes::object_key};

/// Fewer unhealthy Machines are no sign of a common cause.
const FEWEST: usize = 3;

/// From which percentages on the brake holds. 100 switches it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrakeSettings {
    /// Of the Machines of a zone (`--fleet-brake-zone-percent`).
    pub zone_percent: u8,
    /// Of all Machines of the namespace (`--fleet-brake-percent`).
    pub fleet_percent: u8,
    /// How long after it was due a Machine is replaced although the brake has stopped, one at a time (`--fleet-brake-timeout`). In a
    /// small fleet nothing would ever be replaced: a share of the machines is all of them. Zero: never.
    pub timeout: SignedDuration,
}

impl BrakeSettings {
    /// A brake that never holds.
    pub const OFF: Self = Self { zone_percent: 100, fleet_percent: 100, timeout: SignedDuration::ZERO };
}

impl Default for BrakeSettings {
    fn default() -> Self {
        Self { zone_percent: 55, fleet_percent: 30, timeout: SignedDuration::from_hours(1) }
    }
}

/// How hard the brake holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Off,
    /// One Machine of the namespace is replaced at a time.
    Trickle,
    /// Only Machines are replaced whose VM is gone, or that have waited for the timeout, one at a time.
    Stop,
}

/// The Machines of a zone, or of all zones, that were up before: unhealthy ones, and all.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    unhealthy: usize,
    all: usize,
}

/// Half of the way from the percentage of the trickle to all.
fn stop_percent(percent: u8) -> u8 {
    percent.saturating_add(100) / 2
}

impl Share {
    /// Trickle above the percentage, stop above half of the way from there to all.
    fn level(self, percent: u8) -> Level {
        let exceeds = |percent: usize| self.unhealthy.saturating_mul(200) > self.all.saturating_mul(percent);
        let percent = usize::from(percent);
        match () {
            () if self.unhealthy < FEWEST || !exceeds(2 * percent) => Level::Off,
            () if !exceeds(100 + percent) => Level::Trickle,
            () => Level::Stop,
        }
    }
}

/// The brake of one zone, and why it holds.
#[derive(Clone, Debug, Default)]
pub struct Brake {
    pub level: Level,
    /// What is unhealthy; without counts, which would be written again and again.
    pub cause: String,
    /// See [`BrakeSettings::timeout`].
    pub timeout: SignedDuration,
}

/// The levels of all zones, and of the whole fleet under the empty name.
pub(super) struct Levels {
    by_zone: BTreeMap<String, Level>,
    settings: BrakeSettings,
}

impl Levels {
    pub(super) fn take(stores: &Stores, settings: BrakeSettings) -> Self {
        Self { by_zone: levels(stores, settings), settings }
    }

    /// The brake for the Machines of a set: that of its zone, or that of the fleet if that holds as hard.
    pub(super) fn of(&self, stores: &Stores, set: &MachineSet) -> Brake {
        let BrakeSettings { zone_percent, fleet_percent, timeout } = self.settings;
        let level = |zone: &str| self.by_zone.get(zone).copied().unwrap_or_default();
        let classes = stores.of::<MachineClass>(CONTROL);
        let class = classes.by_name(namespace(set), &set.spec.template.spec.class.name);
        let zone = class.as_deref().and_then(zone_of).unwrap_or_default();
        let percent = |level: Level, percent: u8| match level {
            Level::Stop => stop_percent(percent),
            Level::Off | Level::Trickle => percent,
        };
        let cause = if level("") >= level(zone) {
            format!("more than {} % of all machines are unhealthy at once", percent(level(""), fleet_percent))
        } else {
            let percent = percent(level(zone), zone_percent);
            format!("more than {percent} % of the machines of zone {zone} are unhealthy at once")
        };
        Brake { level: level(zone).max(level("")), cause, timeout }
    }
}

impl Brake {
    pub(super) fn text(&self) -> String {
        let ends = match self.level {
            Level::Off | Level::Trickle => "one machine of the namespace is replaced at a time".to_owned(),
            Level::Stop => {
                let others = format!(", and others after {:#}, one at a time", self.timeout);
                let others = if self.timeout.is_zero() { "" } else { &others };
                format!("only machines whose VM is gone are replaced{others}; delete the machine to replace it now")
            }
        };
        let flags = "flags --fleet-brake-percent, --fleet-brake-zone-percent, --fleet-brake-timeout";
        format!("the fleet brake holds: {}; until fewer are, {ends} ({flags})", self.cause)
    }

    /// Why a Machine of this name is replaced although the brake has stopped.
    pub(super) fn timed_out(&self, machine: &str) -> String {
        let (cause, timeout) = (&self.cause, self.timeout);
        format!(
            "{cause}, and that for so long that machine {machine} is replaced: the fleet brake ends for it after {timeout:#}"
        )
    }
}

fn levels(stores: &Stores, settings: BrakeSettings) -> BTreeMap<String, Level> {
    let (classes, machines) = (stores.of::<MachineClass>(CONTROL), stores.of::<Machine>(CONTROL));
    let mut shares: BTreeMap<String, Share> = BTreeMap::from([(String::new(), Share::default())]);
    for class in classes.all() {
        let own = share(&machines, &class);
        let zone = zone_of(&class).map(str::to_owned);
        for key in zone.into_iter().chain([String::new()]) {
            let share = shares.entry(key).or_default();
            *share = Share { unhealthy: share.unhealthy + own.unhealthy, all: share.all + own.all };
        }
    }
    let percent = |zone: &str| if zone.is_empty() { settings.fleet_percent } else { settings.zone_percent };
    shares.into_iter().map(|(zone, share)| (zone.clone(), share.level(percent(&zone)))).collect()
}

fn share(machines: &Store<Machine>, class: &MachineClass) -> Share {
    let key = object_key(namespace(class), name(class));
    let unhealthy = machines.count(UNHEALTHY_BY_CLASS, &key);
    Share { unhealthy, all: unhealthy + machines.count(HEALTHY_BY_CLASS, &key) }
}

/// The zone in which the VMs of a class are.
fn zone_of(class: &MachineClass) -> Option<&str> {
    class.node_template.as_ref().map(|template| template.zone.as_str()).filter(|zone| !zone.is_empty())
}

pub(in super::super) const HEALTHY_BY_CLASS: Index<Machine> =
    Index { name: "healthy", key_of: |machine| of_class_if(is_up(machine), machine) };

pub(in super::super) const UNHEALTHY_BY_CLASS: Index<Machine> =
    Index { name: "unhealthy", key_of: |machine| of_class_if(is_unhealthy(machine), machine) };

fn of_class_if(is_listed: bool, machine: &Machine) -> Option<String> {
    is_listed.then(|| object_key(namespace(machine), machine.class_name()))
}

fn is_up(machine: &Machine) -> bool {
    !is_deleting(machine) && matches!(machine.phase(), MachinePhase::Running | MachinePhase::Available)
}

/// Whether a Machine was up, and is so no longer. One that has never come up says nothing about the others.
fn is_unhealthy(machine: &Machine) -> bool {
    let operation = || machine.status.as_ref().map(|status| status.last_operation.operation_type.clone());
    !is_deleting(machine)
        && match machine.phase() {
            // Somebody repairs the Node.
            MachinePhase::Unknown => !machine.is_health_timeout_disabled(),
            MachinePhase::Failed => operation() == Some(OperationType::HealthCheck),
            _ => false,
        }
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ZoneLabel {
    zone: String,
}

/// Registers `machine_fleet_brake`: 1 while replacements trickle, 2 while they have stopped; by zone, and of all Machines under the
/// empty zone.
pub(crate) fn register(metrics: &Metrics, stores: Stores, settings: BrakeSettings) {
    let value = |level| match level {
        Level::Off => 0,
        Level::Trickle => 1,
        Level::Stop => 2,
    };
    let levels = move || levels(&stores, settings).into_iter();
    let series = move || levels().map(|(zone, level)| (ZoneLabel { zone }, value(level))).collect();
    let help =
        "1 while the fleet brake lets one machine be replaced at a time, 2 while it lets none; zone \"\" is the fleet";
    register_gauge(metrics, "machine_fleet_brake", help, series);
}

#[cfg(test)]
mod tests {
    use nodewright_testing::object;
    use serde_json::json;

    use super::*;
    use crate::testing::{MachineExt, NOW, machine, machine_set};

    /// A class for each zone, with so many unhealthy Machines and so many in all.
    fn stores(zones: &[(&str, usize, usize)]) -> Stores {
        let classes = Store::<MachineClass>::new(CONTROL, "default");
        let machines = Store::<Machine>::new(CONTROL, "default");
        machines.add_index(HEALTHY_BY_CLASS);
        machines.add_index(UNHEALTHY_BY_CLASS);
        for (zone, unhealthy, all) in zones {
            let class = format!("class-{zone}");
            let template = json!({"capacity": {}, "instanceType": "t", "region": "r", "zone": zone});
            drop(classes.apply(object(&class).with("/nodeTemplate", template).build()));
            for number in 0..*all {
                let phase = if number < *unhealthy { "Unknown" } else { "Running" };
                let of_class = machine(&format!("{class}-{number}")).with("/spec/class/name", class.as_str());
                drop(machines.apply(of_class.phase(phase).build()));
            }
        }
        let stores = Stores::default();
        stores.add(std::sync::Arc::new(classes));
        stores.add(std::sync::Arc::new(machines));
        stores
    }

    /// The brake for a set of a zone.
    fn brake(zones: &[(&str, usize, usize)], zone: &str) -> (Level, String) {
        let stores = stores(zones);
        let mut set = machine_set("set", 1, None);
        set.spec.template.spec.class.name = format!("class-{zone}");
        let brake = Levels::take(&stores, BrakeSettings::default()).of(&stores, &set);
        (brake.level, brake.cause)
    }

    #[test]
    fn a_zone_brakes_for_itself_and_the_fleet_for_all() {
        let table = [
            (vec![("a", 4, 5), ("b", 0, 20)], "a", Level::Stop, "77 % of the machines of zone a"),
            (vec![("a", 4, 5), ("b", 0, 20)], "b", Level::Off, "30 % of all machines"),
            (vec![("a", 6, 10), ("b", 0, 20)], "a", Level::Trickle, "55 % of the machines of zone a"),
            (vec![("a", 4, 5), ("b", 6, 20)], "b", Level::Trickle, "30 % of all machines"),
            (vec![("a", 4, 5), ("b", 6, 20)], "a", Level::Stop, "77 % of the machines of zone a"),
            (vec![("a", 5, 5), ("b", 15, 20)], "a", Level::Stop, "65 % of all machines"),
            (vec![("a", 5, 5), ("b", 15, 20)], "b", Level::Stop, "65 % of all machines"),
            (vec![("", 2, 2)], "", Level::Off, "30 % of all machines"),
            (vec![("", 4, 10)], "", Level::Trickle, "30 % of all machines"),
            (vec![("a", 0, 5)], "unknown", Level::Off, "30 % of all machines"),
        ];
        for (zones, zone, level, cause) in table {
            let expected = (level, format!("more than {cause} are unhealthy at once"));
            assert_eq!(brake(&zones, zone), expected, "zone {zone:?} of {zones:?}");
        }
    }

    #[test]
    fn only_machines_count_that_were_up_and_that_nobody_repairs() {
        let of = |phase: &str| machine("m").phase(phase);
        let failed = |operation: &str| of("Failed").with("/status/lastOperation", json!({"type": operation}));
        let disabled = json!([{"type": "HealthTimeout", "status": "False", "reason": "Disabled"}]);
        let table = [
            ("Running", of("Running"), (true, false)),
            ("Available", of("Available"), (true, false)),
            ("Pending", of("Pending"), (false, false)),
            ("Unknown", of("Unknown"), (false, true)),
            ("Failed after it was up", failed("HealthCheck"), (false, true)),
            ("Failed before", failed("Create"), (false, false)),
            ("Running, and being deleted", of("Running").with("/metadata/deletionTimestamp", NOW), (false, false)),
            ("Unknown, and being repaired", of("Unknown").with("/status/conditions", disabled), (false, false)),
            ("Unknown, and being deleted", of("Unknown").with("/metadata/deletionTimestamp", NOW), (false, false)),
        ];
        for (what, machine, expected) in table {
            let machine = machine.build();
            assert_eq!((is_up(&machine), is_unhealthy(&machine)), expected, "{what}");
        }
    }

    #[test]
    fn metrics_have_the_level_of_each_zone() {
        let metrics = Metrics::new();
        register(&metrics, stores(&[("a", 4, 5), ("b", 6, 20), ("c", 0, 1)]), BrakeSettings::default());
        let text = metrics.encode().unwrap();
        for line in [r#"zone=""} 1"#, r#"zone="a"} 2"#, r#"zone="b"} 0"#, r#"zone="c"} 0"#] {
            assert!(text.contains(&format!("machine_fleet_brake{{{line}")), "{line}: {text}");
        }
    }

    #[test]
    fn it_trickles_above_the_percentage_and_stops_half_of_the_way_to_all() {
        let level = |unhealthy, all, percent| Share { unhealthy, all }.level(percent);
        let table = [
            ((2, 2, 30), Level::Off, "two are no sign of a common cause"),
            ((3, 10, 30), Level::Off, "30 % are not more than 30 %"),
            ((4, 10, 30), Level::Trickle, "40 %"),
            ((65, 100, 30), Level::Trickle, "65 %"),
            ((66, 100, 30), Level::Stop, "66 %"),
            ((55, 100, 55), Level::Off, "55 %"),
            ((56, 100, 55), Level::Trickle, "56 %"),
            ((3, 3, 55), Level::Stop, "all"),
            ((100, 100, 100), Level::Off, "it is switched off"),
        ];
        for ((unhealthy, all, percent), expected, case) in table {
            assert_eq!(level(unhealthy, all, percent), expected, "{case}");
        }
    }
}
