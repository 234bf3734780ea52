//! Where requests go: the hosts of a region, or those that the operator has set.

use http::Uri;

use crate::Options;

/// Where an instance finds its metadata, as AWS documents it.
const METADATA: &str = "http://169.254.169.254/";

/// A URL is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to use {url:?} as the URL of {service}: {reason}")]
pub struct EndpointError {
    /// What is to be reached there, such as `EC2`.
    pub service: &'static str,
    /// The URL.
    pub url: String,
    /// The reason.
    pub reason: String,
}

/// The URLs of what is asked.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    /// `None`: that of the region.
    ec2: Option<String>,
    /// `None`: that of the region.
    sts: Option<String>,
    metadata: String,
}

impl Endpoints {
    pub(crate) fn of(options: &Options) -> Result<Self, EndpointError> {
        let metadata = read("the metadata service", options.metadata_endpoint.as_deref())?;
        Ok(Self {
            ec2: read("EC2", options.endpoint.as_deref())?,
            sts: read("STS", options.sts_endpoint.as_deref())?,
            metadata: metadata.unwrap_or_else(|| METADATA.to_owned()),
        })
    }

    pub(crate) fn ec2(&self, region: &str) -> String {
        self.ec2.clone().unwrap_or_else(|| of_region("ec2", region))
    }

    pub(crate) fn sts(&self, region: &str) -> String {
        self.sts.clone().unwrap_or_else(|| of_region("sts", region))
    }

    /// The URL of the metadata service, with a slash at its end.
    pub(crate) fn metadata(&self) -> &str {
        &self.metadata
    }
}

/// The region is one of letters, digits and dashes: it cannot lead to another host.
fn of_region(service: &str, region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{service}.{region}.{domain}/")
}

fn read(service: &'static str, url: Option<&str>) -> Result<Option<String>, EndpointError> {
    let Some(url) = url else { return Ok(None) };
    let failed = |reason: &str| EndpointError { service, url: url.to_owned(), reason: reason.to_owned() };
    let parsed: Uri = url.trim().parse().map_err(|_| failed("it is no URL"))?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) {
        return Err(failed("it must begin with https:// or http://"));
    }
    if parsed.host().is_none_or(str::is_empty) || parsed.path_and_query().is_some_and(|path| path != "/") {
        return Err(failed("it must have a host, and neither a path nor a query"));
    }
    Ok(Some(format!("{}/", url.trim().trim_end_matches('/'))))
}
