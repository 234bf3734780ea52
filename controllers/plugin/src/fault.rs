//! Errors, each in one line with what to do.

use crate::resources::{ATTACHMENTS, CLAIMS, PODS, Resource};

/// Why a command has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("failed to read the {what} (see --kubeconfig, --context): {message}")]
    Kubeconfig { what: String, message: String },
    #[error(
        "the cluster does not serve {plural} of {version}: {remedy}, or choose another cluster with --context",
        plural = resource.plural,
        version = resource.api_version(),
        remedy = resource.installation()
    )]
    NotServed { resource: Box<Resource> },
    #[error(
        "you may not {verb} {target}{place}: ask for the verb {verb} on the resource {target}{role}: {message}",
        target = resource.full_name(),
        role = role_words(verb, resource)
    )]
    Forbidden { verb: &'static str, resource: Box<Resource>, place: String, message: String },
    #[error("the API server does not accept your credentials: log in again, or choose another user with --context")]
    Unauthorized,
    #[error("{target} \"{name}\" not found{place}", target = resource.full_name())]
    NotFound { resource: Box<Resource>, name: String, place: String },
    #[error("the API server has not answered within {seconds} s (see --request-timeout) to: {request}")]
    Timeout { seconds: u64, request: String },
    #[error("failed to reach the API server: {message}; is the address in the kubeconfig correct?")]
    Unreachable { message: String },
    #[error("failed to {request}: {message}")]
    Refused { request: String, message: String, code: u16 },
    #[error("{0}")]
    Message(String),
}

pub(crate) type Outcome<T> = Result<T, Fault>;

/// An error that is a sentence.
pub(crate) fn fail<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Fault::Message(message.into()))
}

/// The `ClusterRole` of `config/plugin` that has a right.
fn role(verb: &str, resource: &Resource) -> Option<&'static str> {
    let of_drains = [PODS, CLAIMS, ATTACHMENTS].contains(resource);
    match (verb, resource.plural) {
        ("get", "pods/portforward") => Some("nodewright-report"),
        ("get" | "list", _) if of_drains => Some("nodewright-plan-drain"),
        ("get" | "list", _) => Some("nodewright-view"),
        _ => None,
    }
}

fn role_words(verb: &str, resource: &Resource) -> String {
    role(verb, resource).map(|role| format!(" (the ClusterRole {role} has it)")).unwrap_or_default()
}

impl Fault {
    /// Whether the kind of the object does not exist in the cluster.
    pub(crate) fn is_not_served(&self) -> bool {
        matches!(self, Self::NotServed { .. })
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the user lacks the right.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }

    /// A line of what could not be read, without what to do: it stands below an answer that does without.
    pub(crate) fn short(&self) -> String {
        match self {
            Self::Forbidden { verb, resource, place, .. } => {
                format!("you may not {verb} {}{place}", resource.full_name())
            }
            other => other.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{BUDGETS, MACHINES, NODES};

    const VIEW: &str = include_str!("../../../config/plugin/view_role.yaml");
    const DRAIN: &str = include_str!("../../../config/plugin/plan_drain_role.yaml");
    const REPORT: &str = include_str!("../../../config/plugin/report_role.yaml");

    #[test]
    fn a_missing_right_names_the_role_that_has_it() {
        let forward = Resource { plural: "pods/portforward", ..PODS };
        let table = [
            ("list", MACHINES, Some(VIEW)),
            ("get", NODES, Some(VIEW)),
            ("list", BUDGETS, Some(VIEW)),
            ("list", PODS, Some(DRAIN)),
            ("list", CLAIMS, Some(DRAIN)),
            ("list", ATTACHMENTS, Some(DRAIN)),
            ("get", forward, Some(REPORT)),
            ("patch", MACHINES, None),
            ("delete", MACHINES, None),
            ("patch", PODS, None),
        ];
        for (verb, resource, file) in table {
            let found = role(verb, &resource);
            assert_eq!(found.is_some(), file.is_some(), "{verb} {}", resource.plural);
            let Some((role, file)) = found.zip(file) else { continue };
            assert!(file.contains(&format!("name: {role}\n")) && file.contains(verb), "{role}");
            assert!(file.contains(resource.plural), "{role} {}", resource.plural);
        }
    }

    #[test]
    fn an_error_of_a_write_names_verb_and_resource_alone() {
        let error = |verb| {
            let (place, message) = (" in namespace shoot".to_owned(), "no".to_owned());
            Fault::Forbidden { verb, resource: Box::new(MACHINES), place, message }.to_string()
        };
        let full = "machines.machine.sapcloud.io";
        let words = |verb| {
            format!("you may not {verb} {full} in namespace shoot: ask for the verb {verb} on the resource {full}")
        };
        assert_eq!(error("patch"), words("patch") + ": no");
        assert_eq!(error("list"), words("list") + " (the ClusterRole nodewright-view has it): no");
    }
}
