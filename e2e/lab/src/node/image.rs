//! Container images without a registry: an archive in the format of OCI, which containerd imports.

use std::{
    fmt::Write,
    fs::{self, File},
    io,
    path::Path,
};

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::node::{NodeError, command::run, requirements};

/// The image that holds the namespaces of a pod.
pub(crate) const PAUSE: &str = "nodewright.dev/pause:local";
/// An image with a shell and the usual commands: busybox.
pub const BUSYBOX: &str = "nodewright.dev/busybox:local";

/// Writes an archive with both images. `pause` is the path of the pause program.
pub(crate) fn write_archive(path: &Path, pause: &Path) -> Result<(), NodeError> {
    let busybox = requirements::find("busybox").ok_or_else(|| NodeError::Missing("busybox is missing".to_owned()))?;
    let names = run("busybox", ["--list"])?;
    let write = || -> io::Result<()> {
        let mut archive = Archive::create(path)?;
        archive.image(PAUSE, &["/pause"], &pause_layer(pause)?)?;
        archive.image(BUSYBOX, &["/bin/sh"], &busybox_layer(&busybox, &names)?)?;
        archive.finish()
    };
    write().map_err(NodeError::file("write the images", path))
}

fn pause_layer(pause: &Path) -> io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    add(&mut layer, "pause", EntryType::Regular, 0o755, &fs::read(pause)?)?;
    layer.into_inner()
}

fn busybox_layer(busybox: &Path, names: &str) -> io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for directory in ["bin/", "dev/", "etc/", "proc/", "sys/", "tmp/"] {
        add(&mut layer, directory, EntryType::Directory, 0o755, &[])?;
    }
    add(&mut layer, "bin/busybox", EntryType::Regular, 0o755, &fs::read(busybox)?)?;
    for name in names.lines().filter(|name| *name != "busybox") {
        layer.append_link(&mut header(EntryType::Symlink, 0o777, 0), format!("bin/{name}"), "busybox")?;
    }
    layer.into_inner()
}

/// An archive that grows image by image.
struct Archive {
    tar: Builder<File>,
    manifests: Vec<Value>,
}

impl Archive {
    fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { tar: Builder::new(File::create(path)?), manifests: Vec::new() })
    }

    /// Adds an image of one layer, an uncompressed tar.
    fn image(&mut self, name: &str, entrypoint: &[&str], layer: &[u8]) -> io::Result<()> {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        });
        let config = self.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let layer = self.blob("application/vnd.oci.image.layer.v1.tar", layer)?;
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [layer]});
        let mut manifest = self.blob(kind, manifest.to_string().as_bytes())?;
        manifest["annotations"] = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name});
        self.manifests.push(manifest);
        Ok(())
    }

    /// Adds a blob, and returns its descriptor.
    fn blob(&mut self, kind: &str, content: &[u8]) -> io::Result<Value> {
        let digest = digest(content);
        let path = format!("blobs/{}", digest.replace(':', "/"));
        add(&mut self.tar, &path, EntryType::Regular, 0o644, content)?;
        Ok(json!({"mediaType": kind, "digest": digest, "size": content.len()}))
    }

    fn finish(mut self) -> io::Result<()> {
        let index = json!({"schemaVersion": 2, "manifests": self.manifests}).to_string();
        add(&mut self.tar, "index.json", EntryType::Regular, 0o644, index.as_bytes())?;
        add(&mut self.tar, "oci-layout", EntryType::Regular, 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        self.tar.finish()
    }
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header
}

fn add(tar: &mut Builder<impl io::Write>, path: &str, kind: EntryType, mode: u32, content: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(kind, mode, content.len()), path, content)
}

fn digest(content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    digest.as_ref().iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read};

    use super::*;

    #[test]
    fn every_blob_has_its_digest_as_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("images.tar");
        let mut archive = Archive::create(&path).unwrap();
        archive.image("a:1", &["/a"], b"one").unwrap();
        archive.image("b:1", &["/b"], b"two").unwrap();
        archive.finish().unwrap();

        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(File::open(&path).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), content);
        }
        let blobs = files.iter().filter(|(path, _)| path.starts_with("blobs/"));
        assert_eq!(blobs.clone().count(), 6);
        for (path, content) in blobs {
            assert_eq!(path.replacen("blobs/sha256/", "sha256:", 1), digest(content));
        }
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        assert_eq!(index["manifests"][1]["annotations"]["io.containerd.image.name"], "b:1");
    }

    #[test]
    fn the_digest_is_sha256() {
        assert_eq!(digest(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
