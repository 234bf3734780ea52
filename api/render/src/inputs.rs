//! A digest of what is rendered, by which it is known again without rendering it.

use crate::merge::{Input, Options, sort};
use crate::name::hexadecimal;
use nodewright_api::machine_config::MachineConfigSpec;
use serde::Serialize;
use serde_json::{Value, json};

/// A digest of all that determines what is rendered, in any release: 64 hexadecimal digits.
///
/// # Guarantees
///
/// * It does not depend on the order in which MachineConfigs are given, nor on blanks and the order of fields in their text.
/// * Inputs with one digest render to one spec, as long as the code that renders is the same.
pub fn digest(inputs: &[Input<'_>], options: &Options) -> String {
    let mut inputs = inputs.to_vec();
    sort(&mut inputs);
    let each = |input: &Input<'_>| json!({"generated": input.is_generated, "spec": to_value(input.spec)});
    let all = json!({
        "machineConfigs": inputs.iter().map(each).collect::<Vec<_>>(),
        "osImageURL": options.os_image_url,
        "baseOSExtensionsContainerImage": options.base_os_extensions_container_image,
    });
    hexadecimal(&all, 32)
}

/// A digest of the spec of a MachineConfig: 64 hexadecimal digits.
pub fn content(spec: &MachineConfigSpec) -> String {
    hexadecimal(&to_value(spec), 32)
}

pub(crate) fn to_value<T: Serialize>(spec: &T) -> Value {
    // What is too deep for a value is not rendered either. It must only not be the same as something else.
    serde_json::to_value(spec).unwrap_or_else(|_| serde_json::to_string(spec).unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> MachineConfigSpec {
        serde_json::from_str(text).unwrap()
    }

    fn input<'a>(name: &'a str, spec: &'a MachineConfigSpec) -> Input<'a> {
        Input { name, role: Some("worker"), is_generated: false, spec }
    }

    #[test]
    fn the_digest_follows_from_the_content_in_the_order_of_the_merge() {
        let a = spec(r#"{"config": {"ignition": {"version": "3.5.0"}, "x": 1}, "fips": true}"#);
        let same = spec(r#"{"fips":true,"config":{"x":1,"ignition":{"version":"3.5.0"}}}"#);
        let b = spec(r#"{"kernelArguments": ["b"]}"#);
        let options = Options::default();
        let of = |inputs: &[Input<'_>]| digest(inputs, &options);
        let first = of(&[input("1", &a), input("2", &b)]);
        assert_eq!(first.len(), 64);
        assert_eq!(first, of(&[input("2", &b), input("1", &same)]));
        assert_ne!(first, of(&[input("1", &b), input("2", &a)]), "another order of the merge");
        assert_ne!(first, of(&[input("1", &a), Input { is_generated: true, ..input("2", &b) }]));
        assert_ne!(first, of(&[input("1", &a)]));
        let image = Options { os_image_url: "image".to_owned(), ..Options::default() };
        assert_ne!(first, digest(&[input("1", &a), input("2", &b)], &image));
    }

    /// What is allowed is no part of what is rendered: a flag moves no target.
    #[test]
    fn the_allowed_extensions_are_no_input() {
        let any = Options { extensions: None, ..Options::default() };
        assert_eq!(digest(&[], &any), digest(&[], &Options::default()));
    }

    /// Rendered objects carry it: another digest would let a later release move all targets.
    #[test]
    fn a_golden_digest() {
        let a = spec(r#"{"config": {"ignition": {"version": "3.5.0"}}, "kernelArguments": ["a"], "osImageURL": "o"}"#);
        let golden = "e800802498c3017526b5870e98c4d3f5d701ba7a7d5e92f13bdb3e8249ef6313";
        assert_eq!(digest(&[input("a", &a)], &Options::default()), golden);
    }
}
