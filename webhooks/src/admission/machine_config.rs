//! The review of a MachineConfig: the rules of Ignition, and what has no effect.

use std::cell::RefCell;

use nodewright_api::field::FieldPath;
use nodewright_api::machine_config::MachineConfig;
use nodewright_observability::trace::TraceContext;
use nodewright_render::rules;
use nodewright_runtime::clip::clip;

use super::validate;
use crate::configurations::ReviewedKind;
use crate::review::{Request, Response};

/// Maximum number of warnings about fields without an effect.
const MAX_UNUSED: usize = 10;

/// Validates a MachineConfig, which may ask for the given extensions, or for any. Warns of fields that Ignition ignores.
pub(super) fn review(
    request: &Request<'_>,
    text: &str,
    extensions: Option<&[String]>,
) -> (Response, Option<TraceContext>) {
    // Of an update, the object before the change is read first: what stays is of the one after it.
    let unused = RefCell::new(vec![]);
    let rules = |config: &MachineConfig, _: Option<&MachineConfig>| {
        let read = rules::read(&config.spec, extensions);
        let (found, errors) = read.map_or_else(
            |errors| (vec![], errors),
            |parsed| (parsed.map(|parsed| parsed.unused).unwrap_or_default(), vec![]),
        );
        *unused.borrow_mut() = found;
        errors
    };
    let (mut response, trace) = validate::object(ReviewedKind::MachineConfig, request, text, rules);
    response.warnings.extend(unused.take().iter().take(MAX_UNUSED).map(warning));
    (response, trace)
}

fn warning(path: &FieldPath) -> String {
    clip(format!("{path}: is no field of this version of Ignition configs, and has no effect"))
}
