//! Checks that `config/webhook/manifests.yaml` matches the code.

#![allow(clippy::unwrap_used, reason = "a test may")]

use nodewright_webhooks::{ClientConfig, DEFAULT_NAMESPACE, configurations, machine_config_configuration};
use serde::Serialize;
use serde_json::Value;

fn value(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

#[test]
fn the_manifests_are_those_of_the_code() {
    let all = configurations(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
    compare("manifests.yaml", &[value(all.mutating), value(all.validating)]);
    let machine_config = machine_config_configuration(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
    compare("machine-config/manifests.yaml", &[value(machine_config)]);
}

fn compare(file: &str, of_code: &[Value]) {
    let path = format!("{}/../config/webhook/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    if std::env::var_os("UPDATE_MANIFESTS").is_some() {
        let head = text.lines().take_while(|line| line.starts_with('#')).map(|line| format!("{line}\n"));
        let body: Vec<_> = of_code.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
        std::fs::write(&path, format!("{}{}", head.collect::<String>(), body.join("---\n"))).unwrap();
        return;
    }
    let of_file: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert_eq!(of_file, of_code, "run the test with UPDATE_MANIFESTS=1");
}
