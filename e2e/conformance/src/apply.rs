//! Server-side apply.

use serde_json::{Value, json};

use super::{
    objects::{KINDS, Kind, WRONG_UID, held, with, without},
    probe::{OURS, Probe, Request, THEIRS},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

/// The object's type and this metadata, and nothing else.
fn bare(object: &Value, metadata: Value) -> Value {
    with(json!({"apiVersion": object["apiVersion"], "kind": object["kind"]}), "/metadata", metadata)
}

/// The smallest object that the schema accepts.
fn least(object: &Value) -> Value {
    let bare = bare(object, json!({"name": "a"}));
    if object["kind"] == "Machine" { with(bare, "/spec/class/kind", "MachineClass") } else { bare }
}

pub(super) async fn alone(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (path, object) = (probe.path(kind, "a"), probe.object(kind, "a"));
        let born = probe.ask("an apply of what is not there", Request::apply(&path, OURS, &object)).await?;
        probe.ask("the same again", Request::apply(&path, OURS, &object)).await?;
        let more = with(object.clone(), "/metadata/annotations/a", "b");
        probe.ask("more", Request::apply(&path, OURS, &more)).await?;
        probe.ask("less", Request::apply(&path, OURS, &object)).await?;
        let changed = with(object.clone(), "/metadata/labels/first", "2");
        probe.ask("something else", Request::apply(&path, OURS, &changed)).await?;
        let with_uid = with(changed.clone(), "/metadata/uid", born.uid());
        probe.ask("under its UID", Request::apply(&path, OURS, &with_uid)).await?;
        let wrong = with(changed.clone(), "/metadata/uid", WRONG_UID);
        probe.ask("under another UID", Request::apply(&path, OURS, &wrong)).await?;
        let stale = with(changed, "/metadata/resourceVersion", born.version());
        probe.ask("under an old version", Request::apply(&path, OURS, &stale)).await?;
        probe.ask("almost nothing", Request::apply(&path, OURS, &least(&object))).await?;
        probe.ask("all again", Request::apply(&path, OURS, &object)).await?;
        let late = with(probe.object(kind, "b"), "/metadata/uid", WRONG_UID);
        probe.ask("under a UID to nothing", Request::apply(probe.path(kind, "b"), OURS, &late)).await?;
    }
    Ok(())
}

/// The required content of an apply.
pub(super) async fn bodies(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (path, object) = (probe.path(kind, "a"), probe.object(kind, "a"));
        for (what, body) in [
            ("with managedFields", with(object.clone(), "/metadata/managedFields", json!([]))),
            ("without a kind", without(object.clone(), "", "kind")),
            ("without a version", without(object.clone(), "", "apiVersion")),
            ("of another kind", with(object.clone(), "/kind", "Other")),
            ("of another version", with(object.clone(), "/apiVersion", "v7")),
            ("with another name", with(object.clone(), "/metadata/name", "b")),
            ("with another namespace", with(object.clone(), "/metadata/namespace", "elsewhere")),
            ("without a name", without(object.clone(), "/metadata", "name")),
            ("with a field that is not declared", with(object.clone(), "/spec/unknown", 1)),
            ("with a wrong label", with(object.clone(), "/metadata/labels/first", "no label!")),
        ] {
            probe.ask(&format!("an apply {what}"), Request::apply(&path, OURS, &body)).await?;
        }
        let nobody = Request::apply(&path, "", &object);
        probe.ask("an apply by nobody", nobody).await?;
        // The message comes from Go's YAML decoder.
        let nonsense = Request::apply(&path, OURS, &object).raw("application/apply-patch+yaml", "{");
        let said = probe.silently(&nonsense).await?;
        probe.note("an apply that is no YAML", &json!({"code": said.code, "reason": said.body["reason"]}));
    }
    Ok(())
}

/// Two appliers of one object.
pub(super) async fn together(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (path, object) = (probe.path(kind, "a"), probe.object(kind, "a"));
        probe.ask("a first", Request::apply(&path, OURS, &object)).await?;
        probe.ask("the same by another", Request::apply(&path, THEIRS, &object)).await?;
        let mine = with(bare(&object, json!({"name": "a"})), "/metadata/labels/mine", "1");
        probe.ask("the first says less", Request::apply(&path, OURS, &mine)).await?;
        let yours = with(object.clone(), "/metadata/labels/mine", "2");
        probe.ask("the other wants what is mine", Request::apply(&path, THEIRS, &yours)).await?;
        let two = with(yours.clone(), "/metadata/annotations/x", "y");
        probe.quietly(&Request::apply(&path, OURS, &with(mine.clone(), "/metadata/annotations/x", "z"))).await?;
        probe.ask("the other wants two things that are mine", Request::apply(&path, THEIRS, &two)).await?;
        probe.ask("the other takes them", Request::force(&path, THEIRS, &two)).await?;
        probe.ask("the first wants them back", Request::apply(&path, OURS, &mine)).await?;
        probe.ask("the first lets them go", Request::apply(&path, OURS, &bare(&object, json!({"name": "a"})))).await?;
        probe.ask("the other lets them go", Request::apply(&path, THEIRS, &least(&object))).await?;
    }
    Ok(())
}

