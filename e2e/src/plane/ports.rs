//! Ports that nobody listens on at the moment.

use std::net::{Ipv4Addr, TcpListener};

use super::PlaneError;

/// Below the range from which the kernel takes ports of outgoing connections (32768 and up on Linux): a server that is
/// stopped for a while would otherwise find one of its own clients on its port when it comes back.
const FIRST: u16 = 16_000;
const LAST: u16 = 31_999;
/// How many random ports are tried. So many are not taken on any machine on which one is left.
const ATTEMPTS: usize = 1_000;

/// `N` different free ports of the loopback address.
///
/// Somebody else may take one before we use it; the caller notices that when its server does not start.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N], PlaneError> {
    let mut found = [0; N];
    // Kept until all are found: a port on which we listen ourselves is not found twice.
    let mut listeners = Vec::with_capacity(N);
    for slot in &mut found {
        let listener = (0..ATTEMPTS)
            .find_map(|_| {
                let port = fastrand::u16(FIRST..=LAST);
                TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener))
            })
            .ok_or(PlaneError::NoPort { first: FIRST, last: LAST })?;
        *slot = listener.0;
        listeners.push(listener.1);
    }
    Ok(found)
}
