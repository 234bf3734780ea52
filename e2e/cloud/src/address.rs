//! The addresses of nodes and pods. Each network is alone in its namespace, so that all networks have the same.

use std::net::Ipv4Addr;

/// The address of the bridge: the nodes' gateway. The API server is reached there.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 254);
/// The length of the prefix of the nodes' network, 10.64.0.0/10.
pub const NODE_PREFIX: u8 = 10;
/// The network of all pods.
pub const PODS: &str = "10.128.0.0/9";

/// The address of the VM with this number. Four million numbers have different ones.
pub fn node_address(number: u64) -> Ipv4Addr {
    // Never ends with .0 or .255, which some parsers take for networks, nor with .254 like the gateway.
    let (high, low) = ((number / 250) % 16_384, number % 250 + 1);
    Ipv4Addr::new(10, 64 + byte(high / 256), byte(high), byte(low))
}

/// The network of the pods on the VM with this number, 256 addresses. 32,768 numbers have different ones.
pub fn pod_subnet(number: u64) -> String {
    format!("10.{}.{}.0/24", 128 + byte((number / 256) % 128), byte(number))
}

/// The lowest eight bits.
fn byte(number: u64) -> u8 {
    u8::try_from(number % 256).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_differ_and_stay_within_their_networks() {
        let nodes: BTreeSet<_> = (0..100_000).map(node_address).collect();
        assert_eq!(nodes.len(), 100_000);
        assert!(nodes.iter().all(|address| (64..128).contains(&address.octets()[1]) && *address != GATEWAY));
        let pods: BTreeSet<_> = (0..32_768).map(pod_subnet).collect();
        assert_eq!(pods.len(), 32_768);
        assert_eq!(
            (node_address(1).to_string(), pod_subnet(257)),
            ("10.64.0.2".to_owned(), "10.129.1.0/24".to_owned())
        );
    }
}
