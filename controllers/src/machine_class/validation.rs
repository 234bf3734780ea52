//! Whether the driver can read the providerSpec of a class: what it has said, and when it is asked.

use jiff::{SignedDuration, Timestamp};
use nodewright_runtime::plan::Context;

use super::{call::Validate, snapshot::Snapshot};

/// The pause after a call without an answer, and how long a plan waits for the first one.
const PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// Whether the driver can read a providerSpec.
pub(super) enum Validation {
    /// What is wrong with it, for people.
    Known(Vec<String>),
    /// The first answer has yet to come, and is waited for until then: one write less for each new class.
    Awaited(Option<Validate>, Timestamp),
    /// There is no answer; the driver is asked again then.
    Unknown(Option<Validate>, Timestamp),
}

impl Validation {
    pub(super) fn errors(&self) -> Option<&[String]> {
        match self {
            Self::Known(errors) => Some(errors),
            Self::Awaited(..) | Self::Unknown(..) => None,
        }
    }
}

pub(super) fn validation(context: &Context<'_, Validate>, snapshot: &Snapshot) -> Validation {
    let Some(call) = snapshot.validate.clone() else {
        let (runs, named) = (&snapshot.provider.name, &snapshot.class.provider);
        return Validation::Known(vec![format!("provider: this manager runs {runs:?} and not {named:?}")]);
    };
    let after = |begun: Timestamp| begun.checked_add(PAUSE).unwrap_or(Timestamp::MAX);
    let Some(known) = context.outcomes.get(&call) else { return Validation::Awaited(Some(call), after(context.now)) };
    let is_current = context.outcomes.asked(&call).is_some_and(|asked| asked.is_same(&call));
    match &known.last {
        Some((_, Some(errors))) if is_current && !known.running => Validation::Known(texts(errors)),
        Some((ended, None)) if is_current && !known.running => {
            let due = after(*ended);
            Validation::Unknown(Some(call).filter(|_| due <= context.now), due)
        }
        // About another content of the class, or of another version of the driver.
        _ if !known.running => Validation::Awaited(Some(call), after(context.now)),
        _ if known.failures == 0 && after(known.begun) > context.now => Validation::Awaited(None, after(known.begun)),
        _ => Validation::Unknown(None, after(known.begun).max(after(context.now))),
    }
}

fn texts(errors: &[(String, String)]) -> Vec<String> {
    let path = |path: &str| if path.is_empty() { "providerSpec".to_owned() } else { format!("providerSpec.{path}") };
    errors.iter().map(|(at, what)| format!("{}: {what}", path(at))).collect()
}
