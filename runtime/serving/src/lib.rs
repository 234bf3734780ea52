//! HTTP and HTTPS ports of a process: one bounded accept loop, and the endpoints that an operator expects.
//!
//! ```text
//! port ─► accept loop ─► handshake (TLS, or none) ─► requests ─► routes of the caller
//!         │ at most N connections;                               │ Endpoints: /healthz /livez /readyz
//!         │ an idle one gives way                                │            /metrics /debug/log-level
//! ```
//!
//! [`serve()`] is the accept loop. [`Server`] uses it for an operator's port, with [`Endpoints`], [`Checks`] and
//! [`Authorization`].

mod accept;
mod authorization;
mod checks;
mod connection;
mod endpoints;
mod files;
mod handshake;
mod limits;
mod places;
mod progress;
mod server;
mod text;

#[cfg(test)]
mod tests;

pub use self::{
    accept::serve,
    authorization::Authorization,
    checks::{Checks, Verdict},
    endpoints::Endpoints,
    files::raise_open_files,
    handshake::{Handshake, Peer, Plain, tls_acceptor},
    limits::Limits,
    server::{ListenError, Server},
};
