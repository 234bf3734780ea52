//! What asks a command to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Two ways to end: asked once, and asked again.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    /// In order.
    pub(super) gracefully: CancellationToken,
    /// Without waiting for anybody.
    pub(super) at_once: CancellationToken,
}

impl Ends {
    /// Listens to SIGINT, SIGTERM and SIGHUP from now on.
    pub(super) fn listen() -> io::Result<Self> {
        let ends = Self::default();
        let (mut interrupt, mut terminate, mut hangup) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        let told = ends.clone();
        tokio::spawn(async move {
            for token in [told.gracefully, told.at_once] {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(ends)
    }
}
