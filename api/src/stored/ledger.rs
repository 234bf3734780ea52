//! The ledger of a MachineSet: which names its Machines have, and which names are used up.
//!
//! A name is a bijection of a Machine's ordinal with the ledger's seed. So two planners that do not know of each other choose
//! the same names, and the API server lets only one of them create each Machine. An ordinal is *retired* before an
//! irreversible change of its Machine, and never used again, so a stale view cannot create a second Machine in its place.
//! An adopted Machine has no ordinal: its name is noted before its deletion, which so depends on the set's version, too.
//!
//! The ledger is an annotation, because restores keep these, and because the CRD of machine-controller-manager prunes unknown
//! fields: a seed, the retired ordinals, and the noted names, as in `k7f;0-41,43` or `k7f;0-41;pool-old-x7k2p`.

use std::{collections::BTreeSet, fmt, iter, str::FromStr};

use super::Malformed;

/// The letters of generated names in Kubernetes: no vowels, so that no words appear, and no letters that look alike.
pub const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const LETTERS: u32 = 27;
const WORDS: u32 = LETTERS * LETTERS * LETTERS;
/// The number of ordinals that a set can ever use.
const ORDINALS: u32 = WORDS * LETTERS * LETTERS;
/// Spreads adjacent ordinals. Coprime to 27, so that the multiplication by it is a bijection of the words.
const SPREAD: u32 = 7_919;
/// The inverse of [`SPREAD`] modulo the words.
const GATHER: u32 = 14_354;
/// The number of letters that a Machine's name has behind that of its set.
pub const SUFFIX: usize = 5;
const LONGEST_NAME: usize = 63;

/// A hash that is the same in every version.
pub fn fnv1a(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The number of a Machine in its set. The annotation `nodewright.dev/index` holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(u32);

impl Ordinal {
    /// The ordinal of a number that a set can ever use.
    pub fn new(number: u32) -> Option<Self> {
        (number < ORDINALS).then_some(Self(number))
    }
}

impl FromStr for Ordinal {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| Malformed::new("ordinal", text))
    }
}

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text is not a valid ledger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no ledger: {why}")]
pub struct InvalidLedger {
    text: String,
    why: String,
}

const EXPECTED: &str = "a seed of three letters, a semicolon, and ranges of ordinals are expected, as in `k7f;0-41,43`";

/// The seed of a set's names, and the ordinals that are used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    seed: u32,
    /// First and last of each range; sorted, with a gap between any two.
    retired: Vec<(u32, u32)>,
    /// Machines without an ordinal that are to be deleted.
    noted: BTreeSet<String>,
}

impl Ledger {
    /// A ledger without history. The UID of its set is the entropy, so that successive sets of one name have different seeds.
    pub fn seeded(entropy: &str) -> Self {
        Self { seed: fnv1a(entropy.bytes()) % WORDS, retired: vec![], noted: BTreeSet::new() }
    }

    /// The name of the Machine with an ordinal.
    ///
    /// The suffix is a bijection of the ordinal. Among the first 19,683 ordinals neither the first three nor the last
    /// three of its letters repeat: machine-controller-manager derives the id of a bootstrap token from them.
    pub fn name(&self, set: &str, ordinal: Ordinal) -> String {
        let base = base(set);
        let mut name = String::with_capacity(base.len() + 1 + SUFFIX);
        name.push_str(base);
        name.push('-');
        name.extend(self.suffix(ordinal).map(char::from));
        name
    }

    fn suffix(&self, ordinal: Ordinal) -> [u8; SUFFIX] {
        let word = ((ordinal.0 % WORDS) * SPREAD + self.seed) % WORDS;
        let page = ordinal.0 / WORDS;
        let first = [word / (LETTERS * LETTERS), word / LETTERS % LETTERS, word % LETTERS];
        // With the third letter known, the fourth determines the first and the fifth determines the second. So the last three
        // letters identify the word, as the first three do.
        let fourth = (first[0] + 5 * first[2] + 11 + page / LETTERS) % LETTERS;
        let fifth = (first[1] + 7 * first[2] + 3 + page) % LETTERS;
        [first[0], first[1], first[2], fourth, fifth].map(|letter| ALPHABET[letter as usize])
    }

    /// Whether this is the name of the Machine with an ordinal.
    fn is_name(&self, set: &str, ordinal: Ordinal, machine: &str) -> bool {
        let suffix = machine.strip_prefix(base(set)).and_then(|rest| rest.strip_prefix('-'));
        suffix.is_some_and(|suffix| suffix.as_bytes() == self.suffix(ordinal))
    }

