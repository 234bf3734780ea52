//! Nodes of which both the VM and the machine are gone: a manager with the component `cloud-node` deletes them under an account of
//! their own, with the rights of `config/`.

use super::{
    Site,
    attacks::{check_rights, text, wait},
};
use crate::devcluster::machines::machines;

const NAMESPACE: &str = "team-a";
const ACCOUNT: &str = "system:serviceaccount:team-a:nodewright-node-lifecycle";
const FLAGS: [&str; 5] = [
    "--cloud-node=on",
    "--node-deletion-service-account=nodewright-node-lifecycle",
    "--node-deletion-grace=2s",
    "--node-deletion-after-start=1s",
    "--machine-safety-orphan-vms-period=2s",
];

/// Somebody deletes a VM and removes its machine by force. The node goes, and the audit log says as whom. An error is harm.
pub async fn lost_node() -> Result<String, String> {
    let site = Site::start().await.map_err(text)?;
    let overlay = site.write_overlay_with(NAMESPACE, &[], &["cloud-node"]).map_err(text)?;
    let _installation = site.install_with(&overlay, NAMESPACE, &FLAGS).await.map_err(text)?;
    site.make_machines(NAMESPACE, 3).await.map_err(text)?;
    let lost = machines(&site.plane().client(), NAMESPACE).await.map_err(text)?.swap_remove(0);
    let node = lost.node_name().unwrap_or_default().to_owned();
    let machine = lost.metadata.name.unwrap_or_default();
    site.delete_vm(&machine).await.map_err(text)?;
    let name = format!("machine/{machine}");
    let delete = ["delete", name.as_str(), "-n", NAMESPACE, "--wait=false"];
    site.plane().kubectl(delete).await.map_err(text)?;
    let release =
        ["patch", name.as_str(), "-n", NAMESPACE, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#];
    site.plane().kubectl(release).await.map_err(text)?;
    let get = format!("node/{node}");
    let get = ["get", get.as_str(), "--ignore-not-found", "-o", "name"];
    wait("the end of the node", async || Ok(site.plane().kubectl(get).await.map_err(text)?.trim().is_empty())).await?;
    let users = deleted_by(&site, &node).await?;
    if users != [ACCOUNT] {
        return Err(format!("node {node} was deleted as {users:?}"));
    }
    expect_rights(&site).await?;
    check_rights(&site, &[NAMESPACE])?;
    Ok(format!("node {node} of a lost machine was deleted as {ACCOUNT}"))
}

/// The account may do what a deletion needs, also after a lost answer, and no more.
async fn expect_rights(site: &Site) -> Result<(), String> {
    let as_account = format!("--as={ACCOUNT}");
    for (verb, resource, expected) in [
        ("get", "nodes", true),
        ("patch", "nodes", true),
        ("delete", "nodes", true),
        ("list", "nodes", false),
        ("get", "pods", false),
    ] {
        // kubectl fails if the answer is no.
        let may = site.plane().kubectl(["auth", "can-i", verb, resource, as_account.as_str()]).await.is_ok();
        if may != expected {
            return Err(format!("{ACCOUNT} may {verb} {resource}: {may}"));
        }
    }
    Ok(())
}

/// The users who have deleted a node, or as whom it was deleted, by the audit log.
async fn deleted_by(site: &Site, node: &str) -> Result<Vec<String>, String> {
    let log = tokio::fs::read_to_string(site.plane().audit_log()).await.map_err(|error| error.to_string())?;
    let entries = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let deletions = entries.filter(|entry| {
        let at = &entry["objectRef"];
        entry["verb"] == "delete"
            && at["resource"] == "nodes"
            && at["name"] == node
            && entry["stage"] == "ResponseComplete"
    });
    let user = |entry: serde_json::Value| {
        let user = [&entry["impersonatedUser"], &entry["user"]].into_iter().find_map(|user| user["username"].as_str());
        user.unwrap_or_default().to_owned()
    };
    Ok(deletions.map(user).collect())
}
