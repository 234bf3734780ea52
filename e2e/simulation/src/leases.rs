//! Who may write, and until when: the basis of I10.

use std::{collections::BTreeMap, time::Duration};

use super::names::LEASES;

/// The terms of the managers' leases. Times are those of the holder's clock.
#[derive(Default)]
pub(super) struct Terms(BTreeMap<&'static str, Term>);

struct Term {
    holder: String,
    until: Duration,
}

impl Terms {
    /// Notes a write to a lease: the previous holder loses it.
    pub(super) fn note(&mut self, lease: &'static str, holder: Option<(&str, Duration)>) {
        match holder {
            Some((holder, until)) => drop(self.0.insert(lease, Term { holder: holder.to_owned(), until })),
            None => drop(self.0.remove(lease)),
        }
    }

    /// The reason why a manager must not write at this time of its clock, if any: it needs all leases.
    pub(super) fn forbid(&self, name: &str, now: Duration) -> Option<String> {
        LEASES.iter().find_map(|lease| match self.0.get(lease) {
            Some(term) if term.holder != name => Some(format!("while {} has lease {lease}", term.holder)),
            Some(term) if term.until < now => Some(format!("after its term of lease {lease}")),
            Some(_) => None,
            None => Some(format!("without lease {lease}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_that_of_a_lease_and_ends_with_the_next_holder() {
        let [early, late] = [5, 10].map(Duration::from_secs);
        let mut terms = Terms::default();
        assert!(terms.forbid("a", early).is_some_and(|why| why.starts_with("without")));
        terms.note(LEASES[0], Some(("a", early)));
        assert!(terms.forbid("a", early).is_some_and(|why| why.contains(LEASES[1])), "one of two");
        terms.note(LEASES[1], Some(("a", late)));
        assert_eq!(terms.forbid("a", early), None);
        assert!(terms.forbid("a", late).is_some_and(|why| why.contains("after its term")));
        terms.note(LEASES[0], Some(("b", late)));
        assert!(terms.forbid("a", early).is_some_and(|why| why.contains("while b has")));
        terms.note(LEASES[0], None);
        assert!(terms.forbid("b", early).is_some_and(|why| why.starts_with("without")));
    }
}
