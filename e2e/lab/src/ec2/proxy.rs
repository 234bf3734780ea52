//! The proxy: client tokens, VMs that do not show yet, a second deletion, throttling, and answers that are lost.

use std::{
    collections::HashMap,
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::ec2::{
    Ec2Error, Faults, Moto,
    faults::{RequestResult, RequestResults},
};

/// The id of a key that EC2 does not know.
pub const REJECTED_KEY: &str = "AKIAREJECTED";

/// How long a VM is hidden by [`Ec2::hide_next`].
const HIDDEN: Duration = Duration::from_secs(1);
/// For how long moto may still carry out what an earlier process has passed on.
const YOUNG: Duration = Duration::from_secs(10);

/// Status and body of an answer.
pub type Answer = (StatusCode, Bytes);

/// Of what EC2 fails by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It answers nothing.
    Silent,
    /// It has internal errors.
    Failing,
    /// It has no room for another VM.
    Full,
}

#[derive(Debug)]
struct State {
    request_results: RequestResults,
    outage: Option<Outage>,
    hides_next: bool,
    /// Until when a VM does not show, by its id.
    hidden: HashMap<String, Instant>,
    /// The VMs by the token of their creation.
    made: HashMap<String, Made>,
}

#[derive(Clone, Debug)]
struct Made {
    id: String,
    /// The form of the request. `None`: an earlier process has made it.
    form: Option<String>,
}

/// EC2 as a driver sees it.
#[derive(Clone, Debug)]
pub struct Ec2 {
    moto: Moto,
    hidden: Duration,
    started: Instant,
    state: Arc<Mutex<State>>,
    creation: Arc<tokio::sync::Mutex<()>>,
}

impl Ec2 {
    /// An EC2 whose VMs are moto's.
    pub fn new(moto: Moto, faults: Faults) -> Self {
        let hidden = faults.hidden_seconds;
        let state = State {
            request_results: RequestResults::new(faults),
            outage: None,
            hides_next: false,
            hidden: HashMap::new(),
            made: HashMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        Self { moto, hidden, started: Instant::now(), state, creation: Arc::default() }
    }

    /// Begins or ends an outage.
    pub fn set_outage(&self, outage: Option<Outage>) {
        self.state.lock().outage = outage;
    }

    /// The next VM does not show for a second.
    pub fn hide_next(&self) {
        self.state.lock().hides_next = true;
    }

    /// Answers a request. `None`: it is carried out, and the answer is lost.
    pub async fn answer(self, headers: HeaderMap, body: Bytes) -> Option<Answer> {
        let form = String::from_utf8_lossy(&body).into_owned();
        let action = value(&form, "Action").unwrap_or_default();
        if let Some(answer) = self.refused(&headers, &action).await {
            return Some(answer);
        }
        let is_change = ["RunInstances", "TerminateInstances"].contains(&action.as_str());
        let request_result = self.state.lock().request_results.next(is_change, Instant::now());
        if request_result == RequestResult::Throttled {
            return Some(error(503, "RequestLimitExceeded", "Request limit exceeded."));
        }
        let answer = match action.as_str() {
            "RunInstances" => self.run(&headers, &form).await,
            "DescribeInstances" => self.describe(&headers, &form).await,
            "TerminateInstances" => self.terminate(&headers, &form).await,
            _ => self.moto.pass_on(&headers, &form).await,
        };
        let answer = answer.unwrap_or_else(|failure| error(500, "InternalError", &failure.to_string()));
        match request_result {
            RequestResult::Lost => return None,
            RequestResult::Late(after) => sleep(after).await,
            RequestResult::Answered | RequestResult::Throttled => {}
        }
        Some(answer)
    }

    /// The answer to a request that is not carried out.
    async fn refused(&self, headers: &HeaderMap, action: &str) -> Option<Answer> {
        let key = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if key.contains(REJECTED_KEY) {
            let text = "AWS was not able to validate the provided access credentials";
            return Some(error(401, "AuthFailure", text));
        }
        let outage = self.state.lock().outage;
        match outage {
            Some(Outage::Silent) => pending().await,
            Some(Outage::Failing) => Some(error(500, "InternalError", "An internal error has occurred")),
            Some(Outage::Full) if action == "RunInstances" => {
                let text = "We currently do not have sufficient t3.small capacity in the Availability Zone you requested (eu-west-1a).";
                Some(error(500, "InsufficientInstanceCapacity", text))
            }
            Some(Outage::Full) | None => None,
        }
    }

    /// One token, one VM; another request with the same token is refused. One after the other.
    async fn run(&self, headers: &HeaderMap, form: &str) -> Result<Answer, Ec2Error> {
        let _one = self.creation.lock().await;
        let token = value(form, "ClientToken").unwrap_or_default();
        if self.started.elapsed() < YOUNG {
            self.learn().await?;
        }
        let made = self.state.lock().made.get(&token).cloned();
        if let Some(made) = made {
            return self.made(headers, form, &made).await;
        }
        let answer = self.moto.pass_on(headers, form).await?;
        if answer.0.is_success() {
            let id = between(&text(&answer), "<instanceId>", "</instanceId>")?;
            let mut state = self.state.lock();
            let hidden = if std::mem::take(&mut state.hides_next) { HIDDEN } else { self.hidden };
            state.hidden.insert(id.clone(), Instant::now() + hidden);
            if !token.is_empty() {
                state.made.insert(token, Made { id, form: Some(form.to_owned()) });
            }
        }
        Ok(answer)
    }

    /// The answer to a creation whose token has made a VM: that VM as it is now.
    async fn made(&self, headers: &HeaderMap, form: &str, made: &Made) -> Result<Answer, Ec2Error> {
        if made.form.as_ref().is_some_and(|first| first != form) {
            let text =
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).";
            return Ok(error(400, "IdempotentParameterMismatch", text));
        }
        let form = format!("Action=DescribeInstances&Version=2016-11-15&InstanceId.1={}", made.id);
        let (status, body) = self.moto.pass_on(headers, &form).await?;
        let reservation =
            between(&String::from_utf8_lossy(&body), "<reservationSet><item>", "</item></reservationSet>")?;
        Ok((status, Bytes::from(format!("<RunInstancesResponse>{reservation}</RunInstancesResponse>"))))
    }

