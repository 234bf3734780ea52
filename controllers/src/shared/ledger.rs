//! The ledger of a MachineSet: which names its Machines have, and which names have had their life.
//!
//! The Machines of a set have indices. A name is a bijection of the index under the ledger's seed, so two planners
//! that know nothing of one another ask for the same names, and the API server lets one of them win. An index is
//! *retired* before anything is done to its Machine that cannot be undone; a retired index is never used again.
//! So no name has a second life, and a stale view can make nothing twice.
//!
//! Machines that the set did not make (it adopted them) have no index. Before one of these is deleted its name is noted
//! in the ledger, so that for them too the set's version is compared before the harm is done.
//!
//! The ledger stands in one annotation of the set: a seed, the retired indices, and the names that are noted, such as
//! `k7f;0-41,43` or `k7f;0-41;pool-old-x7k2p`. An
//! annotation, because restores keep annotations and machine-controller-manager's CRD prunes what it does not know.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use nodewright_api::{MachineSet, annotations};
use nodewright_runtime::{
    object::annotation,
    owned::{Owned, Part},
};
use serde::Serialize;

/// The letters of generated names in Kubernetes: no vowels, nothing that looks like something else.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const LETTERS: u32 = 27;
/// How many words of three letters there are.
const WORDS: u32 = LETTERS * LETTERS * LETTERS;
/// How many indices a set can ever use.
const INDICES: u32 = WORDS * LETTERS * LETTERS;
/// Spreads neighbouring indices. Prime to 27, so that multiplying by it is a bijection of the words.
const SPREAD: u32 = 7_919;
/// Length of the suffix of a Machine's name.
const SUFFIX: usize = 5;
/// How long a Machine's name may be.
const LONGEST_NAME: usize = 63;

/// Which Machine of its set a Machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(u32);

impl Index {
    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is no ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no ledger: a seed of three letters, a semicolon, and ranges of indices are expected, as in `k7f;0-41,43`"
)]
pub struct InvalidLedger(String);

/// The seed of a set's names and the indices that have had their life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    seed: u32,
    /// First and last of each run; sorted, with a gap between any two.
    retired: Vec<(u32, u32)>,
    /// Machines without an index that have to go.
    noted: BTreeSet<String>,
}

impl Ledger {
    /// A ledger without history. Two sets with the same name, one after the other, get different seeds, so that the
    /// second does not stumble over Machines of the first that are still going away.
    pub fn seeded(entropy: &str) -> Self {
        // FNV-1a: any spread will do, but it must be the same in every version.
        let hash =
            entropy.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self { seed: hash % WORDS, retired: vec![], noted: BTreeSet::new() }
    }

    /// The name of the Machine with an index.
    ///
    /// The suffix is a bijection of the index. Among the first 19,683 indices neither the first three nor the last
    /// three of its letters repeat: machine-controller-manager derives the id of a bootstrap token from them.
    pub fn name(&self, set: &str, index: Index) -> String {
        let word = ((index.0 % WORDS) * SPREAD + self.seed) % WORDS;
        let page = index.0 / WORDS;
        let first = [word / (LETTERS * LETTERS), word / LETTERS % LETTERS, word % LETTERS];
        // With the third letter known, the fourth tells the first and the fifth tells the second: so the last three
        // letters tell the word as the first three do.
        let fourth = (first[0] + 5 * first[2] + 11 + page / LETTERS) % LETTERS;
        let fifth = (first[1] + 7 * first[2] + 3 + page) % LETTERS;
        let base = base(set);
        let mut name = String::with_capacity(base.len() + 1 + SUFFIX);
        name.push_str(base);
        name.push('-');
        name.extend(first.into_iter().chain([fourth, fifth]).map(|letter| char::from(ALPHABET[letter as usize])));
        name
    }

    /// The index that a Machine claims, if its name bears the claim out.
    pub fn index(&self, set: &str, machine: &str, claim: Option<&str>) -> Option<Index> {
        let index = Index(claim?.parse().ok().filter(|number| *number < INDICES)?);
        (self.name(set, index) == machine).then_some(index)
    }

    /// Whether an index has had its life.
    pub fn is_retired(&self, index: Index) -> bool {
        let after = self.retired.partition_point(|(first, _)| *first <= index.0);
        after > 0 && self.retired[after - 1].1 >= index.0
    }

    /// The lowest indices that are neither retired nor `seen`.
    pub fn lowest_free(&self, seen: &BTreeSet<Index>, count: usize) -> Vec<Index> {
        let mut free = Vec::with_capacity(count);
        let mut next = 0;
        let mut runs = self.retired.iter().peekable();
        while free.len() < count && next < INDICES {
            if let Some((first, last)) = runs.peek()
                && *first <= next
            {
                next = next.max(last + 1);
                runs.next();
                continue;
            }
            if !seen.contains(&Index(next)) {
                free.push(Index(next));
            }
            next += 1;
        }
        free
    }

