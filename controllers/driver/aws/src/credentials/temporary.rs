//! Temporary credentials.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use jiff::Timestamp;
use tokio::time::Instant;

/// How long before their end credentials are replaced: a request that is under way, and clocks that differ, need some time.
const MARGIN: Duration = Duration::from_mins(5);
/// For how long credentials that were refused are kept all the same: others would not do better at once.
const TRIAL: Duration = Duration::from_mins(1);

/// Temporary credentials. They are not printed.
#[derive(Clone)]
pub(super) struct TemporaryCredentials {
    pub(super) credentials: Credentials,
    ends: SystemTime,
    since: Instant,
}

impl TemporaryCredentials {
    /// What an issuer has answered with, in this order: id, secret and session token of a key, and when it ends.
    ///
    /// # Errors
    /// What is wrong, without a value.
    pub(super) fn of(parts: [&str; 3], ends: &str) -> Result<Self, &'static str> {
        let is_text = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
        if !parts.iter().all(is_text) {
            return Err("it has no credentials");
        }
        let ends: Timestamp = ends.parse().map_err(|_| "it has no time at which the credentials end")?;
        let ends = SystemTime::from(ends);
        if ends <= SystemTime::now() {
            return Err("its credentials have ended already; or the clock of this computer is wrong");
        }
        let [id, secret, token] = parts;
        let credentials = Credentials::new(id, secret, Some(token.to_owned()), Some(ends), "temporary");
        Ok(Self { credentials, ends, since: Instant::now() })
    }

    /// Whether they may be used for another call.
    pub(super) fn is_fresh(&self) -> bool {
        SystemTime::now() + MARGIN < self.ends
    }

    /// Whether these were refused, and others may do better.
    pub(super) fn may_be_replaced_after(&self, refused: &Credentials) -> bool {
        self.credentials.access_key_id() == refused.access_key_id() && self.since.elapsed() >= TRIAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_fresh_until_five_minutes_before_their_end() {
        let fresh = |seconds: i64| {
            let ends = Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
            TemporaryCredentials::of(["id", "secret", "token"], &ends.to_string()).map(|temporary| temporary.is_fresh())
        };
        assert_eq!((fresh(310), fresh(290), fresh(5)), (Ok(true), Ok(false), Ok(false)));
        assert!(fresh(-1).is_err());
    }

    #[test]
    fn an_answer_without_credentials_is_none() {
        let ends = (Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string();
        assert!(TemporaryCredentials::of(["id", "secret", "token"], &ends).is_ok());
        for (parts, ends) in
            [(["", "s", "t"], &*ends), (["i", "", "t"], &ends), (["i", "s", "t t"], &ends), (["i", "s", "t"], "soon")]
        {
            assert!(TemporaryCredentials::of(parts, ends).is_err(), "{parts:?} {ends}");
        }
    }
}
