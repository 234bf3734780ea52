//! What a driver says of itself.

use std::{ops::RangeInclusive, time::Duration};

use super::{VERSION, v1};

/// The time that a call may take.
const LONGEST_CALL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(10);
const CONSISTENCY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_mins(10);
const POLL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(1);
/// The maximum number of fields of the identity, and the maximum length of each text, in bytes.
const FIELDS: usize = 20;
const TEXT: usize = 253;

/// What a driver says of itself, as far as the manager relies on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each says of one call or promise whether there is one")]
pub struct Info {
    /// The value of `MachineClass.provider`.
    pub provider: String,
    /// The beginning of each provider id.
    pub provider_id_prefix: String,
    /// The fields of a `providerSpec` by which VMs are found, as paths that [`nodewright_api::identity_value`] reads.
    pub identity: Vec<String>,
    /// The deadline of a call.
    pub longest_call: Duration,
    /// How long a new VM may be missing in answers.
    pub consistency: Duration,
    /// The pause between two questions whether a VM is gone.
    pub poll: Duration,
    /// Whether VMs need to be initialized.
    pub initializes: bool,
    /// Whether the driver checks a `providerSpec`.
    pub validates: bool,
    /// Whether VMs keep the token of their creation.
    pub stores_owner: bool,
    /// Whether the driver says which volumes are the provider's.
    pub knows_volumes: bool,
    /// Whether the driver describes VMs as their Nodes need it.
    pub describes_instances: bool,
    /// Whether the driver describes VMs that were not made for a Machine.
    pub describes_unowned: bool,
    /// Whether the driver counts its requests to the provider.
    pub counts_requests: bool,
}

/// The driver's `GetInfo` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GetInfo of the driver answers with {field} that is not {allowed}")]
pub struct InvalidInfo {
    field: &'static str,
    allowed: String,
}

impl Info {
    /// The message.
    pub fn encode(&self) -> v1::GetInfoResponse {
        v1::GetInfoResponse {
            protocol_version: VERSION.to_owned(),
            provider: self.provider.clone(),
            provider_id_prefix: self.provider_id_prefix.clone(),
            identity: self.identity.clone(),
            longest_call: duration(self.longest_call),
            consistency: duration(self.consistency),
            poll: duration(self.poll),
            initializes: self.initializes,
            validates: self.validates,
            stores_owner: self.stores_owner,
            knows_volumes: self.knows_volumes,
            describes_instances: self.describes_instances,
            describes_unowned: self.describes_unowned,
            counts_requests: self.counts_requests,
        }
    }

    /// Checks a message and decodes it.
    pub fn decode(message: v1::GetInfoResponse) -> Result<Self, InvalidInfo> {
        let fault = |field, allowed: &str| InvalidInfo { field, allowed: allowed.to_owned() };
        if message.protocol_version != VERSION {
            return Err(fault("a protocol_version", "v1, the version of this manager"));
        }
        if !is_name(&message.provider) {
            return Err(fault("a provider", "a name of 1 to 253 visible characters"));
        }
        if !is_name(&message.provider_id_prefix) || !message.provider_id_prefix.contains("://") {
            return Err(fault("a provider_id_prefix", "like \"aws:///\", of at most 253 visible characters"));
        }
        if message.identity.len() > FIELDS || !message.identity.iter().all(|field| is_name(field)) {
            return Err(fault("an identity", "a list of at most 20 JSON paths below providerSpec"));
        }
        Ok(Self {
            longest_call: within("a longest_call", message.longest_call, LONGEST_CALL)?,
            consistency: within("a consistency", message.consistency, CONSISTENCY)?,
            poll: within("a poll", message.poll, POLL)?,
            provider: message.provider,
            provider_id_prefix: message.provider_id_prefix,
            identity: message.identity,
            initializes: message.initializes,
            validates: message.validates,
            stores_owner: message.stores_owner,
            knows_volumes: message.knows_volumes,
            describes_instances: message.describes_instances,
            describes_unowned: message.describes_unowned,
            counts_requests: message.counts_requests,
        })
    }
}

fn is_name(text: &str) -> bool {
    (1..=TEXT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn within(
    field: &'static str,
    value: Option<prost_types::Duration>,
    allowed: RangeInclusive<Duration>,
) -> Result<Duration, InvalidInfo> {
    let value = value.and_then(|value| Duration::try_from(value).ok()).filter(|value| allowed.contains(value));
    value.ok_or_else(|| InvalidInfo { field, allowed: format!("{:?} to {:?}", allowed.start(), allowed.end()) })
}

/// A duration as a message. One that does not fit, of 292 billion years, is left out.
pub(crate) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        Info {
            provider: "p".to_owned(),
            provider_id_prefix: "p:///".to_owned(),
            identity: vec!["cluster".to_owned()],
            longest_call: Duration::from_secs(30),
            consistency: Duration::from_secs(5),
            poll: Duration::from_secs(2),
            initializes: true,
            validates: true,
            stores_owner: true,
            knows_volumes: true,
            describes_instances: true,
            describes_unowned: true,
            counts_requests: true,
        }
    }

    #[test]
    fn what_one_side_says_is_what_the_other_reads() {
        assert_eq!(Info::decode(info().encode()), Ok(info()));
    }

    /// An answer from before there was the field.
    #[test]
    fn a_driver_that_does_not_speak_of_volumes_is_not_asked_about_them() {
        let earlier = v1::GetInfoResponse { knows_volumes: false, ..info().encode() };
        let read: v1::GetInfoResponse =
            prost::Message::decode(prost::Message::encode_to_vec(&earlier).as_slice()).unwrap();
        assert_eq!(Info::decode(read), Ok(Info { knows_volumes: false, ..info() }));
    }

    #[test]
    fn what_cannot_be_relied_on_is_refused_by_its_field() {
        type Change = fn(&mut v1::GetInfoResponse);
        let table: [(&str, Change); 9] = [
            ("protocol_version", |it| it.protocol_version = "v2".to_owned()),
            ("provider", |it| it.provider = String::new()),
            ("provider", |it| it.provider = "a\nb".to_owned()),
            ("provider_id_prefix", |it| it.provider_id_prefix = String::new()),
            ("identity", |it| it.identity = vec!["x".to_owned(); 21]),
            ("longest_call", |it| it.longest_call = None),
            ("longest_call", |it| it.longest_call = duration(Duration::from_mins(11))),
            ("consistency", |it| it.consistency = Some(prost_types::Duration { seconds: -1, nanos: 0 })),
            ("poll", |it| it.poll = duration(Duration::ZERO)),
        ];
        for (field, change) in table {
            let mut message = info().encode();
            change(&mut message);
            let error = Info::decode(message).unwrap_err();
            assert!(error.field.ends_with(&format!(" {field}")), "{error}");
        }
    }
}
