//! Free ports.

use std::net::{Ipv4Addr, TcpListener};

use crate::process::ProcessError;

/// The range of ports that are tried. It lies below the kernel's range for outgoing connections (32768 and up on Linux):
/// otherwise a client's connection could take the port of a server that is stopped for a while.
const FIRST: u16 = 16_000;
const LAST: u16 = 31_999;
/// How many random ports are tried.
const ATTEMPTS: usize = 1_000;

/// Finds `N` different free ports of the loopback address.
///
/// Another process may take a port before the caller listens on it. See [`ProcessError::is_port_clash`].
pub fn free_ports<const N: usize>() -> Result<[u16; N], ProcessError> {
    let mut found = [0; N];
    // The listeners stay open until all ports are found, so that no port is found twice.
    let mut listeners = Vec::with_capacity(N);
    for slot in &mut found {
        let (port, listener) = (0..ATTEMPTS)
            .find_map(|_| {
                let port = fastrand::u16(FIRST..=LAST);
                TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener))
            })
            .ok_or(ProcessError::NoPort { first: FIRST, last: LAST })?;
        *slot = port;
        listeners.push(listener);
    }
    Ok(found)
}
