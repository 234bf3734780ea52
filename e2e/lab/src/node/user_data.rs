//! The user data with which a VM joins a cluster.

/// User data for the MachineClass of real VMs: a cloud-config with the address of the API server, the certificate of its
/// authority as PEM, and a placeholder that Nodewright replaces by the VM's bootstrap token. `settings` are further lines of
/// the kubelet's configuration, such as `nodeLeaseDurationSeconds: 8`.
pub fn user_data(server: &str, authority: &str, settings: &[&str]) -> String {
    let indented = |lines: &mut dyn Iterator<Item = &str>| lines.collect::<Vec<_>>().join("\n    ");
    include_str!("user_data.yaml")
        .replace("{server}", server)
        .replace("{authority}", &indented(&mut authority.trim_end().lines()))
        .replace("{settings}", &indented(&mut settings.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::guest::cloud_config::CloudConfig;

    #[test]
    fn a_vm_can_read_it() {
        let text = user_data("https://10.64.0.254:6443", "-----BEGIN\nabc\n-----END\n", &["maxPods: 7"]);
        let config = CloudConfig::parse(&text).unwrap();
        let content = |path: &str| {
            let file = config.write_files.iter().find(|file| file.path == path).unwrap();
            file.content.clone()
        };
        assert_eq!(content("/etc/kubernetes/ca.crt"), "-----BEGIN\nabc\n-----END\n");
        assert!(content("/etc/kubernetes/kubelet.yaml").ends_with("maxPods: 7\n"));
        assert!(content("/etc/kubernetes/bootstrap-kubeconfig").contains("server: https://10.64.0.254:6443\n"));
    }
}
