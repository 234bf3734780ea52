//! Merges and validates generated configs, and compares with Ignition's own code (`hack/tools/ignition`).
//!
//! `SEQUENCES` and `SEED` of the environment set how many sequences of configs are compared, and where they begin.
//! A difference is made as small as it can be, and printed with the seed of its sequence.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod generate;
mod ignition;
mod shrink;

use generate::sequence;
use ignition::{Ignition, Verdict};
use nodewright_api::field::{FieldError, FieldPath};
use nodewright_render::ignition::{Config, parse};
use serde_json::Value;
use std::collections::BTreeSet;
use std::env;

/// How many sequences are compared unless the environment sets it: for `make test`.
const SEQUENCES: u64 = 2_000;

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, is {text}")))
}

/// What Nodewright makes of a sequence, in the form of Ignition's answer.
fn ours(configs: &[Value]) -> Verdict {
    let at = FieldPath::new("$");
    let read: Vec<_> = configs.iter().map(|config| parse(&config.to_string(), &at)).collect();
    let inputs = read.iter().map(|result| result.as_ref().err().map(|errors| paths(errors))).collect();
    let valid: Result<Vec<Config>, _> = read.into_iter().map(|result| result.map(|parsed| parsed.config)).collect();
    let merged = valid.ok().and_then(|configs| configs.into_iter().reduce(|parent, child| parent.merge(&child)));
    Verdict {
        inputs,
        result: merged.as_ref().map(|config| paths(&config.validate(&at))).unwrap_or_default(),
        merged: merged.map(|config| Value::Object(config.fields().clone())),
    }
}

fn paths(errors: &[FieldError]) -> BTreeSet<String> {
    errors.iter().map(|error| error.path.to_string()).collect()
}

/// Of partitions that collide, Ignition names one, which may be another one at the next run.
fn comparable(paths: &BTreeSet<String>) -> BTreeSet<&str> {
    let whole = |path: &str| path.rfind(".partitions[").filter(|start| path[*start..].matches(['.', ']']).count() == 2);
    paths.iter().map(|path| whole(path).map_or(path.as_str(), |start| &path[..start])).collect()
}

/// The first difference, in words.
fn difference(ours: &Verdict, ignition: &Verdict) -> Option<String> {
    for (index, (ours, theirs)) in ours.inputs.iter().zip(&ignition.inputs).enumerate() {
        let differs = match (ours, theirs) {
            // An error of reading has no path in Ignition.
            (Some(_), Some(theirs)) if theirs.is_empty() || theirs.contains("$") => false,
            (ours, theirs) => ours.as_ref().map(comparable) != theirs.as_ref().map(comparable),
        };
        if differs {
            return Some(format!("config {index}: Nodewright finds {ours:?}, Ignition {theirs:?}"));
        }
    }
    if ours.merged != ignition.merged {
        return Some(format!("merged: Nodewright {:?}\n     Ignition {:?}", ours.merged, ignition.merged));
    }
    (comparable(&ours.result) != comparable(&ignition.result))
        .then(|| format!("of the merged config Nodewright finds {:?}, Ignition {:?}", ours.result, ignition.result))
}

#[test]
fn configs_merge_and_are_validated_as_by_ignition() {
    let count = number("SEQUENCES").unwrap_or(SEQUENCES);
    let seed = number("SEED").unwrap_or_else(|| if count == SEQUENCES { 0 } else { fastrand::u64(..1 << 40) });
    let mut ignition = Ignition::start();
    let (mut merged, mut refused) = (0, 0);
    for seed in seed..seed + count {
        let configs = sequence(seed);
        let (ours, theirs) = (ours(&configs), ignition.evaluate(&configs));
        if difference(&ours, &theirs).is_some() {
            report(&mut ignition, seed, configs);
        }
        merged += u64::from(theirs.merged.is_some());
        refused += u64::from(theirs.merged.is_none());
    }
    println!("{count} sequences from seed {seed}: {merged} merged, {refused} refused, none differs");
    // The comparison means little if most sequences end at a first error, or if none does.
    assert!(merged * 4 > count && refused * 4 > count, "{merged} merged, {refused} refused");
}

/// Fails with the smallest sequence that still differs.
fn report(ignition: &mut Ignition, seed: u64, configs: Vec<Value>) {
    let mut differs = |configs: &[Value]| difference(&ours(configs), &ignition.evaluate(configs));
    let smallest = shrink::shrink(configs, |configs| differs(configs).is_some());
    let difference = differs(&smallest).unwrap_or_default();
    let text: Vec<_> = smallest.iter().map(ToString::to_string).collect();
    panic!("SEED={seed} SEQUENCES=1 differs:\n  {}\n{difference}", text.join("\n  "));
}