    /// Takes in what earlier processes have made.
    async fn learn(&self) -> Result<(), Ec2Error> {
        let vms = self.moto.vms().await?;
        let mut state = self.state.lock();
        for vm in vms {
            let age = SystemTime::now().duration_since(vm.launched.into()).unwrap_or_default();
            let left = self.hidden.saturating_sub(age);
            state.hidden.entry(vm.id.clone()).or_insert_with(|| Instant::now() + left);
            state.made.entry(vm.token).or_insert(Made { id: vm.id, form: None });
        }
        Ok(())
    }

    fn hidden(&self) -> Vec<String> {
        let state = self.state.lock();
        let hidden = state.hidden.iter().filter(|(_, until)| **until > Instant::now());
        hidden.map(|(id, _)| id.clone()).collect()
    }

    async fn describe(&self, headers: &HeaderMap, form: &str) -> Result<Answer, Ec2Error> {
        let hidden = self.hidden();
        if value(form, "InstanceId.1").is_some_and(|id| hidden.contains(&id)) {
            return Ok(unknown_instance());
        }
        let answer = self.moto.pass_on(headers, &with_filters_apart(form)).await?;
        let (text, start, end) = (text(&answer), "<item><reservationId>", "</instancesSet></item>");
        let mut parts = text.split(start);
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            if hidden.iter().any(|id| part.contains(id.as_str())) {
                shown += part.split_once(end).map_or("", |(_, rest)| rest);
            } else {
                shown.extend([start, part]);
            }
        }
        Ok((answer.0, Bytes::from(shown)))
    }

    async fn terminate(&self, headers: &HeaderMap, form: &str) -> Result<Answer, Ec2Error> {
        let id = value(form, "InstanceId.1").unwrap_or_default();
        if self.hidden().contains(&id) {
            return Ok(unknown_instance());
        }
        // moto may fail here, and EC2 says that it is gone.
        if self.moto.vm(&id).await.is_ok_and(|vm| vm.is_gone()) {
            let body = format!(
                "<TerminateInstancesResponse><instancesSet><item><instanceId>{id}</instanceId></item></instancesSet></TerminateInstancesResponse>"
            );
            return Ok((StatusCode::OK, Bytes::from(body)));
        }
        self.moto.pass_on(headers, form).await
    }
}

/// A form whose filters by the keys of tags have names of their own. Of several filters with one name EC2 wants all, and moto the last.
fn with_filters_apart(form: &str) -> String {
    let tag_keys: Vec<&str> = form.split('&').filter_map(|pair| pair.strip_suffix(".Name=tag-key")).collect();
    let mut pairs: Vec<String> = form.split('&').map(str::to_owned).collect();
    for filter in tag_keys {
        let Some(key) = value(form, &format!("{filter}.Value.1")) else { continue };
        pairs.retain(|pair| !pair.starts_with(&format!("{filter}.")));
        pairs.extend([format!("{filter}.Name=tag%3A{key}"), format!("{filter}.Value.1=%2A")]);
    }
    pairs.join("&")
}

fn unknown_instance() -> Answer {
    error(400, "InvalidInstanceID.NotFound", "The instance ID does not exist")
}

fn error(status: u16, code: &str, message: &str) -> Answer {
    let body =
        format!("<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>");
    (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Bytes::from(body))
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.1).into_owned()
}

/// A parameter whose value needs no encoding.
fn value(form: &str, name: &str) -> Option<String> {
    form.split('&').find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

fn between(text: &str, start: &str, end: &str) -> Result<String, Ec2Error> {
    let found = text.split_once(start).and_then(|(_, rest)| rest.split_once(end));
    found.map(|(found, _)| found.to_owned()).ok_or_else(|| Ec2Error::Moto(format!("no {start} in {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_by_keys_of_tags_get_names_of_their_own() {
        let form = "Action=A&Filter.1.Name=tag-key&Filter.1.Value.1=a%2Fb&Filter.2.Name=tag-key&Filter.2.Value.1=c&Filter.3.Name=x&Filter.3.Value.1=y";
        let expected = "Action=A&Filter.3.Name=x&Filter.3.Value.1=y&Filter.1.Name=tag%3Aa%2Fb&Filter.1.Value.1=%2A&Filter.2.Name=tag%3Ac&Filter.2.Value.1=%2A";
        assert_eq!(with_filters_apart(form), expected);
        assert_eq!(with_filters_apart("Action=A&Filter.1.Name=tag%3Ac"), "Action=A&Filter.1.Name=tag%3Ac");
    }
}
