//! What the agent of a Node asks for before and after it applies a configuration.

/// What an agent asks for by the annotation [`DESIRED_DRAIN`](super::DESIRED_DRAIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainVerb {
    /// `drain-<configuration>`: the Node is cordoned and drained.
    Drain,
    /// `uncordon-<configuration>`: the Node is uncordoned.
    Uncordon,
}

impl DrainVerb {
    /// The verb of a request; `None` if it is no request that agents make.
    pub fn of(request: &str) -> Option<Self> {
        match request.split_once('-')? {
            (_, "") => None,
            ("drain", _) => Some(Self::Drain),
            ("uncordon", _) => Some(Self::Uncordon),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_stands_before_the_first_dash() {
        let verbs = [
            ("drain-rendered-worker-0", Some(DrainVerb::Drain)),
            ("uncordon-drain-a", Some(DrainVerb::Uncordon)),
            ("reboot-rendered-worker-0", None),
            ("Drain-a", None),
            ("drain-", None),
            ("drain", None),
            ("", None),
        ];
        for (request, verb) in verbs {
            assert_eq!(DrainVerb::of(request), verb, "{request}");
        }
    }
}
