//! The checked-in code is what `proto/driver.proto` generates, and its secrets are never printed.
//!
//! `make driver-protocol` writes the code. No `protoc` is needed: the compiler is a crate.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{collections::BTreeSet, fs, path::Path};

use protox::prost_reflect::{DescriptorPool, Value};

const FILE: &str = "nodewright.driver.v1.rs";
/// The messages whose `Debug` is written by hand, in `src/secret.rs`.
const UNPRINTED: [&str; 2] = ["nodewright.driver.v1.Secrets", "nodewright.driver.v1.UserData"];

/// The folder of the crate.
fn protocol() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generate() -> String {
    let protos = protocol().join("proto");
    let descriptors = protox::compile(["driver.proto"], [&protos]).unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut prost = prost_build::Config::new();
    prost.skip_debug(UNPRINTED.map(|message| format!(".{message}")));
    tonic_prost_build::configure().out_dir(out.path()).compile_fds_with_config(descriptors, prost).unwrap();
    fs::read_to_string(out.path().join(FILE)).unwrap()
}

#[test]
fn the_code_is_what_the_protocol_generates() {
    let (path, generated) = (protocol().join("src/generated").join(FILE), generate());
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let checked_in = fs::read_to_string(&path).unwrap();
    assert!(checked_in == generated, "{FILE} differs from what proto/driver.proto generates: make driver-protocol");
}

#[test]
fn each_message_with_a_secret_is_one_that_is_never_printed() {
    let descriptors = protox::Compiler::new([protocol().join("proto")])
        .unwrap()
        .include_imports(true)
        .open_file("driver.proto")
        .unwrap()
        .encode_file_descriptor_set();
    let pool = DescriptorPool::decode(descriptors.as_slice()).unwrap();
    let secret = pool.get_extension_by_name("nodewright.driver.v1.secret").unwrap();
    let messages = pool.all_messages().filter(|message| message.package_name() == "nodewright.driver.v1");
    let marked = messages.filter(|message| {
        message.fields().any(|field| field.options().get_extension(&secret).as_ref() == &Value::Bool(true))
    });
    let marked: BTreeSet<String> = marked.map(|message| message.full_name().to_owned()).collect();
    assert_eq!(marked, BTreeSet::from(UNPRINTED.map(str::to_owned)));
}
