//! How user data reach a machine: as files that are in its container before it starts.

use nodewright_api::Code;
use nodewright_driver::{DriverError, Result};
use tar::{Builder, EntryType, Header};

const SCRIPT: &str = "kind/user-data";
const UNIT: &str = "etc/systemd/system/user-data.service";
const WANTED: &str = "etc/systemd/system/multi-user.target.wants/user-data.service";

/// Runs the user data at each start until they have succeeded once, as cloud-init does at the first boot.
const UNIT_TEXT: &str = "\
[Unit]
Description=User data of this machine
After=containerd.service network-online.target
ConditionPathExists=!/kind/user-data.done
[Service]
Type=oneshot
ExecStart=/kind/user-data
ExecStartPost=/bin/touch /kind/user-data.done
StandardOutput=journal+console
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
";

/// An archive for the root directory of a node's container: the user data, which are an executable file, and the systemd unit
/// that runs them.
pub(super) fn archive(user_data: &str) -> Result<Vec<u8>> {
    let pack = || {
        let mut archive = Builder::new(Vec::new());
        archive.append_data(&mut header(0o700, user_data.len()), SCRIPT, user_data.as_bytes())?;
        archive.append_data(&mut header(0o644, UNIT_TEXT.len()), UNIT, UNIT_TEXT.as_bytes())?;
        let mut link = header(0o777, 0);
        link.set_entry_type(EntryType::Symlink);
        archive.append_link(&mut link, WANTED, format!("/{UNIT}"))?;
        archive.into_inner()
    };
    pack().map_err(|error: std::io::Error| {
        DriverError::new(Code::Internal, format!("failed to pack the user data: {error}"))
    })
}

fn header(mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_archive_has_the_script_the_unit_and_its_link() {
        let bytes = archive("#!/bin/sh\ntrue\n").unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = vec![];
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            found.push((entry.path().unwrap().display().to_string(), entry.header().mode().unwrap(), text, link));
        }
        assert_eq!(found[0], (SCRIPT.to_owned(), 0o700, "#!/bin/sh\ntrue\n".to_owned(), None));
        assert_eq!(found[1], (UNIT.to_owned(), 0o644, UNIT_TEXT.to_owned(), None));
        assert_eq!(found[2], (WANTED.to_owned(), 0o777, String::new(), Some(format!("/{UNIT}"))));
    }
}
