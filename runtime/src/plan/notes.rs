//! What a plan leaves for the next one of the same object.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// What a plan leaves for the next one of the same object: conditions that hold, but whose beginning no object records. The runtime keeps for each note when it was first left, until a plan clears or replaces it.
///
/// # Caveats
/// Notes are memory of this process. Another leader, or the same process after a restart, has none: use them for nothing whose
/// loss would do harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notes<N> {
    /// The notes stay as they are: the plan has not come to what they are about.
    Keep,
    /// No note stays.
    Clear,
    /// These stay, or begin now, and all others are forgotten.
    Replace(Vec<N>),
}

impl<N> Notes<N> {
    /// Adds a note. If the notes would have stayed, only those that are added do.
    pub fn add(&mut self, note: N) {
        match self {
            Self::Keep | Self::Clear => *self = Self::Replace(vec![note]),
            Self::Replace(notes) => notes.push(note),
        }
    }

    /// Adds the notes of another part of a plan.
    pub fn extend(&mut self, more: Self) {
        match (&mut *self, more) {
            (_, Self::Keep) | (Self::Replace(_), Self::Clear) => {}
            (Self::Replace(notes), Self::Replace(more)) => notes.extend(more),
            (Self::Keep | Self::Clear, more) => *self = more,
        }
    }
}

impl<N: Ord> Notes<N> {
    /// The notes after this plan, each with when it was first left. `former` are those that it was made with.
    #[must_use]
    pub fn after(self, former: BTreeMap<N, Timestamp>, now: Timestamp) -> BTreeMap<N, Timestamp> {
        match self {
            Self::Keep => former,
            Self::Clear => BTreeMap::new(),
            Self::Replace(notes) => {
                let since = |note: &N| former.get(note).copied().unwrap_or(now);
                notes.into_iter().map(|note| (since(&note), note)).map(|(since, note)| (note, since)).collect()
            }
        }
    }
}

impl<N> FromIterator<N> for Notes<N> {
    fn from_iter<I: IntoIterator<Item = N>>(notes: I) -> Self {
        Self::Replace(notes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_note_keeps_the_time_at_which_it_was_first_left() {
        let noon: Timestamp = "2026-06-01T12:00:00Z".parse().expect("it is a time");
        let later = noon + SignedDuration::from_secs(9);
        let former = || BTreeMap::from([('a', noon), ('b', noon)]);
        let cases = [
            (Notes::Keep, former()),
            (Notes::Clear, BTreeMap::new()),
            (Notes::Replace(vec![]), BTreeMap::new()),
            (Notes::Replace(vec!['b', 'c', 'b']), BTreeMap::from([('b', noon), ('c', later)])),
        ];
        for (notes, after) in cases {
            assert_eq!(notes.clone().after(former(), later), after, "{notes:?}");
        }
    }

    #[test]
    fn the_notes_of_the_parts_of_a_plan_add_up() {
        let (keep, clear, a, b) = (Notes::Keep, Notes::Clear, Notes::Replace(vec!['a']), Notes::Replace(vec!['b']));
        let cases = [
            (&keep, &keep, &keep),
            (&keep, &clear, &clear),
            (&clear, &keep, &clear),
            (&a, &keep, &a),
            (&a, &clear, &a),
            (&clear, &a, &a),
            (&a, &b, &Notes::Replace(vec!['a', 'b'])),
        ];
        for (part, more, whole) in cases {
            let mut sum = part.clone();
            sum.extend(more.clone());
            assert_eq!(sum, *whole, "{part:?} and {more:?}");
        }
    }
}