    /// The ledger after these indices have been retired too.
    #[must_use]
    pub fn retire(&self, indices: impl IntoIterator<Item = Index>) -> Self {
        let mut runs = self.retired.clone();
        runs.extend(indices.into_iter().map(|index| (index.0, index.0)));
        runs.sort_unstable();
        let mut retired: Vec<(u32, u32)> = Vec::with_capacity(runs.len());
        for (first, last) in runs {
            match retired.last_mut() {
                Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
                _ => retired.push((first, last)),
            }
        }
        Self { seed: self.seed, retired, noted: self.noted.clone() }
    }

    /// Whether a Machine without an index has to go.
    pub fn is_noted(&self, machine: &str) -> bool {
        self.noted.contains(machine)
    }

    /// The ledger after these Machines without an index have been noted too, and those have been dropped that
    /// `present` does not hold any more: there is nothing left to compare for them.
    #[must_use]
    pub fn note(mut self, machines: impl IntoIterator<Item = String>, present: impl Fn(&str) -> bool) -> Self {
        self.noted.retain(|machine| present(machine));
        self.noted.extend(machines);
        self
    }

    /// How many indices have had their life.
    pub fn retired_count(&self) -> u64 {
        self.retired.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }
}

/// The part of a set's name that its Machines' names begin with: a Machine's name is that of a Node too, and the value
/// of labels, which have 63 letters at most. Sets with long names may share it, and keep out of each other's way by
/// their seeds.
pub fn base(set: &str) -> &str {
    let end = set.len().min(LONGEST_NAME - 1 - SUFFIX);
    set.get(..end).unwrap_or(set).trim_end_matches(['-', '.'])
}

