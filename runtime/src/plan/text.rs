//! A plan as text: for snapshots in tests, and to show what a controller would do.

use std::fmt::{self, Display};

use serde_json::Value;

use super::{Plan, Step};
use crate::{
    effect::Effect,
    object::{Cluster, Target},
};

const CONFIDENTIAL: &str = "(confidential)";

/// Prints the steps of each stage with their reasons, then waits, events and the time of the next run.
///
/// ```text
/// 1 create ConfigMap default/a {"data":{"key":"value"},"metadata":{}} | the copy is missing
/// 2 apply ConfigMap default/b {"data":{"key":"value"}} | the source has changed
///   delete ConfigMap default/c | it is not to be shared
/// wait NameTaken: somebody else has a ConfigMap of that name
/// wake 2026-06-01T12:00:30Z
/// ```
///
/// `{:#}` names the cluster of each object as well.
impl<E: Effect, N> Display for Plan<E, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stage, number) in self.stages.iter().zip(1..) {
            for (place, planned) in stage.iter().enumerate() {
                let number = if place == 0 { format!("{number}") } else { " ".repeat(format!("{number}").len()) };
                write!(f, "{number} ")?;
                planned.step.fmt(f)?;
                writeln!(f, " | {}", planned.why)?;
            }
        }
        for wait in &self.waits {
            writeln!(f, "wait {}: {}", wait.reason, wait.message)?;
        }
        for event in &self.events {
            let warning = if event.is_warning { "warning " } else { "" };
            writeln!(f, "{warning}event {}: {}", event.reason, event.message)?;
        }
        for watch in &self.scoped_watches {
            writeln!(f, "watch {}", watch.selector())?;
        }
        if let Some(wake) = self.wake {
            writeln!(f, "wake {wake}")?;
        }
        if self.is_idle() && self.waits.is_empty() { writeln!(f, "nothing to do") } else { Ok(()) }
    }
}

impl<E: Effect> Display for Step<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names_cluster = f.alternate();
        let within = |cluster: Cluster| if names_cluster { format!(" in {cluster}") } else { String::new() };
        let place = |at: &Target| {
            let version = at.version().map(|version| format!(" at version {version}")).unwrap_or_default();
            format!("{at}{}{version}", within(at.key().cluster))
        };
        match self {
            Self::Apply(apply) => write!(f, "apply {}{} {}", of(apply.subresource), place(&apply.at), apply.fragment()),
            Self::Create { key, resource, body, is_confidential } => {
                let body = if *is_confidential { CONFIDENTIAL.to_owned() } else { gist(body).to_string() };
                write!(f, "create {} {key}{} {body}", resource.kind, within(key.cluster))
            }
            Self::Edit { at, subresource, patch, is_confidential } => {
                let operations =
                    if *is_confidential { Ok(CONFIDENTIAL.to_owned()) } else { serde_json::to_string(patch) };
                write!(f, "edit {}{} {}", of(subresource), place(at), operations.map_err(|_| fmt::Error)?)
            }
            Self::Confirm(at) => write!(f, "confirm that {} is not being deleted", place(at)),
            Self::ConfirmUnchanged(at) => {
                write!(f, "confirm that {} still has version {}", place(at), at.seen())
            }
            Self::Delete(at) => write!(f, "delete {}", place(at)),
            Self::DeleteNow(at) => write!(f, "delete {} without grace", place(at)),
            Self::Evict(at) => write!(f, "evict {}", place(at)),
            // The arguments of a call may be confidential; its name and serialization key are not.
            Self::Call(effect) => write!(f, "call {} for {}", effect.name(), effect.serialization_key()),
        }
    }
}

fn of(subresource: &str) -> String {
    if subresource.is_empty() { String::new() } else { format!("{subresource} of ") }
}

/// The body of a new object without the fields that the line shows elsewhere.
fn gist(body: &Value) -> Value {
    let mut body = body.clone();
    if let Value::Object(fields) = &mut body {
        fields.retain(|field, _| field != "apiVersion" && field != "kind");
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.retain(|field, _| field != "name" && field != "namespace");
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use json_patch::Patch;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::effect::Never;
    use crate::patch::set;
    use crate::testing::{AWAY, HOME};
    use nodewright_testing::object;

    #[test]
    fn a_plan_reads_as_what_will_be_done_and_why() {
        let live: ConfigMap = object("a").build();
        let mut fresh = ConfigMap::default();
        fresh.metadata.name = Some("b".to_owned());
        fresh.data = Some([("key".to_owned(), "value".to_owned())].into());
        let mut plan = Plan::<Never>::idle();
        assert_eq!(plan.to_string(), "nothing to do\n");
        plan.then("it is missing", Step::create(AWAY, &fresh));
        plan.then("it takes over", Step::confirm(HOME, &live));
        plan.beside("it is compared", Step::confirm_unchanged(HOME, &live));
        plan.then("it is too much", Step::Delete(Target::of(HOME, &live).if_unchanged()));
        plan.beside("so is this", Step::Evict(Target::of(HOME, &live)));
        plan.wait("GracePeriod", "it ends at noon").wake_at("2026-06-01T12:00:00Z".parse::<jiff::Timestamp>().unwrap());
        let lines = [
            r#"1 create ConfigMap b {"data":{"key":"value"},"metadata":{}} | it is missing"#,
            "2 confirm that ConfigMap default/a is not being deleted | it takes over",
            "  confirm that ConfigMap default/a still has version 10 | it is compared",
            "3 delete ConfigMap default/a at version 10 | it is too much",
            "  evict ConfigMap default/a | so is this",
            "wait GracePeriod: it ends at noon",
            "wake 2026-06-01T12:00:00Z",
        ];
        assert_eq!(plan.to_string(), lines.join("\n") + "\n");
        let first = r#"1 create ConfigMap b in away {"data":{"key":"value"},"metadata":{}} | it is missing"#;
        assert_eq!(format!("{plan:#}").lines().next(), Some(first));

        let rename = || Patch(vec![set(&["data", "key"], "other".into())]);
        let mut plan = Plan::<Never>::idle();
        plan.then("it is missing", Step::create(AWAY, &fresh).map(Step::confidential));
        plan.then("it is wrong", Step::edit(HOME, &live, rename()).map(Step::confidential));
        plan.beside("it is public", Step::edit(HOME, &live, rename()));
        let lines = [
            "1 create ConfigMap b (confidential) | it is missing",
            "2 edit ConfigMap default/a (confidential) | it is wrong",
            r#"  edit ConfigMap default/a [{"op":"add","path":"/data/key","value":"other"}] | it is public"#,
        ];
        assert_eq!(plan.to_string(), lines.join("\n") + "\n");
    }
}
