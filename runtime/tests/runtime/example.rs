//! The plans of the example in the crate's documentation.

#[allow(dead_code, unreachable_pub)] // its `main`; it is an executable of its own elsewhere
#[path = "../../examples/share.rs"]
mod share;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use nodewright_runtime::{cache::Stores, controller::Controller, effect::Outcomes, object::ObjectRef, plan::Context};
use nodewright_testing::{ObjectBuilder, object};

/// The plan for a namespace with the label, as text.
fn plan(name: &str, stores: Stores) -> String {
    let namespace = object::<Namespace>(name).with("/metadata/namespace", None::<String>).label("share", "true");
    let stores = stores.with(share::HOME, namespace.build());
    let snapshot = share::Share.snapshot(&stores, &ObjectRef::new(share::HOME, "", name)).unwrap();
    let (now, outcomes) = ("2026-06-01T12:00:00Z".parse().unwrap(), Outcomes::default());
    let moment = Context::new(now, &outcomes);
    share::Share::plan(&moment, &snapshot).to_string()
}

fn map(namespace: &str) -> ObjectBuilder<ConfigMap> {
    object("shared").with("/metadata/namespace", namespace).with("/data/key", "value")
}

#[test]
fn the_source_is_left_alone_also_where_its_own_namespace_has_the_label() {
    let stores = || Stores::default().with(share::HOME, map("default").build());
    assert_eq!(plan("default", stores()), "nothing to do\n");
    assert!(plan("reader", stores()).starts_with("1 create ConfigMap reader/shared "));
}

#[test]
fn what_is_somebody_elses_is_left_alone_and_that_is_said() {
    let stores = Stores::default().with(share::HOME, map("default").build());
    let stores = stores.with(share::HOME, map("reader").build());
    assert_eq!(plan("reader", stores), "wait NameTaken: somebody else has a ConfigMap of that name\n");
}