    /// The ordinal in a Machine's annotation, if it matches the Machine's name.
    pub fn ordinal(&self, set: &str, machine: &str, noted: Option<&str>) -> Option<Ordinal> {
        let ordinal = noted?.parse().ok()?;
        self.is_name(set, ordinal, machine).then_some(ordinal)
    }

    /// Whether a Machine's name is that of an ordinal that is used up: a set wanted this Machine to go, or saw its deletion.
    pub fn has_retired(&self, set: &str, machine: &str) -> bool {
        self.ordinal_of(set, machine).is_some_and(|ordinal| self.is_retired(ordinal))
    }

    /// The ordinal from which a name was made.
    pub fn ordinal_of(&self, set: &str, machine: &str) -> Option<Ordinal> {
        let suffix = machine.strip_prefix(base(set))?.strip_prefix('-').filter(|suffix| suffix.len() == SUFFIX)?;
        let digit = |byte: u8| u32::try_from(ALPHABET.iter().position(|letter| *letter == byte)?).ok();
        let digits = suffix.bytes().map(digit).collect::<Option<Vec<_>>>()?;
        let word = (digits[0] * LETTERS + digits[1]) * LETTERS + digits[2];
        // The fourth letter and the fifth have the page besides.
        let high = (digits[3] + 2 * LETTERS * LETTERS - digits[0] - 5 * digits[2] - 11) % LETTERS;
        let low = (digits[4] + 2 * LETTERS * LETTERS - digits[1] - 7 * digits[2] - 3) % LETTERS;
        let place = (word + WORDS - self.seed) % WORDS * GATHER % WORDS;
        // The fifth letter depends on the whole page, and its multiples of 27 are nothing there.
        let ordinal = Ordinal((high * LETTERS + low) * WORDS + place);
        self.is_name(set, ordinal, machine).then_some(ordinal)
    }

    /// Whether an ordinal is used up.
    pub fn is_retired(&self, ordinal: Ordinal) -> bool {
        let after = self.retired.partition_point(|(first, _)| *first <= ordinal.0);
        after > 0 && self.retired[after - 1].1 >= ordinal.0
    }

    /// The lowest ordinals that are neither retired nor `seen`.
    pub fn lowest_free(&self, seen: &BTreeSet<Ordinal>, count: usize) -> Vec<Ordinal> {
        let begins = iter::once(0).chain(self.retired.iter().map(|(_, last)| last + 1));
        let ends = self.retired.iter().map(|(first, _)| *first).chain([ORDINALS]);
        let gaps = begins.zip(ends).flat_map(|(begin, end)| (begin..end).map(Ordinal));
        gaps.filter(|ordinal| !seen.contains(ordinal)).take(count).collect()
    }

    /// The lowest ordinal above all that are retired or `seen`.
    pub fn next(&self, seen: &BTreeSet<Ordinal>) -> Ordinal {
        let used = self.retired.last().map(|(_, last)| *last).max(seen.last().map(|ordinal| ordinal.0));
        Ordinal(used.map_or(0, |used| used.saturating_add(1).min(ORDINALS - 1)))
    }