/// The part of a Machine's name before its suffix: the name of the set that it could belong to.
pub fn set_of(machine: &str) -> Option<&str> {
    let (set, suffix) = machine.rsplit_once('-')?;
    (suffix.len() == SUFFIX && suffix.bytes().all(|letter| ALPHABET.contains(&letter))).then_some(set)
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [self.seed / (LETTERS * LETTERS), self.seed / LETTERS % LETTERS, self.seed % LETTERS];
        letters.iter().try_for_each(|letter| write!(f, "{}", char::from(ALPHABET[*letter as usize])))?;
        f.write_str(";")?;
        for (place, (first, last)) in self.retired.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        for (place, machine) in self.noted.iter().enumerate() {
            write!(f, "{}{machine}", if place == 0 { ";" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Ledger {
    type Err = InvalidLedger;

    fn from_str(text: &str) -> Result<Self, InvalidLedger> {
        let invalid = || InvalidLedger(text.chars().take(64).collect());
        let (seed, rest) = text.split_once(';').ok_or_else(invalid)?;
        let (ranges, noted) = rest.split_once(';').unwrap_or((rest, ""));
        let letter = |byte: u8| ALPHABET.iter().position(|letter| *letter == byte);
        let digits = seed.bytes().map(letter).collect::<Option<Vec<_>>>().filter(|digits| digits.len() == 3);
        let digits = digits.ok_or_else(invalid)?;
        let seed = digits.iter().fold(0, |seed, digit| seed * LETTERS + u32::try_from(*digit).unwrap_or_default());
        let noted: BTreeSet<String> = noted.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let is_name = |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
        if !noted.iter().all(is_name) {
            return Err(invalid());
        }
        let mut ledger = Self { seed, retired: vec![], noted };
        for range in ranges.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let first: u32 = first.parse().map_err(|_| invalid())?;
            let last: u32 = last.parse().map_err(|_| invalid())?;
            if first > last || last >= INDICES || ledger.retired.last().is_some_and(|(_, end)| *end >= first) {
                return Err(invalid());
            }
            ledger.retired.push((first, last));
        }
        Ok(ledger.retire([]))
    }
}

/// The ledger, in its annotation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LedgerPart {
    metadata: Annotations,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Annotations {
    annotations: BTreeMap<String, String>,
}

impl LedgerPart {
    pub(crate) fn of(ledger: &Ledger) -> Self {
        let annotations = BTreeMap::from([(annotations::LEDGER.to_owned(), ledger.to_string())]);
        Self { metadata: Annotations { annotations } }
    }
}

impl Owned for LedgerPart {
    type Of = MachineSet;
    const PART: Part = Part::Main;

    fn seen(live: &MachineSet) -> Self {
        let text = annotation(live, annotations::LEDGER).map(|text| (annotations::LEDGER.to_owned(), text.to_owned()));
        Self { metadata: Annotations { annotations: text.into_iter().collect() } }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn indices(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<Index> {
        numbers.into_iter().map(Index).collect()
    }

    #[test]
    fn text_and_back() {
        for text in ["k7f;", "bbb;0", "k7f;0-41,43", "999;5,7-9,14348906", "k7f;;pool-1", "k7f;0-2;a.b,pool-1"] {
            assert_eq!(text.parse::<Ledger>().unwrap().to_string(), text);
        }
        assert_eq!("k7f;0-3,4,5".parse::<Ledger>().unwrap().to_string(), "k7f;0-5", "neighbours are joined");
        for text in [
            "",
            "k7f",
            "k7a;",
            "k7ff;",
            "k7f;3-1",
            "k7f;x",
            "k7f;5,3",
            "k7f;14348907",
            "k7f;-1",
            "k7f;1-4,3",
            "k7f;;A b",
            "k7f;0;x;y",
        ] {
            assert!(text.parse::<Ledger>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_unique_and_so_are_the_letters_that_token_ids_are_made_of() {
        let ledger = Ledger::seeded("a");
        let names: Vec<String> = (0..WORDS).map(|index| ledger.name("s", Index(index))).collect();
        let distinct =
            |part: &dyn Fn(&str) -> String| names.iter().map(|name| part(name)).collect::<HashSet<_>>().len();
        assert_eq!(distinct(&str::to_owned), 19_683);
        assert_eq!(distinct(&|name| name[name.len() - 5..name.len() - 2].to_owned()), 19_683);
        assert_eq!(distinct(&|name| name[name.len() - 3..].to_owned()), 19_683);
    }

    #[test]
    fn names_are_a_bijection_beyond_the_first_page() {
        let ledger = Ledger::seeded("b");
        let mut seen = HashSet::new();
        for page in [0, 1, 2, 26, 27, 28, 728] {
            for word in (0..WORDS).step_by(7) {
                assert!(seen.insert(ledger.name("s", Index(page * WORDS + word))));
            }
        }
    }

    #[test]
    fn an_index_counts_only_if_the_name_bears_it_out() {
        let ledger = Ledger::seeded("c");
        let name = ledger.name("set", Index(17));
        assert_eq!(ledger.index("set", &name, Some("17")), Some(Index(17)));
        assert_eq!(ledger.index("set", &name, Some("18")), None);
        assert_eq!(ledger.index("other", &name, Some("17")), None);
        assert_eq!(ledger.index("set", &name, None), None);
        assert_eq!(ledger.index("set", &name, Some("4294967295")), None);
        assert_eq!(Ledger::seeded("d").index("set", &name, Some("17")), None, "another seed, another name");
        assert_eq!(set_of(&name), Some("set"));
        assert_eq!((set_of("worker-1"), set_of("a-aaaaa")), (None, None));
    }

    #[test]
    fn names_of_machines_fit_into_labels_however_long_the_sets_is() {
        let ledger = Ledger::seeded("h");
        let long = "a".repeat(56) + "-b.c";
        let name = ledger.name(&long, Index(3));
        assert_eq!(name.len(), 62, "{name}");
        assert_eq!(set_of(&name), Some(base(&long)));
        assert_eq!(ledger.index(&long, &name, Some("3")), Some(Index(3)));
        assert_eq!(base("short"), "short");
    }

    #[test]
    fn retired_indices_are_never_free_again() {
        let ledger = Ledger::seeded("e").retire(indices([0, 1, 2, 4, 7]));
        assert_eq!(ledger.to_string().split_once(';').unwrap().1, "0-2,4,7");
        assert!([0, 1, 2, 4, 7].into_iter().all(|index| ledger.is_retired(Index(index))));
        assert!([3, 5, 6, 8].into_iter().all(|index| !ledger.is_retired(Index(index))));
        assert_eq!(ledger.lowest_free(&indices([3, 8]), 3), [Index(5), Index(6), Index(9)]);
        assert_eq!(ledger.retire(indices([3])).to_string().split_once(';').unwrap().1, "0-4,7");
        assert_eq!(ledger.retired_count(), 5);
    }

    #[test]
    fn machines_without_an_index_are_noted_until_they_are_gone() {
        let ledger = Ledger::seeded("g").note(["old-1".to_owned(), "old-2".to_owned()], |_| true);
        assert!(ledger.is_noted("old-1") && !ledger.is_noted("old-3"));
        let later = ledger.retire(indices([4])).note(["old-3".to_owned()], |name| name == "old-2");
        assert_eq!(later.to_string().split_once(';').unwrap().1, "4;old-2,old-3");
        assert_eq!(later.to_string().parse::<Ledger>().unwrap(), later);
    }

    #[test]
    fn two_planners_ask_for_the_same_names() {
        let ledger = Ledger::seeded("f");
        let stale = ledger.lowest_free(&indices([]), 3);
        let fresh = ledger.lowest_free(&indices([0, 1]), 1);
        assert!(fresh.iter().all(|index| stale.contains(index)));
    }
}
