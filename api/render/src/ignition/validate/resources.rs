//! The section `ignition`, and resources: what is fetched, or written in a URL itself.

use super::super::url;
use super::{Check, all, is_set};
use ignition_config::v3_5::{HttpHeadersItem, Ignition, Proxy, Resource, Verification};
use nodewright_api::field::FieldPath;

impl Check {
    pub(super) fn ignition(&mut self, ignition: &Ignition, at: &FieldPath) {
        if let Some(config) = &ignition.config {
            let at = at.child("config");
            self.references(all(config.merge.as_ref()), &at.child("merge"));
            if let Some(replace) = &config.replace {
                self.reference(replace, &at.child("replace"));
            }
        }
        if let Some(proxy) = &ignition.proxy {
            self.proxy(proxy, &at.child("proxy"));
        }
        let tls = ignition.security.as_ref().and_then(|security| security.tls.as_ref());
        let authorities = tls.map_or(&[][..], |tls| all(tls.certificate_authorities.as_ref()));
        let at = at.child("security").child("tls").child("certificateAuthorities");
        self.authorities(authorities, &at);
    }

    /// Configs that are merged. Since 3.1 each needs a source.
    fn references(&mut self, references: &[Resource], at: &FieldPath) {
        for (index, reference) in references.iter().enumerate() {
            let at = at.key(index);
            if self.minor >= 1 {
                self.required_source(reference, &at);
            }
            self.reference(reference, &at);
        }
    }

    /// In 3.0, a reference to a config was a type of its own, with fewer rules.
    fn reference(&mut self, reference: &Resource, at: &FieldPath) {
        if self.minor >= 1 {
            return self.resource(reference, at);
        }
        self.source(reference, &at.child("source"));
        self.verification(reference.verification.as_ref(), &at.child("verification"));
    }

    fn authorities(&mut self, authorities: &[Resource], at: &FieldPath) {
        for (index, authority) in authorities.iter().enumerate() {
            let at = at.key(index);
            if self.minor >= 1 {
                self.required_source(authority, &at);
                self.resource(authority, &at);
                continue;
            }
            let source = authority.source.as_deref().unwrap_or_default();
            if let Some(error) = url::error(source, self.minor) {
                self.confidential(at.child("source"), source, error);
            }
            self.verification(authority.verification.as_ref(), &at.child("verification"));
        }
    }

    fn required_source(&mut self, resource: &Resource, at: &FieldPath) {
        let source = resource.source.as_deref().unwrap_or_default();
        if source.is_empty() {
            self.invalid(at.clone(), source, "must have a source");
        } else if let Some(error) = url::error(source, self.minor) {
            self.confidential(at.clone(), source, error);
        }
    }

    /// The rules of each resource.
    pub(super) fn resource(&mut self, resource: &Resource, at: &FieldPath) {
        if let Some(compression) = resource.compression.as_deref().filter(|text| !matches!(*text, "" | "gzip")) {
            self.invalid(at.child("compression"), compression, "must be gzip or empty");
        }
        let verification = at.child("verification");
        let hash = resource.verification.as_ref().and_then(|verification| verification.hash.as_deref());
        if let (Some(hash), None) = (hash, &resource.source) {
            self.confidential(verification.child("hash"), hash, "must not be set without a source");
        }
        self.source(resource, &at.child("source"));
        let headers = all(resource.http_headers.as_ref());
        self.headers(headers, &at.child("httpHeaders"));
        self.scheme_of_headers(resource, headers, &at.child("httpHeaders"));
        self.verification(resource.verification.as_ref(), &verification);
    }

    fn source(&mut self, resource: &Resource, at: &FieldPath) {
        let Some(source) = resource.source.as_deref().filter(|source| !source.is_empty()) else { return };
        if let Some(error) = url::error(source, self.minor) {
            self.confidential(at.clone(), source, error);
        }
    }

    fn scheme_of_headers(&mut self, resource: &Resource, headers: &[HttpHeadersItem], at: &FieldPath) {
        if headers.is_empty() {
            return;
        }
        let url = resource.source.as_deref().filter(|source| !source.is_empty()).and_then(url::parse);
        if !url.is_some_and(|url| matches!(url.scheme.as_str(), "http" | "https")) {
            self.invalid(at.clone(), headers.len(), "must only be set for a source with the scheme http or https");
        }
    }

    fn headers(&mut self, headers: &[HttpHeadersItem], at: &FieldPath) {
        for (index, header) in headers.iter().enumerate() {
            let at = at.key(index);
            if header.name.is_empty() {
                self.invalid(at.child("name"), "", "must not be empty");
            }
            if header.value.as_deref() == Some("") {
                self.invalid(at.child("value"), "", "must be absent, which removes the header, or not empty");
            }
        }
    }

    fn verification(&mut self, verification: Option<&Verification>, at: &FieldPath) {
        let Some(hash) = verification.and_then(|verification| verification.hash.as_deref()) else { return };
        let digits = match hash.split_once('-') {
            Some(("sha512", sum)) => Some((sum, 128)),
            Some(("sha256", sum)) if self.minor >= 1 => Some((sum, 64)),
            _ => None,
        };
        let rule = match digits {
            Some((sum, length)) if sum.len() == length => return,
            Some(_) => "must have 64 digits after sha256-, or 128 after sha512-",
            None => "must begin with sha512-, or since 3.1.0 with sha256-",
        };
        // What is no hash may be what was to be hashed.
        self.confidential(at.child("hash"), hash, rule);
    }

    fn proxy(&mut self, proxy: &Proxy, at: &FieldPath) {
        for (field, value) in [("httpProxy", &proxy.http_proxy), ("httpsProxy", &proxy.https_proxy)] {
            let Some(value) = value else { continue };
            if !url::parse(value).is_some_and(|url| matches!(url.scheme.as_str(), "http" | "https")) {
                // It may have a password.
                self.confidential(at.child(field), value, "must be a URL with the scheme http or https");
            }
        }
    }

    /// A source that is needed to unlock a volume.
    pub(super) fn key_file(&mut self, resource: Option<&Resource>, at: &FieldPath) -> bool {
        let Some(resource) = resource else { return false };
        self.resource(resource, at);
        is_set(resource.source.as_ref())
    }
}
