//! Asks the driver what is wrong with a `providerSpec`.

use std::time::Duration;

use nodewright_api::RawJson;
use nodewright_driver_protocol::{self as protocol, v1};
use tokio::time::{sleep, timeout};
use tonic::Request;

use super::session::Link;

/// How long the driver may take. An API server waits ten seconds for a review by default.
const ANSWER: Duration = Duration::from_secs(3);
/// The pause after an answer that was lost.
const AGAIN: Duration = Duration::from_millis(200);

/// The validation errors; `None` if there is no answer in time.
pub(crate) async fn validate(link: &Link, spec: &RawJson) -> Option<Vec<(String, String)>> {
    timeout(ANSWER, ask(link, spec)).await.ok().flatten()
}

/// Asks until there is an answer: the driver may just be starting again.
async fn ask(link: &Link, spec: &RawJson) -> Option<Vec<(String, String)>> {
    loop {
        let session = link.session(ANSWER).await?;
        let mut request = Request::new(v1::ValidateClassRequest { provider_spec: spec.text().to_owned() });
        request.set_timeout(ANSWER);
        match session.client.clone().validate_class(request).await {
            Ok(answer) => return Some(protocol::decode_faults(answer.into_inner())),
            Err(status) => {
                tracing::warn!("the driver did not validate a providerSpec: {:?}", status.code());
                sleep(AGAIN).await;
            }
        }
    }
}
