//! Temporary credentials of several identities: each is asked for once at a time, and kept until shortly before its end.
//!
//! # Guarantees
//! * Calls that need the same credentials at once share one request, and its failure. A later call makes another.
//! * It ends within the timeout of a request. A call that is dropped stops no other.
//! * What nobody can use any more is dropped with the next request.

use std::{collections::HashMap, fmt, sync::Arc};

use aws_credential_types::Credentials;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared, ready},
};
use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use parking_lot::Mutex;

use super::{Issuer, Role, RoleCaller, Session, Source, metadata::Metadata, sts::Sts, temporary::TemporaryCredentials};
use crate::{
    endpoints::Endpoints,
    errors::{EXPIRED, Refused},
    transport::Transport,
};

/// STS is asked in a region.
type Identity = (String, Issuer);
type Request = BoxFuture<'static, Result<TemporaryCredentials>>;

pub(crate) struct Identities {
    sts: Sts,
    metadata: Metadata,
    transport: Transport,
    known: Mutex<HashMap<Identity, Known>>,
}

#[derive(Default)]
struct Known {
    temporary: Option<TemporaryCredentials>,
    request: Option<WeakShared<Request>>,
}

impl fmt::Debug for Identities {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Identities({})", self.known.lock().len())
    }
}

impl Known {
    fn fresh(&self) -> Option<&TemporaryCredentials> {
        self.temporary.as_ref().filter(|temporary| temporary.is_fresh())
    }

    fn under_way(&self) -> Option<Shared<Request>> {
        self.request.as_ref()?.upgrade().filter(|request| request.peek().is_none())
    }
}

impl Identities {
    pub(crate) fn new(endpoints: &Endpoints, transport: &Transport) -> Self {
        Self {
            sts: Sts::new(endpoints, transport),
            metadata: Metadata::new(endpoints, transport),
            transport: transport.clone(),
            known: Mutex::default(),
        }
    }

    /// The credentials of a session.
    ///
    /// # Errors
    /// They cannot be got. Nothing is known of any VM then: the code is never `NotFound`.
    pub(crate) async fn credentials(self: &Arc<Self>, session: &Session) -> Result<Credentials> {
        match &session.source {
            Source::Key(key) => Ok(key.credentials()),
            Source::Issuer(issuer) => {
                self.obtained((session.region.clone(), issuer.clone())).await.map(|temporary| temporary.credentials)
            }
        }
    }

    /// What a refusal of EC2 means for a session: temporary credentials that were refused are replaced by others.
    pub(crate) fn after(&self, session: &Session, used: &Credentials, refused: Refused) -> Refused {
        let Source::Issuer(issuer) = &session.source else { return refused };
        if matches!(refused.error.code, Code::Unauthenticated | Code::PermissionDenied) {
            self.forget(&(session.region.clone(), issuer.clone()), used);
        }
        if !EXPIRED.contains(&refused.ec2_code.as_str()) {
            return refused;
        }
        Refused { error: DriverError { code: Code::Unavailable, ..refused.error }, ..refused }
    }

    /// Drops credentials that were refused, unless they are so new that others would be refused, too.
    fn forget(&self, identity: &Identity, used: &Credentials) {
        let mut known = self.known.lock();
        if let Some(entry) = known.get_mut(identity) {
            entry.temporary.take_if(|temporary| temporary.may_be_replaced_after(used));
        }
    }

    /// The credentials that are known, or the request for them: the one that is under way, or a new one.
    fn obtained(self: &Arc<Self>, identity: Identity) -> Shared<Request> {
        let mut known = self.known.lock();
        let entry = known.entry(identity.clone()).or_default();
        if let Some(temporary) = entry.fresh() {
            return ready(Ok(temporary.clone())).boxed().shared();
        }
        if let Some(request) = entry.under_way() {
            return request;
        }
        let request = Arc::clone(self).request(identity).boxed().shared();
        entry.request = request.downgrade();
        known.retain(|_, entry| entry.fresh().is_some() || entry.under_way().is_some());
        request
    }

    async fn request(self: Arc<Self>, identity: Identity) -> Result<TemporaryCredentials> {
        let timeout = self.transport.timeout();
        let temporary = tokio::time::timeout(timeout, self.ask(&identity)).await.unwrap_or_else(|_| {
            Err(DriverError::new(Code::DeadlineExceeded, format!("there were no credentials within {timeout:?}")))
        })?;
        if temporary.is_fresh() {
            self.known.lock().entry(identity).or_default().temporary = Some(temporary.clone());
        }
        Ok(temporary)
    }

    async fn ask(self: &Arc<Self>, (region, issuer): &Identity) -> Result<TemporaryCredentials> {
        match issuer {
            Issuer::Instance => self.metadata.credentials().await,
            Issuer::WebIdentity(identity) => self.sts.assume_with_token(region, identity).await,
            Issuer::Role(role) => match &role.caller {
                RoleCaller::Key(key) => self.sts.assume(region, role, &key.credentials()).await,
                RoleCaller::Instance => self.assume_as_instance(region, role).await,
            },
        }
    }

    async fn assume_as_instance(self: &Arc<Self>, region: &str, role: &Role) -> Result<TemporaryCredentials> {
        let instance = (region.to_owned(), Issuer::Instance);
        let caller = self.obtained(instance.clone()).await?.credentials;
        let temporary = self.sts.assume(region, role, &caller).await;
        if temporary.as_ref().is_err_and(|error| error.code == Code::Unauthenticated) {
            self.forget(&instance, &caller);
        }
        temporary
    }
}
