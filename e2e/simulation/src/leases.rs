//! Who may write, and until when: the basis of I10.

use std::{collections::BTreeMap, time::Duration};

use super::names::LEASES;

/// The managers' leases by name. Times are those of the holder's clock.
#[derive(Default)]
pub(super) struct Leases(BTreeMap<&'static str, Lease>);

struct Lease {
    holder: String,
    until: Duration,
}

impl Leases {
    /// Notes a write to a lease: the previous holder loses it.
    pub(super) fn note(&mut self, lease: &'static str, holder: Option<(&str, Duration)>) {
        match holder {
            Some((holder, until)) => drop(self.0.insert(lease, Lease { holder: holder.to_owned(), until })),
            None => drop(self.0.remove(lease)),
        }
    }

    /// The reason why a manager must not write at this time of its clock, if any: it needs all leases.
    pub(super) fn forbid(&self, name: &str, now: Duration) -> Option<String> {
        LEASES.iter().find_map(|lease| match self.0.get(lease) {
            Some(held) if held.holder != name => Some(format!("while {} has lease {lease}", held.holder)),
            Some(held) if held.until < now => Some(format!("after the end of its lease {lease}")),
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
        let mut leases = Leases::default();
        assert!(leases.forbid("a", early).is_some_and(|why| why.starts_with("without")));
        leases.note(LEASES[0], Some(("a", early)));
        assert!(leases.forbid("a", early).is_some_and(|why| why.contains(LEASES[1])), "one of two");
        leases.note(LEASES[1], Some(("a", late)));
        assert_eq!(leases.forbid("a", early), None);
        assert!(leases.forbid("a", late).is_some_and(|why| why.contains("after the end")));
        leases.note(LEASES[0], Some(("b", late)));
        assert!(leases.forbid("a", early).is_some_and(|why| why.contains("while b has")));
        leases.note(LEASES[0], None);
        assert!(leases.forbid("b", early).is_some_and(|why| why.starts_with("without")));
    }
}
