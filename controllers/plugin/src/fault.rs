//! Errors, each in one line with what to do.

use crate::resources::Resource;

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
        "you may not {verb} {target}{place}: ask for the verb {verb} on the resource {target} (the ClusterRole \
         nodewright-view has all rights to read): {message}",
        target = resource.full_name()
    )]
    Forbidden { verb: &'static str, resource: Box<Resource>, place: String, message: String },
    #[error("the API server does not accept your credentials: log in again, or choose another user with --context")]
    Unauthorized,
    #[error("{kind}.{group} \"{name}\" not found{place}", kind = resource.plural, group = resource.group)]
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

impl Fault {
    /// Whether the kind of the object does not exist in the cluster.
    pub(crate) fn is_not_served(&self) -> bool {
        matches!(self, Self::NotServed { .. })
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
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
