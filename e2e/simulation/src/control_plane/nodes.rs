//! `NoSchedule` taints: as soon as a Node asks for others than it has.

use std::sync::Arc;

use super::{Shared, taints};

/// Brings taints in line with conditions, whenever a Node changes.
pub(super) async fn run(shared: Arc<Shared>) {
    shared.view.is_listed().await;
    let mut news = shared.view.nodes.changes();
    loop {
        news.mark_unchanged();
        for node in shared.view.nodes.all() {
            let (swap, name) = (taints::by_condition(&node), node.metadata.name.as_deref().unwrap_or_default());
            if swap.is_empty() {
                continue;
            }
            if let Err(error) = shared.swap_taints(name, &swap).await {
                tracing::debug!(node = name, %error, "a node's taints cannot be changed");
            }
        }
        tokio::select! {
            biased;
            changed = news.changed() => if changed.is_err() { return },
            // What failed is tried again; the real controller waits for the Node's next change, or its resync.
            () = tokio::time::sleep(shared.settings.monitor_period) => {}
        }
    }
}
