//! `NoSchedule` taints, updated as soon as a Node requires others than it has.

use std::sync::Arc;

use super::{Shared, taints};

/// Updates the taints from the conditions each time a Node changes.
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
            // Failures are retried; the real controller waits for the next change of the Node, or its resync.
            () = tokio::time::sleep(shared.settings.monitor_period) => {}
        }
    }
}