/// Applies mixed with other writes.
pub(super) async fn among_updates(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (all, path, object) = (probe.all(kind), probe.path(kind, "a"), probe.object(kind, "a"));
        let posted = format!("{all}?fieldManager={OURS}");
        probe.ask("a create by the name of the one who applies", Request::post(posted, &object)).await?;
        let less = bare(&object, json!({"name": "a"}));
        probe.ask("an apply that leaves it out", Request::apply(&path, OURS, &less)).await?;
        let changed = with(object.clone(), "/metadata/labels/first", "2");
        probe.ask("an apply that changes it", Request::apply(&path, OURS, &changed)).await?;
        probe.ask("a forced apply that changes it", Request::force(&path, OURS, &changed)).await?;
        let change = json!({"metadata": {"labels": {"first": "3"}}});
        let merge = Request::merge(&path, &change).query(&format!("fieldManager={THEIRS}"));
        probe.ask("a patch of what was applied", merge).await?;
        probe.ask("an apply that leaves out what was patched", Request::apply(&path, OURS, &less)).await?;
        probe.ask("an apply by one without a past", Request::apply(&path, "newcomer", &object)).await?;
        let live = probe.quietly(&Request::get(&path)).await?.body;
        let put = with(live, "/metadata/labels/second", "2");
        probe.ask("an update beside", Request::put(format!("{path}?fieldManager={THEIRS}"), &put)).await?;
        let taken = with(object, "/metadata/labels/second", "3");
        probe.ask("an apply over the update", Request::apply(&path, OURS, &taken)).await?;
    }
    Ok(())
}

/// The API server drops managedFields in some cases.
pub(super) async fn untracked(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (path, object) = (probe.path(kind, "a"), probe.object(kind, "a"));
        probe.quietly(&Request::apply(&path, OURS, &object)).await?;
        probe.ask("dropped owners", Request::merge(&path, &json!({"metadata": {"managedFields": [{}]}}))).await?;
        let less = bare(&object, json!({"name": "a"}));
        probe.ask("an apply that leaves out what is nobody's", Request::apply(&path, OURS, &less)).await?;
        let changed = with(object.clone(), "/metadata/labels/first", "2");
        probe.ask("an apply that changes what is nobody's", Request::apply(&path, OURS, &changed)).await?;
        probe.ask("a forced one", Request::force(&path, OURS, &changed)).await?;
        probe.ask("dropped again", Request::merge(&path, &json!({"metadata": {"managedFields": []}}))).await?;
        probe
            .ask("a patch of what is nobody's", Request::merge(&path, &json!({"metadata": {"labels": {"x": "y"}}})))
            .await?;
        probe.ask("the same apply again", Request::force(&path, OURS, &changed)).await?;
    }
    Ok(())
}

/// Lists and maps that are merged, and those that are replaced as a whole.
pub(super) async fn lists(probe: &mut Probe) -> TestResult {
    for kind in KINDS {
        let (path, object) = (probe.path(kind, "a"), probe.object(kind, "a"));
        probe.ask("with a finalizer", Request::apply(&path, OURS, &held(object.clone()))).await?;
        let theirs = with(bare(&object, json!({"name": "a"})), "/metadata/finalizers", json!(["a.b/theirs"]));
        probe.ask("another with another finalizer", Request::apply(&path, THEIRS, &theirs)).await?;
        probe.ask("without the finalizer", Request::apply(&path, OURS, &object)).await?;
        let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
        let one = with(object.clone(), "/metadata/ownerReferences", json!([owner("1", "x")]));
        probe.ask("with an owner", Request::apply(&path, OURS, &one)).await?;
        let two = with(bare(&object, json!({"name": "a"})), "/metadata/ownerReferences", json!([owner("2", "y")]));
        probe.ask("another with another owner", Request::apply(&path, THEIRS, &two)).await?;
        let renamed = with(object.clone(), "/metadata/ownerReferences", json!([owner("2", "z")]));
        probe.ask("the other's owner under another name", Request::apply(&path, OURS, &renamed)).await?;
        probe.ask("without an owner", Request::apply(&path, OURS, &object)).await?;
    }
    let (path, node) = (probe.path(Kind::Node, "a"), probe.object(Kind::Node, "a"));
    let taint = |key: &str| json!([{"key": key, "effect": "NoSchedule"}]);
    probe
        .ask("a Node with a taint", Request::apply(&path, OURS, &with(node.clone(), "/spec/taints", taint("a"))))
        .await?;
    let theirs = with(bare(&node, json!({"name": probe.name(Kind::Node, "a")})), "/spec/taints", taint("b"));
    probe.ask("another taint", Request::apply(&path, THEIRS, &theirs)).await?;
    probe.ask("another taint by force", Request::force(&path, THEIRS, &theirs)).await?;
    let (path, set) = (probe.path(Kind::MachineSet, "a"), probe.object(Kind::MachineSet, "a"));
    probe.ask("a set", Request::apply(&path, OURS, &set)).await?;
    let scaled = json!({"apiVersion": set["apiVersion"], "kind": "MachineSet", "metadata": {"name": "a"},
        "spec": {"replicas": 5}});
    probe.ask("another who scales it", Request::apply(&path, THEIRS, &scaled)).await?;
    probe.ask("another who scales it by force", Request::force(&path, THEIRS, &scaled)).await?;
    probe.ask("the set without a number", Request::apply(&path, OURS, &without(set, "/spec", "replicas"))).await?;
    Ok(())
}
