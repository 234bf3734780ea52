//! HTTP and HTTPS ports of a process: one bounded accept loop, and the endpoints that an operator expects.
//!
//! ```text
//! port ─► accept loop ─► TLS handshake, or none ─► requests ─► routes of the caller
//!         │ at most N connections;                               │ Endpoints: /healthz /livez /readyz
//!         │ an idle one gives way                                │            /metrics /debug/log-level
//! ```
//!
//! A [`Server`] is a port. An operator's has [`Endpoints`], with [`Checks`] and [`Authorization`].

mod accept;
mod authorization;
mod checks;
mod connection;
mod connection_state;
mod connections;
mod endpoints;
mod limits;
mod server;

#[cfg(test)]
mod tests;

pub use self::{
    authorization::Authorization,
    checks::Checks,
    endpoints::Endpoints,
    limits::Limits,
    server::{ListenError, Server, raise_open_files, tls_acceptor},
};
