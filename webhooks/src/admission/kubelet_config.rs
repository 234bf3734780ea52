//! The review of a KubeletConfig: what its controller would refuse, and what the kubelet would ignore.

use std::cell::RefCell;

use nodewright_api::machine_config::KubeletConfig;
use nodewright_observability::trace::TraceContext;
use nodewright_render::kubelet;
use nodewright_runtime::clip::clip;

use super::validate;
use crate::configurations::ReviewedKind;
use crate::review::{Request, Response};

/// Maximum number of warnings about unknown fields.
const MAX_UNKNOWN: usize = 10;

/// Validates a KubeletConfig. Warns of fields that no kubelet of a known release has: a later one may.
pub(super) fn review(request: &Request<'_>, text: &str) -> (Response, Option<TraceContext>) {
    // Of an update, the object before the change is read first: what stays is of the one after it.
    let unknown = RefCell::new(vec![]);
    let rules = |config: &KubeletConfig, _: Option<&KubeletConfig>| {
        *unknown.borrow_mut() = kubelet::unknown_fields(&config.spec);
        kubelet::check(&config.spec)
    };
    let (mut response, trace) = validate::object(ReviewedKind::KubeletConfig, request, text, rules);
    let warning = |path| clip(format!("{path}: is no field of the kubelet in Kubernetes 1.36, which would ignore it"));
    response.warnings.extend(unknown.take().iter().take(MAX_UNKNOWN).map(warning));
    (response, trace)
}
