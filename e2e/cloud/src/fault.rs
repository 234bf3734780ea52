//! Faults: which calls they apply to, and how they expire.

use jiff::Timestamp;

use super::{
    api::{Effect, Failure, Fault, FaultMatch, FaultOperation, FaultOrder, duration},
    memory::Shape,
};

/// The effect of all faults on a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Strike {
    /// Additional delay in seconds.
    pub latency_seconds: f64,
    /// How a new VM differs from its order.
    pub shape: Shape,
    /// What replaces the usual answer.
    pub instead: Option<Effect>,
}

impl Strike {
    /// Adds an effect, unless another one replaces the answer already. Returns whether it was added.
    pub(crate) fn add(&mut self, effect: &Effect) -> bool {
        match effect {
            Effect::Latency { seconds } => self.latency_seconds += seconds,
            Effect::Invisible { seconds } => {
                self.shape.invisible_seconds = self.shape.invisible_seconds.max(*seconds);
            }
            Effect::Boot { seconds } => self.shape.boot_seconds = Some(*seconds),
            Effect::NeverJoins => self.shape.never_joins = true,
            _ if self.instead.is_some() => return false,
            other => self.instead = Some(other.clone()),
        }
        true
    }
}

/// Rejects faults that can never apply, or that exceed the limits.
pub fn validate(order: &FaultOrder) -> Result<(), Failure> {
    let fits = match &order.effect {
        Effect::ListTruncated { .. } | Effect::ListEmpty | Effect::ListEndless => {
            order.operation == FaultOperation::List
        }
        Effect::Invisible { .. } | Effect::Boot { .. } | Effect::NeverJoins | Effect::NoCapacity => {
            order.operation == FaultOperation::Create
        }
        Effect::ApplyLate { .. } => matches!(order.operation, FaultOperation::Create | FaultOperation::Delete),
        _ => true,
    };
    if !fits {
        return Err(Failure::invalid("this effect does not fit the operation; name the operation that it is for"));
    }
    match &order.effect {
        Effect::Latency { seconds }
        | Effect::AnswerLate { seconds }
        | Effect::ApplyLate { seconds, .. }
        | Effect::Invisible { seconds }
        | Effect::Boot { seconds } => drop(duration("effect.seconds", *seconds)?),
        _ => {}
    }
    if let Some(seconds) = order.for_seconds {
        duration("for_seconds", seconds)?;
    }
    if let Some(probability) = order.probability
        && !(0.0..=1.0).contains(&probability)
    {
        return Err(Failure::invalid("probability must be between 0 and 1"));
    }
    if order.count == Some(0) {
        return Err(Failure::invalid("count must be at least 1"));
    }
    Ok(())
}

/// Whether the fault has expired.
pub(crate) fn is_over(fault: &Fault, now: Timestamp) -> bool {
    fault.order.count == Some(0) || fault.until.is_some_and(|until| until <= now)
}

/// The VM that a call is about, if it is about one.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    /// The name.
    pub machine: Option<String>,
    pub zone: Option<String>,
}

/// Whether the fault applies to this call.
pub(crate) fn matches(fault: &Fault, operation: FaultOperation, call: &About) -> bool {
    let about = fault.order.operation;
    if about != FaultOperation::Any && about != operation {
        return false;
    }
    let FaultMatch { machine, zone } = &fault.order.matching;
    [(machine, &call.machine), (zone, &call.zone)].into_iter().all(|wanted| match wanted {
        (None, _) => true,
        (Some(pattern), Some(text)) => glob(pattern, text),
        (Some(_), None) => false,
    })
}

/// Whether the whole text matches a pattern, in which `*` stands for any text and `?` for any character.
///
/// Backtracks to the last star only, so the time is bounded by the product of the lengths.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at_pattern, mut at_text) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match pattern.get(at_pattern) {
            Some('*') => {
                star = Some((at_pattern, at_text));
                at_pattern += 1;
            }
            Some(&character) if character == '?' || character == text[at_text] => {
                at_pattern += 1;
                at_text += 1;
            }
            _ => {
                let Some((star_pattern, star_text)) = star else { return false };
                star = Some((star_pattern, star_text + 1));
                at_pattern = star_pattern + 1;
                at_text = star_text + 1;
            }
        }
    }
    pattern[at_pattern..].iter().all(|&character| character == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_fits_whole_names() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("worker-*", "worker-abc", true),
            ("worker-*", "a-worker-abc", false),
            ("*-a?c", "worker-abc", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_pattern_full_of_stars_ends_soon() {
        assert!(!glob(&"*a".repeat(100), &"a".repeat(99)));
        assert!(!glob(&format!("{}b", "a*".repeat(100)), &"a".repeat(5_000)));
    }
}
