//! Certificates in files that another program renews.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;

use super::{Identity, validity};
use crate::error::RoundError;

const BUNDLE: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A directory with `tls.crt`, `tls.key` and optionally `ca.crt`.
///
/// The modification times of the files show a change, also when the kubelet replaces the files of a mounted Secret by a
/// symbolic link. While certificate and key do not match, as between two writes, the previous ones stay in use.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    read: Option<(Vec<Option<SystemTime>>, Identity)>,
}

impl Directory {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, read: None }
    }

    /// The certificate in the files. Reads them only if one has changed.
    pub(crate) async fn identity(&mut self, provider: &CryptoProvider) -> Result<Identity, RoundError> {
        let times = self.modification_times().await;
        if let Some((read_at, identity)) = &self.read
            && *read_at == times
        {
            return Ok(identity.clone());
        }
        let identity = self.load(provider).await?;
        self.read = Some((times, identity.clone()));
        Ok(identity)
    }

    async fn modification_times(&self) -> Vec<Option<SystemTime>> {
        let mut times = Vec::with_capacity(3);
        for name in [BUNDLE, CERTIFICATE, KEY] {
            let metadata = tokio::fs::metadata(self.path.join(name)).await;
            times.push(metadata.and_then(|metadata| metadata.modified()).ok());
        }
        times
    }

    async fn load(&self, provider: &CryptoProvider) -> Result<Identity, RoundError> {
        let certificate = read(&self.path.join(CERTIFICATE)).await?;
        let key = read(&self.path.join(KEY)).await?;
        let bundle = match read(&self.path.join(BUNDLE)).await {
            Err(RoundError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => None,
            bundle => Some(bundle?),
        };
        let origin = self.path.display().to_string();
        let identity = validity::identity(&certificate, &key, bundle, provider, &origin)?;
        tracing::info!(directory = origin, expires = %identity.not_after, "loaded the certificate of the webhooks");
        Ok(identity)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, RoundError> {
    tokio::fs::read(path).await.map_err(|source| RoundError::File { path: path.to_owned(), source })
}
