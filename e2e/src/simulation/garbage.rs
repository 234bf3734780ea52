//! Owner garbage collection, as far as machines and sets need it: what has owners, and none of them is left, is deleted.
//!
//! The collector of a real cluster asks the API server for each owner before it deletes; this one looks at what there is
//! in one moment, which comes to the same.

use std::{collections::BTreeSet, time::Duration};

use kube::Client;
use nodewright_runtime::testing::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::cluster::{DEPLOYMENTS, MACHINES, SETS};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Collects until it is dropped.
pub(super) async fn collect(server: ApiServer, client: Client) {
    let mut seen = 0;
    loop {
        sleep(PERIOD).await;
        if server.version() == seen {
            continue;
        }
        seen = server.version();
        for (path, uid) in garbage(&server) {
            let body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
            let request = http::Request::delete(path).header("content-type", "application/json");
            if let Ok(request) = request.body(body.to_string().into_bytes()) {
                // Refused or lost: it is still there at the next look.
                drop(client.request::<Value>(request).await);
            }
        }
    }
}

/// Paths and UIDs of what is to be deleted.
fn garbage(server: &ApiServer) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let owners = [DEPLOYMENTS, SETS].into_iter().flat_map(|collection| server.objects(collection));
    let owners: BTreeSet<String> = owners.map(|owner| text(&owner["metadata"]["uid"])).collect();
    let mut found = vec![];
    for collection in [SETS, MACHINES] {
        for object in server.objects(collection) {
            let metadata = &object["metadata"];
            let references = metadata["ownerReferences"].as_array().filter(|references| !references.is_empty());
            let is_orphan = references
                .is_some_and(|references| references.iter().all(|owner| !owners.contains(&text(&owner["uid"]))));
            if is_orphan && metadata["deletionTimestamp"].is_null() {
                found.push((format!("{collection}/{}", text(&metadata["name"])), text(&metadata["uid"])));
            }
        }
    }
    found
}
