//! The part of cloud-init's `#cloud-config` that a VM understands: `write_files`.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use serde::Deserialize;

use crate::node::NodeError;

const HEADER: &str = "#cloud-config";

/// A cloud-config. Other fields than `write_files` are ignored.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct CloudConfig {
    pub(crate) write_files: Vec<WriteFile>,
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct WriteFile {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) content: String,
    /// In octal digits.
    #[serde(default = "usual")]
    permissions: String,
}

fn usual() -> String {
    "0644".to_owned()
}

impl CloudConfig {
    pub(crate) fn parse(text: &str) -> Result<Self, NodeError> {
        if text.lines().next().map(str::trim_end) != Some(HEADER) {
            return Err(NodeError::UserData(format!("its first line is not {HEADER}")));
        }
        serde_saphyr::from_str(text).map_err(|error| NodeError::UserData(error.to_string()))
    }

    pub(crate) fn apply(&self) -> Result<(), NodeError> {
        for file in &self.write_files {
            file.write().map_err(NodeError::file("write", &file.path))?;
        }
        Ok(())
    }
}

impl WriteFile {
    fn write(&self) -> io::Result<()> {
        let path = Path::new(&self.path);
        let mode = u32::from_str_radix(&self.permissions, 8).map_err(io::Error::other)?;
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, &self.content)?;
        fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_with_their_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let text = format!(
            "#cloud-config\nhostname: x\nwrite_files:\n- path: {}\n  permissions: \"0600\"\n  content: |\n    hello\n",
            path.display()
        );
        CloudConfig::parse(&text).unwrap().apply().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn other_user_data_is_refused() {
        assert!(CloudConfig::parse("#!/bin/sh\n").unwrap_err().to_string().contains("#cloud-config"));
        assert!(CloudConfig::parse("").is_err());
        assert_eq!(CloudConfig::parse("#cloud-config\nhostname: demo\n").unwrap(), CloudConfig::default());
    }
}
