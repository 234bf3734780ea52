//! Limits for clients.

use std::time::Duration;

/// Limits for the clients of a port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections may be open at once.
    pub connections: usize,
    /// How long the handshake and the head of the first request may take together.
    pub first_request: Duration,
    /// How long a connection may stay open without a further request.
    pub idle: Duration,
    /// How long the head of a further request may take, from its first byte.
    pub head: Duration,
    /// Limit of a head, in bytes.
    pub head_size: usize,
    /// How long a client may take to read an answer.
    pub answer: Duration,
    /// How long a connection may last, if limited. The client can then open another one.
    pub lifetime: Option<Duration>,
    /// How long requests in progress may take when the server stops, or when a connection has reached its lifetime.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            first_request: Duration::from_secs(10),
            idle: Duration::from_secs(90),
            head: Duration::from_secs(5),
            head_size: 16 << 10,
            answer: Duration::from_secs(30),
            lifetime: Some(Duration::from_mins(10)),
            end: Duration::from_secs(1),
        }
    }
}