    /// The ledger with these ordinals retired as well.
    #[must_use]
    pub fn retire(&self, ordinals: impl IntoIterator<Item = Ordinal>) -> Self {
        let mut runs = self.retired.clone();
        runs.extend(ordinals.into_iter().map(|ordinal| (ordinal.0, ordinal.0)));
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

    /// Whether a Machine without an ordinal is to be deleted.
    pub fn is_noted(&self, machine: &str) -> bool {
        self.noted.contains(machine)
    }

    /// The ledger with these Machines without an ordinal noted as well, and without those that are not `present` any more.
    #[must_use]
    pub fn note(mut self, machines: impl IntoIterator<Item = String>, present: impl Fn(&str) -> bool) -> Self {
        self.noted.retain(|machine| present(machine));
        self.noted.extend(machines);
        self
    }

    /// Whether no ordinal is left for another Machine.
    pub fn is_used_up(&self) -> bool {
        self.retired_count() >= u64::from(ORDINALS)
    }

    /// The number of ordinals that are used up.
    pub fn retired_count(&self) -> u64 {
        self.retired.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }
}

/// The part of a set's name with which its Machines' names begin: a Machine's name is also the name of a Node and the
/// value of labels, which have at most 63 letters. Sets with long names may share it; their seeds differ.
pub fn base(set: &str) -> &str {
    let end = set.len().min(LONGEST_NAME - 1 - SUFFIX);
    set.get(..end).unwrap_or(set).trim_end_matches(['-', '.'])
}

/// The part of a Machine's name before its suffix: the name of the set that may have created it.
pub fn set_of(machine: &str) -> Option<&str> {
    let (set, suffix) = machine.rsplit_once('-')?;
    (suffix.len() == SUFFIX && suffix.bytes().all(|letter| ALPHABET.contains(&letter))).then_some(set)
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [self.seed / (LETTERS * LETTERS), self.seed / LETTERS % LETTERS, self.seed % LETTERS];
        letters.iter().try_for_each(|letter| write!(f, "{}", char::from(ALPHABET[*letter as usize])))?;
        f.write_str(";")?;
        for (at, (first, last)) in self.retired.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        for (at, machine) in self.noted.iter().enumerate() {
            write!(f, "{}{machine}", if at == 0 { ";" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Ledger {
    type Err = InvalidLedger;

    fn from_str(text: &str) -> Result<Self, InvalidLedger> {
        let excerpt = |text: &str| text.chars().take(64).collect::<String>();
        let because = |why: String| InvalidLedger { text: excerpt(text), why };
        let invalid = || because(EXPECTED.to_owned());
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
            let number = |digits: &str| {
                let is_number = (1..=20).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
                is_number.then(|| digits.parse().unwrap_or(u64::MAX)).ok_or_else(invalid)
            };
            let (first, last) = (number(first)?, number(last)?);
            let (Ok(begin), Ok(end), true) = (u32::try_from(first), u32::try_from(last), last < u64::from(ORDINALS))
            else {
                let greatest = ORDINALS - 1;
                let why = format!("`{}` goes beyond {greatest}, the last ordinal that a set can have", excerpt(range));
                return Err(because(why));
            };
            if begin > end || ledger.retired.last().is_some_and(|(_, before)| *before >= begin) {
                let why = format!("the ranges have to ascend, and `{}` does not", excerpt(range));
                return Err(because(why));
            }
            ledger.retired.push((begin, end));
        }
        Ok(ledger.retire([]))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn ordinals(numbers: impl IntoIterator<Item = u32>) -> BTreeSet<Ordinal> {
        numbers.into_iter().map(Ordinal).collect()
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
    fn a_range_beyond_the_last_ordinal_is_explained() {
        let why = |text: &str| text.parse::<Ledger>().unwrap_err().to_string();
        let beyond = "`k7f;0-4000000000` is no ledger: `0-4000000000` goes beyond 14348906, the last ordinal that a set can have";
        assert_eq!(why("k7f;0-4000000000"), beyond);
        assert!(why("k7f;0-99999999999999999999").contains("goes beyond"));
        assert!(why("k7f;5,3").contains("the ranges have to ascend, and `3` does not"));
        assert!(why("k7f;x").contains("a seed of three letters"));
        assert!("k7f;0-14348906".parse::<Ledger>().unwrap().is_used_up());
        assert!(!"k7f;0-14348905".parse::<Ledger>().unwrap().is_used_up());
    }

    #[test]
    fn names_are_unique_and_so_are_the_letters_that_token_ids_are_made_of() {
        let ledger = Ledger::seeded("a");
        let names: Vec<String> = (0..WORDS).map(|ordinal| ledger.name("s", Ordinal(ordinal))).collect();
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
                assert!(seen.insert(ledger.name("s", Ordinal(page * WORDS + word))));
            }
        }
    }

    #[test]
    fn a_name_tells_its_ordinal() {
        let long = "a".repeat(70);
        for (ledger, set) in [(Ledger::seeded("b"), "s"), (Ledger::seeded("c"), long.as_str())] {
            for number in (0..ORDINALS).step_by(997).chain([1, WORDS - 1, WORDS, ORDINALS - 1]) {
                let name = ledger.name(set, Ordinal(number));
                assert_eq!(ledger.ordinal_of(set, &name), Some(Ordinal(number)), "{name}");
            }
        }
        let ledger = Ledger::seeded("b").retire(ordinals([3]));
        assert!(ledger.has_retired("s", &ledger.name("s", Ordinal(3))));
        assert!(!ledger.has_retired("s", &ledger.name("s", Ordinal(4))));
        for other in ["s", "s-", "s-aaaaa", "s-bbb", "other-bbbbb", "s-99999"] {
            assert!(!ledger.has_retired("s", other), "{other}");
        }
    }

    #[test]
    fn an_ordinal_counts_only_if_the_name_fits() {
        let ledger = Ledger::seeded("c");
        let name = ledger.name("set", Ordinal(17));
        assert_eq!(ledger.ordinal("set", &name, Some("17")), Some(Ordinal(17)));
        assert_eq!(ledger.ordinal("set", &name, Some("18")), None);
        assert_eq!(ledger.ordinal("other", &name, Some("17")), None);
        assert_eq!(ledger.ordinal("set", &name, None), None);
        assert_eq!(ledger.ordinal("set", &name, Some("4294967295")), None);
        assert_eq!(Ledger::seeded("d").ordinal("set", &name, Some("17")), None, "another seed, another name");
        assert_eq!(set_of(&name), Some("set"));
        assert_eq!((set_of("worker-1"), set_of("a-aaaaa")), (None, None));
    }

    #[test]
    fn names_of_machines_fit_into_labels_however_long_the_name_of_the_set_is() {
        let ledger = Ledger::seeded("h");
        let long = "a".repeat(56) + "-b.c";
        let name = ledger.name(&long, Ordinal(3));
        assert_eq!(name.len(), 62, "{name}");
        assert_eq!(set_of(&name), Some(base(&long)));
        assert_eq!(ledger.ordinal(&long, &name, Some("3")), Some(Ordinal(3)));
        assert_eq!(base("short"), "short");
    }

    #[test]
    fn retired_ordinals_are_never_free_again() {
        let ledger = Ledger::seeded("e").retire(ordinals([0, 1, 2, 4, 7]));
        assert_eq!(ledger.to_string().split_once(';').unwrap().1, "0-2,4,7");
        assert!([0, 1, 2, 4, 7].into_iter().all(|ordinal| ledger.is_retired(Ordinal(ordinal))));
        assert!([3, 5, 6, 8].into_iter().all(|ordinal| !ledger.is_retired(Ordinal(ordinal))));
        assert_eq!(ledger.lowest_free(&ordinals([3, 8]), 3), [Ordinal(5), Ordinal(6), Ordinal(9)]);
        assert_eq!(ledger.retire(ordinals([3])).to_string().split_once(';').unwrap().1, "0-4,7");
        assert_eq!(ledger.retired_count(), 5);
    }

    #[test]
    fn an_ordinal_below_all_retired_ones_is_free() {
        assert!(!Ledger::seeded("e").is_retired(Ordinal(0)), "none is retired");
        assert!(!Ledger::seeded("e").retire(ordinals([4])).is_retired(Ordinal(3)));
    }

    #[test]
    fn after_the_last_ordinal_the_next_one_is_the_last() {
        let last = Ordinal(ORDINALS - 1);
        for (seen, next) in [(vec![], 0), (vec![6], 7), (vec![last.0 - 1], last.0), (vec![last.0], last.0)] {
            assert_eq!(Ledger::seeded("e").next(&ordinals(seen)), Ordinal(next));
        }
        assert_eq!(last.to_string(), "14348906");
    }

    /// The vectors of Fowler, Noll and Vo for 32 bits.
    #[test]
    fn the_hash_is_fnv_1a() {
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(text.bytes()), hash, "{text}");
        }
    }

    #[test]
    fn machines_without_an_ordinal_are_noted_until_they_are_gone() {
        let ledger = Ledger::seeded("g").note(["old-1".to_owned(), "old-2".to_owned()], |_| true);
        assert!(ledger.is_noted("old-1") && !ledger.is_noted("old-3"));
        let later = ledger.retire(ordinals([4])).note(["old-3".to_owned()], |name| name == "old-2");
        assert_eq!(later.to_string().split_once(';').unwrap().1, "4;old-2,old-3");
        assert_eq!(later.to_string().parse::<Ledger>().unwrap(), later);
    }

    #[test]
    fn mcm_defect_21_two_planners_ask_for_the_same_names() {
        let ledger = Ledger::seeded("f");
        let stale = ledger.lowest_free(&ordinals([]), 3);
        let fresh = ledger.lowest_free(&ordinals([0, 1]), 1);
        assert!(fresh.iter().all(|ordinal| stale.contains(ordinal)));
    }
}
