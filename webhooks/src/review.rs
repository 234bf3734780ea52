//! The `AdmissionReview` of `admission.k8s.io/v1`.
//!
//! kube's type decodes the objects together with the envelope. Here they stay text, so that a request with an invalid or very
//! deep object gets a response that names the object. Parsing the envelope does not recurse.

use k8s_openapi::ByteString;
use kube::core::Status;
use nodewright_runtime::json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    /// Identifies the request. The response repeats it.
    pub(crate) uid: String,
    pub(crate) kind: RequestKind,
    /// Empty for a generated name.
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) sub_resource: String,
    pub(crate) operation: String,
    #[serde(borrow, default)]
    pub(crate) object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) old_object: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RequestKind {
    #[serde(default)]
    pub(crate) group: String,
    pub(crate) kind: String,
}

impl Request<'_> {
    /// The object. `None` if it is absent or `null`.
    pub(crate) fn object(&self) -> Option<&str> {
        text(self.object)
    }

    /// The object before an update.
    pub(crate) fn old_object(&self) -> Option<&str> {
        text(self.old_object)
    }
}

fn text(raw: Option<&RawValue>) -> Option<&str> {
    raw.map(RawValue::get).filter(|text| *text != "null")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequestReview<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidReview {
    #[error("failed to read the review: {0}")]
    Json(String),
    #[error("failed to read the review: expected an {KIND} of {API_VERSION}")]
    Type,
    #[error("failed to read the review: it has no request")]
    NoRequest,
}

pub(crate) fn parse(body: &[u8]) -> Result<Request<'_>, InvalidReview> {
    let review: RequestReview<'_> = json::from_slice(body).map_err(|error| {
        // The text of the error may quote the body.
        let category = match error.classify() {
            serde_json::error::Category::Data => "it lacks a field, or has one of another type",
            _ => "it is not JSON",
        };
        InvalidReview::Json(format!("{category} (line {}, column {})", error.line(), error.column()))
    })?;
    if review.api_version != API_VERSION || review.kind != KIND {
        return Err(InvalidReview::Type);
    }
    review.request.ok_or(InvalidReview::NoRequest)
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Response {
    pub(crate) refusal: Option<Status>,
    pub(crate) patch: json_patch::Patch,
    /// Warnings for the user, whether the object is accepted or not.
    pub(crate) warnings: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseReview<'a> {
    api_version: &'static str,
    kind: &'static str,
    response: WireResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

impl Response {
    /// The `AdmissionReview` as JSON, for the request with this UID.
    pub(crate) fn to_json(&self, uid: &str) -> serde_json::Result<Vec<u8>> {
        let patched = !self.patch.is_empty() && self.refusal.is_none();
        let patch = if patched { Some(ByteString(serde_json::to_vec(&self.patch)?)) } else { None };
        serde_json::to_vec(&ResponseReview {
            api_version: API_VERSION,
            kind: KIND,
            response: WireResponse {
                uid,
                allowed: self.refusal.is_none(),
                status: self.refusal.as_ref(),
                patch_type: patched.then_some("JSONPatch"),
                patch,
                warnings: &self.warnings,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_of_another_version_is_refused() {
        let parsed = |version: &str| {
            parse(format!(r#"{{"apiVersion":"admission.k8s.io/{version}","kind":"AdmissionReview"}}"#).as_bytes()).err()
        };
        assert_eq!(parsed("v1beta1"), Some(InvalidReview::Type));
        assert_eq!(parsed("v1"), Some(InvalidReview::NoRequest));
    }

    #[test]
    fn errors_do_not_quote_the_body() {
        for body in [r#"{"request":"password"}"#, r#"{"password"#, r#"{"kind":{"password":1}}"#] {
            let error = parse(body.as_bytes()).unwrap_err().to_string();
            assert!(!error.contains("password"), "{error}");
        }
    }

    #[test]
    fn objects_stay_text_however_deep() {
        let levels = 20_000;
        let deep = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let body = format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","extra":{deep},"request":{{
                "uid":"u","kind":{{"group":"g","version":"v","kind":"K"}},"operation":"CREATE",
                "object":{deep},"oldObject":null}}}}"#
        );
        let request = parse(body.as_bytes()).unwrap();
        assert_eq!(request.object().map(str::len), Some(deep.len()));
        assert_eq!(request.old_object(), None);
    }
}
