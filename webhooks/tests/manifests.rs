//! Checks that `config/webhook/manifests.yaml` matches the code.

#![allow(clippy::unwrap_used, reason = "a test may")]

use nodewright_webhooks::{ClientConfig, DEFAULT_NAMESPACE, configurations};
use serde_json::Value;

#[test]
fn the_manifests_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/webhook/manifests.yaml");
    let all = configurations(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
    let of_code = [serde_json::to_value(all.mutating).unwrap(), serde_json::to_value(all.validating).unwrap()];
    let text = std::fs::read_to_string(path).unwrap();
    let of_file: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    if std::env::var_os("UPDATE_MANIFESTS").is_some() {
        let head = text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
        let body = of_code.map(|object| serde_saphyr::to_string(&object).unwrap());
        std::fs::write(path, format!("{}{}", head.collect::<String>(), body.join("---\n"))).unwrap();
        return;
    }
    assert_eq!(of_file, of_code, "run the test with UPDATE_MANIFESTS=1");
}
