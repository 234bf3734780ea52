//! The span of a change of node configuration. Nothing is written to its objects: their webhooks only validate. The controller of pools
//! finds the span by the UID and the generation of the object, both of which an API server has set before it asks.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodewright_api::annotations;
use nodewright_observability::trace::{SpanRecord, TraceContext};
use serde::Deserialize;

use super::{attributes, decode::decode, old_object};
use crate::review::{Request, Response};

#[derive(Deserialize)]
struct Reviewed {
    metadata: ObjectMeta,
}

/// The admission of a change. `None` if the spec stays as it is. An accepted one is below the span that the object names, or begins a
/// trace; it links to `caller`, the span of the HTTP request. A refused one, which makes no generation, is a trace of its own.
pub(super) fn admission(
    request: &Request<'_>,
    text: &str,
    caller: Option<TraceContext>,
    response: &Response,
    period: (Timestamp, Timestamp),
) -> Option<SpanRecord> {
    let Reviewed { metadata } = decode(text).ok()?;
    let old = old_object::<Reviewed>(request).map(|old| old.metadata);
    if old.is_some_and(|old| old.generation == metadata.generation) {
        return None;
    }
    let error = response.refusal.as_ref().map(|refusal| refusal.message.clone());
    let span = match (metadata.uid.as_deref(), metadata.generation) {
        (Some(uid), Some(generation)) if error.is_none() => {
            let chosen = TraceContext::from_annotation(metadata.annotations.as_ref(), annotations::TRACEPARENT);
            let context = TraceContext::of_change(uid, generation, chosen);
            SpanRecord::at("admission", context, chosen.unwrap_or(context), period)
        }
        _ => {
            let context = TraceContext::from_seed(&format!("{}/admission", request.uid), true);
            SpanRecord::at("admission", context, context, period)
        }
    };
    let links = caller.filter(|caller| caller.sampled).into_iter().collect();
    Some(SpanRecord { links, attributes: attributes(request), error, ..span })
}
