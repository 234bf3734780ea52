//! The process in the network namespace of the nodes: sets the network up, and leads connections out and in.

use std::{fs, io, path::Path};

use nodewright_e2e_cloud::address::{GATEWAY, NODE_PREFIX};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use crate::node::{
    NodeError,
    command::run_with,
    network::{api_socket, egress_socket},
};

/// The bridge that all nodes are connected to.
pub(crate) const BRIDGE: &str = "nodes";
/// The address of the bridge on its link. Without one of its own, it would take that of a port: when that port's VM ended, all
/// others would look for their gateway at an address that is gone.
const BRIDGE_LINK_ADDRESS: &str = "02:00:00:00:00:fe";
/// The longest head of a request to the proxy, in bytes.
const HEAD_LIMIT: usize = 8 << 10;

/// Serves until the process is killed. This process is alone in a new network namespace.
pub async fn run(directory: &Path, port: u16) -> Result<(), NodeError> {
    let links = format!(
        "link set lo up\nlink add {BRIDGE} address {BRIDGE_LINK_ADDRESS} type bridge\naddress add {GATEWAY}/{NODE_PREFIX} dev {BRIDGE}\n\
         link set {BRIDGE} up\n"
    );
    run_with("ip", ["-batch", "-"], &links)?;
    let forwarding = "/proc/sys/net/ipv4/ip_forward";
    fs::write(forwarding, "1").map_err(NodeError::file("write", forwarding))?;
    let nodes = TcpListener::bind((GATEWAY, port)).await.map_err(NodeError::file("listen on", GATEWAY.to_string()))?;
    let socket = egress_socket(directory)?;
    let proxy = UnixListener::bind(&socket).map_err(NodeError::file("listen on", socket))?;
    let api = api_socket(directory)?;
    loop {
        let accepted = tokio::select! {
            accepted = nodes.accept() => accepted.map(|(node, _)| {
                let api = api.clone();
                drop(tokio::spawn(async move { lead_out(node, &api).await }));
            }),
            accepted = proxy.accept() => accepted.map(|(api_server, _)| drop(tokio::spawn(lead_in(api_server)))),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "failed to accept a connection");
        }
    }
}

/// Leads a connection of a node or a pod to the API server.
async fn lead_out(mut node: TcpStream, api: &Path) {
    drop(node.set_nodelay(true));
    if let Ok(mut api_server) = UnixStream::connect(api).await {
        drop(copy_bidirectional(&mut node, &mut api_server).await);
    }
}

/// Leads a connection of the API server to a node or a pod.
async fn lead_in(mut api_server: UnixStream) {
    let connected = match target(&mut api_server).await {
        Ok(target) => TcpStream::connect(target).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(mut to) => {
            drop(to.set_nodelay(true));
            if api_server.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok() {
                drop(copy_bidirectional(&mut api_server, &mut to).await);
            }
        }
        Err(error) => {
            let text = error.to_string();
            let answer = format!("HTTP/1.1 502 Bad Gateway\r\nContent-Length: {}\r\n\r\n{text}", text.len());
            drop(api_server.write_all(answer.as_bytes()).await);
        }
    }
}

/// Reads the head of a request, and returns the address that it asks for.
async fn target(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_LIMIT {
            return Err(io::Error::other("the head of the request is too long"));
        }
        // The client waits for the answer: nothing follows the head.
        head.push(from.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let words: Vec<_> = head.lines().next().unwrap_or_default().split(' ').collect();
    match words.as_slice() {
        ["CONNECT", target, _] => Ok((*target).to_owned()),
        _ => Err(io::Error::other("only CONNECT is understood")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_target_is_read_and_nothing_behind_it() {
        let mut request: &[u8] = b"CONNECT 10.64.0.2:10250 HTTP/1.1\r\nHost: 10.64.0.2\r\n\r\nmore";
        assert_eq!(target(&mut request).await.unwrap(), "10.64.0.2:10250");
        assert_eq!(request, b"more");
        assert!(target(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).await.is_err());
        assert!(target(&mut &b"CONNECT a:1"[..]).await.is_err());
    }
}
