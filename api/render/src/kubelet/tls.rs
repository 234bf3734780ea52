//! What the kubelet's server offers to TLS clients.

use nodewright_api::RawJson;
use nodewright_api::field::{FieldError, FieldPath};
use serde_json::{Map, Value, json};

/// The suites by OpenSSL's names, which profiles have, and by IANA's, which the kubelet has, in the order of the profile `Old`.
const SUITES: [(&str, &str); 22] = [
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-ECDSA-AES128-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
    ("ECDHE-RSA-AES128-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"),
    ("ECDHE-ECDSA-AES128-SHA", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    ("ECDHE-RSA-AES128-SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    ("ECDHE-ECDSA-AES256-SHA", "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    ("ECDHE-RSA-AES256-SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    ("AES128-GCM-SHA256", "TLS_RSA_WITH_AES_128_GCM_SHA256"),
    ("AES256-GCM-SHA384", "TLS_RSA_WITH_AES_256_GCM_SHA384"),
    ("AES128-SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA256"),
    ("AES128-SHA", "TLS_RSA_WITH_AES_128_CBC_SHA"),
    ("AES256-SHA", "TLS_RSA_WITH_AES_256_CBC_SHA"),
    ("DES-CBC3-SHA", "TLS_RSA_WITH_3DES_EDE_CBC_SHA"),
    ("ECDHE-RSA-DES-CBC3-SHA", "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA"),
];
/// How many of [`SUITES`] each profile has, and its lowest version.
const PROFILES: [(&str, usize, &str); 3] =
    [("Old", 21, "VersionTLS10"), ("Intermediate", 9, "VersionTLS12"), ("Modern", 3, "VersionTLS13")];
const VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

/// The fields of the kubelet that a profile sets. Without a profile, those of the base stay.
pub(super) fn fields(profile: Option<&RawJson>, root: &FieldPath) -> Result<Map<String, Value>, Box<FieldError>> {
    let path = root.child("tlsSecurityProfile");
    let Some(profile) = profile else { return Ok(Map::new()) };
    let profile: Value = profile.parse().unwrap_or_default();
    let kind = profile["type"].as_str().unwrap_or_default();
    if kind == "Custom" && profile["custom"].is_object() {
        return custom(&profile["custom"], &path.child("custom"));
    }
    // As OpenShift reads it, an empty profile is the intermediate one.
    let kind = if matches!(kind, "" | "Custom") { "Intermediate" } else { kind };
    let Some((_, count, version)) = PROFILES.iter().find(|(name, ..)| *name == kind) else {
        let kinds = ["Old", "Intermediate", "Modern", "Custom"];
        return Err(Box::new(FieldError::not_supported(path.child("type"), kind, &kinds)));
    };
    let suites: Vec<_> = SUITES[..*count].iter().map(|(_, suite)| *suite).collect();
    Ok(settings(version, &suites))
}

/// The lowest version and the suites of a profile; without one, those of the intermediate profile.
pub(crate) fn of_profile(profile: Option<&RawJson>) -> Result<(String, Vec<String>), Box<FieldError>> {
    let none = RawJson::from(&json!({}));
    let fields = fields(Some(profile.unwrap_or(&none)), &FieldPath::new("spec"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let suites = fields.get("tlsCipherSuites").and_then(Value::as_array).into_iter().flatten().map(text).collect();
    Ok((fields.get("tlsMinVersion").map(text).unwrap_or_default(), suites))
}

fn custom(custom: &Value, path: &FieldPath) -> Result<Map<String, Value>, Box<FieldError>> {
    let version = custom["minTLSVersion"].as_str().filter(|version| !version.is_empty()).unwrap_or("VersionTLS12");
    if !VERSIONS.contains(&version) {
        return Err(Box::new(FieldError::not_supported(path.child("minTLSVersion"), version, &VERSIONS)));
    }
    let names: Vec<_> = custom["ciphers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let suite = |name: &&str| SUITES.iter().find(|(openssl, _)| openssl == name).map(|(_, suite)| *suite);
    // Names that the kubelet has no suite for have no effect.
    let suites: Vec<_> = names.iter().filter_map(suite).collect();
    if suites.is_empty() && !names.is_empty() {
        // Without any, the kubelet would offer all.
        let known: Vec<_> = SUITES.iter().take(5).map(|(name, _)| *name).collect();
        let text = format!("none is known; some that are: {}", known.join(", "));
        return Err(Box::new(FieldError::invalid(path.child("ciphers"), names.join(", "), text)));
    }
    Ok(settings(version, &suites))
}

fn settings(version: &str, suites: &[&str]) -> Map<String, Value> {
    Map::from_iter([("tlsMinVersion".to_owned(), json!(version)), ("tlsCipherSuites".to_owned(), json!(suites))])
}
