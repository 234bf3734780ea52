//! A conformance suite for API servers: it runs against the real one and against the in-process one of tests and simulations,
//! to show that the latter can be trusted.
//!
//! A [`Case`] sends named requests to a server, and keeps the answers: status code, relevant headers, the whole body, the
//! events of watches in order. Versions, UIDs, times and generated names are replaced by the number of their first appearance;
//! everything else must be identical. [`random`] adds random sequences of requests.
//!
//! Cases stay within the schemas. The in-process server documents its omissions ([`nodewright_testing::api_server`]).

#![allow(clippy::similar_names)] // a probe is sent a patch

mod apply;
mod controllers;
mod create;
mod delete;
mod evict;
mod limits;
mod list;
mod normal;
mod objects;
mod patch;
mod probe;
pub mod random;
mod read;
mod scale;
mod status;
mod transcript;
mod update;
mod watch;

pub use self::{probe::Probe, transcript::Transcript};
use futures::future::BoxFuture;
use nodewright_e2e_lab::control_plane::testing::TestResult;

/// A group of related requests.
#[derive(Clone, Copy)]
pub struct Case {
    /// The subject, in lower case and hyphens.
    pub name: &'static str,
    /// Sends the requests.
    pub run: for<'a> fn(&'a mut Probe) -> BoxFuture<'a, TestResult>,
}

/// Makes a [`Case`] from a function: its name consists of the module and the function.
macro_rules! case {
    ($module:ident :: $function:ident) => {
        Case {
            name: concat!(stringify!($module), "-", stringify!($function)),
            run: |probe| Box::pin($module::$function(probe)),
        }
    };
}

/// All cases without controllers.
pub fn cases() -> Vec<Case> {
    vec![
        case!(create::post),
        case!(create::bodies),
        case!(create::statuses),
        case!(create::under_version_one),
        case!(create::dry),
        case!(create::nowhere),
        case!(read::get),
        case!(read::versions),
        case!(list::plain),
        case!(list::selectors),
        case!(list::metadata),
        case!(list::pages),
        case!(list::versions),
        case!(watch::life),
        case!(watch::beginnings),
        case!(watch::parameters),
        case!(watch::selections),
        case!(watch::metadata),
        case!(watch::edges),
        case!(update::versions_and_uids),
        case!(update::bodies),
        case!(patch::merge),
        case!(patch::json),
        case!(patch::strategic),
        case!(patch::for_metadata),
        case!(apply::alone),
        case!(apply::bodies),
        case!(apply::together),
        case!(apply::among_updates),
        case!(apply::untracked),
        case!(apply::lists),
        case!(delete::at_once),
        case!(delete::preconditions),
        case!(delete::finalizers),
        case!(delete::propagation),
        case!(delete::pods),
        case!(delete::collections),
        case!(status::custom),
        case!(status::applies),
        case!(status::of_nodes),
        case!(scale::of_sets),
        case!(evict::freely),
        case!(evict::by_budget),
        case!(limits::sizes),
        case!(limits::depths),
    ]
}

/// All cases with controllers: the garbage collector, and those of namespaces and disruption budgets.
pub fn controller_cases() -> Vec<Case> {
    vec![
        case!(controllers::background),
        case!(controllers::foreground),
        case!(controllers::orphans),
        case!(controllers::owners),
        case!(controllers::namespaces),
        case!(controllers::budgets),
    ]
}
