//! Requests of AWS's query protocol, signed or not.

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4,
};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;

pub(crate) const AGENT: &str = concat!("nodewright/", env!("CARGO_PKG_VERSION"), " (aws-driver)");
const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";

/// Who gets a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addressee<'a> {
    /// The name of the service in a signature, such as `ec2`.
    pub service: &'static str,
    pub region: &'a str,
    pub url: &'a str,
}

/// A request with a form as its body. With a session token, that is signed, too.
///
/// # Errors
/// Why it cannot be signed, without a secret.
pub(crate) fn signed(
    to: Addressee<'_>,
    form: String,
    credentials: &Credentials,
) -> Result<Request<Full<Bytes>>, String> {
    let identity = credentials.clone().into();
    let parameters = v4::SigningParams::builder()
        .identity(&identity)
        .region(to.region)
        .name(to.service)
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()
        .map_err(|error| error.to_string())?;
    let content_type = [(header::CONTENT_TYPE.as_str(), FORM)];
    let body = SignableBody::Bytes(form.as_bytes());
    let signable = SignableRequest::new("POST", to.url, content_type.into_iter(), body);
    let signature = sign(signable.map_err(|error| error.to_string())?, &parameters.into());
    let (instructions, _) = signature.map_err(|error| error.to_string())?.into_parts();
    let mut request = unsigned(to.url, form)?;
    instructions.apply_to_request_http1x(&mut request);
    Ok(request)
}

/// A request with a form as its body, which proves itself.
pub(crate) fn unsigned(url: &str, form: String) -> Result<Request<Full<Bytes>>, String> {
    Request::builder()
        .method(Method::POST)
        .uri(url)
        .header(header::USER_AGENT, AGENT)
        .header(header::CONTENT_TYPE, FORM)
        .body(Full::new(Bytes::from(form)))
        .map_err(|error| error.to_string())
}
