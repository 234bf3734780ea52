//! Machines like those of a Gardener seed: `machine.json`, and any number of machines like it that differ in all fields that
//! differ between machines.
//!
//! Each of the first [`SETS`] hundreds belongs to one MachineSet; each machine after them has a set of its own.

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::Machine;
use serde_json::Value;

/// The number of machines in a full cache.
pub(crate) const MACHINES: usize = 100_000;
/// The number of machines of an ordinary set.
pub(crate) const SET: usize = 100;
/// The number of ordinary sets, before the sets of one machine.
pub(crate) const SETS: usize = 990;

/// The first machine, with placeholders such as `@NAME@` for the fields that differ.
const MACHINE: &str = include_str!("machine.json");
/// When the first machine was created, in seconds.
const BEGAN: i64 = 1_777_636_800;

/// A generator of machines.
pub(crate) struct Fixture {
    /// Literal text and the names of placeholders, alternating.
    pieces: Vec<String>,
}

impl Fixture {
    /// Machines without the fields at these JSON pointers.
    pub(crate) fn without(paths: &[&str]) -> Self {
        let mut machine: Value = serde_json::from_str(MACHINE).expect("machine.json is JSON");
        for path in paths {
            let (parent, field) = path.rsplit_once('/').expect("a JSON pointer");
            let parent = machine.pointer_mut(parent).and_then(Value::as_object_mut);
            parent.and_then(|parent| parent.remove(field)).expect("machine.json has this field");
        }
        Self { pieces: machine.to_string().split('@').map(str::to_owned).collect() }
    }

    /// Machines without managedFields.
    pub(crate) fn bare() -> Self {
        Self::without(&["/metadata/managedFields"])
    }

    /// Writes the `number`th machine as an API server sends it. `revision` determines its heartbeats.
    pub(crate) fn write(&self, number: usize, version: u64, revision: u64, out: &mut String) {
        for (place, piece) in self.pieces.iter().enumerate() {
            let written = if place.is_multiple_of(2) {
                out.write_str(piece)
            } else {
                write_field(piece, number, version, revision, out)
            };
            written.expect("a string takes all text");
        }
    }
}

fn write_field(field: &str, number: usize, version: u64, revision: u64, out: &mut String) -> std::fmt::Result {
    let (owner, created) = (owner_of(number), BEGAN + signed(number as u64));
    match field {
        "NAME" => write!(out, "{}-{}", set_name(owner), suffix(number)),
        "UID" => out.write_str(&uid(1, number)),
        "VERSION" => write!(out, "{version}"),
        "OWNER" => out.write_str(&set_name(owner)),
        "OWNER_UID" => out.write_str(&set_uid(owner)),
        "NODE" => {
            write!(out, "ip-10-{}-{}-{}.eu-west-1.compute.internal", number >> 16, number >> 8 & 255, number & 255)
        }
        "INSTANCE" => write!(out, "i-{number:017x}"),
        "CREATED" => write!(out, "{}", time(created)),
        "JOINED" => write!(out, "{}", time(created + 95)),
        "HEARTBEAT" => write!(out, "{}", time(created + 1_000_000 + 300 * signed(revision))),
        _ => panic!("machine.json asks for {field}"),
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("a small number")
}

/// The number of a machine.
pub(crate) fn number(machine: &Machine) -> usize {
    let digits = machine.spec.provider_id.rsplit('-').next();
    digits.and_then(|digits| usize::from_str_radix(digits, 16).ok()).expect("a machine of this fixture")
}

fn owner_of(machine: usize) -> usize {
    if machine < SETS * SET { machine / SET } else { machine - SETS * SET + SETS }
}

/// The UID of a set.
pub(crate) fn set_uid(set: usize) -> String {
    uid(2, set)
}

fn set_name(set: usize) -> String {
    format!("shoot--core--prod-worker-a-z1-{:05x}", mix(set as u64) & 0xf_ffff)
}

/// Five characters like those of generated names, different for each number.
fn suffix(number: usize) -> String {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rest = number * 5_003_501 % 27usize.pow(5);
    let letter = |_| {
        let letter = LETTERS[rest % 27];
        rest /= 27;
        char::from(letter)
    };
    (0..5).map(letter).collect()
}

fn uid(kind: u64, number: usize) -> String {
    let (high, low) = (mix(kind << 32 | number as u64), mix(kind << 40 | number as u64));
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0xfff,
        low & 0xffff_ffff_ffff
    )
}

/// A pseudo-random number (the finalizer of splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The length of a machine as JSON: whole, and without managedFields.
pub(crate) fn sizes() -> (usize, usize) {
    let size = |fixture: &Fixture| {
        let mut text = String::new();
        fixture.write(MACHINES / 2, 4_000_000, 0, &mut text);
        text.len()
    };
    (size(&Fixture::without(&[])), size(&Fixture::bare()))
}
