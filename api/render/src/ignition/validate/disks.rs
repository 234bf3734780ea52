//! Disks, partitions, RAID arrays, LUKS volumes and file systems.

use super::super::url;
use super::{Check, all, is_set};
use ignition_config::v3_5::{Clevis, ClevisCustom, Disk, Filesystem, Luks, Partition, Raid, Storage, Tang};
use nodewright_api::field::FieldPath;
use std::collections::BTreeSet;

impl Check {
    pub(super) fn disks(&mut self, storage: &Storage, at: &FieldPath) {
        for (index, disk) in all(storage.disks.as_ref()).iter().enumerate() {
            self.disk(disk, &at.child("disks").key(index));
        }
        for (index, raid) in all(storage.raid.as_ref()).iter().enumerate() {
            self.raid(raid, &at.child("raid").key(index));
        }
        for (index, luks) in all(storage.luks.as_ref()).iter().enumerate() {
            self.luks(luks, &at.child("luks").key(index));
        }
        for (index, filesystem) in all(storage.filesystems.as_ref()).iter().enumerate() {
            self.filesystem(filesystem, &at.child("filesystems").key(index));
        }
    }

    fn disk(&mut self, disk: &Disk, at: &FieldPath) {
        let partitions = all(disk.partitions.as_ref());
        for (index, partition) in partitions.iter().enumerate() {
            self.partition(partition, &at.child("partitions").key(index));
        }
        if disk.device.is_empty() {
            self.invalid(at.child("device"), "", "must not be empty");
            return;
        }
        self.path(&disk.device, &at.child("device"));
        let at = at.child("partitions");
        self.numbers_and_labels(partitions, &at);
        if let Some(index) = overlapping(partitions) {
            self.invalid(at.key(index), partitions[index].start_mib, "must not overlap another partition");
        }
        let has_zero = partitions.iter().any(|partition| partition.number.unwrap_or_default() == 0);
        if has_zero && partitions.iter().any(|partition| partition.should_exist == Some(false)) {
            let rule = "must have a number each, as one of them should not exist";
            self.invalid(at, partitions.len(), rule);
        }
    }

    fn numbers_and_labels(&mut self, partitions: &[Partition], at: &FieldPath) {
        let (mut numbers, mut labels) = (BTreeSet::new(), BTreeSet::new());
        for (index, partition) in partitions.iter().enumerate() {
            if let Some(number) = partition.number.filter(|number| *number != 0 && !numbers.insert(*number)) {
                self.invalid(at.key(index), number, "must not have the number of another partition");
            }
            if let Some(label) = partition.label.as_deref().filter(|label| !labels.insert(*label)) {
                self.invalid(at.key(index), label, "must not have the label of another partition");
            }
        }
    }

    fn partition(&mut self, partition: &Partition, at: &FieldPath) {
        let is_described = partition.label.is_some()
            || is_set(partition.type_guid.as_ref())
            || is_set(partition.guid.as_ref())
            || partition.start_mib.is_some()
            || partition.size_mib.is_some();
        if partition.should_exist == Some(false) && is_described {
            self.invalid(at.clone(), false, "must have nothing but a number where shouldExist is false");
        }
        if partition.number.unwrap_or_default() == 0 && partition.label.is_none() {
            self.invalid(at.clone(), 0, "must have a number above 0, or a label");
        }
        if let Some(label) = partition.label.as_deref() {
            if label.len() > 36 {
                self.invalid(at.child("label"), label, "must have at most 36 bytes");
            } else if label.contains(':') {
                self.invalid(at.child("label"), label, "must not have a colon");
            }
        }
        for (field, guid) in [("guid", &partition.guid), ("typeGuid", &partition.type_guid)] {
            if let Some(guid) = guid.as_deref().filter(|guid| !is_guid(guid)) {
                self.invalid(at.child(field), guid, "must be like 01234567-89AB-CDEF-EDCB-A98765432101");
            }
        }
    }

    fn raid(&mut self, raid: &Raid, at: &FieldPath) {
        let level = raid.level.as_deref().unwrap_or_default();
        let rule = match level {
            "linear" | "raid0" | "0" | "stripe" if raid.spares.unwrap_or_default() != 0 => {
                Some("must be another one for spares")
            }
            "linear" | "raid0" | "0" | "stripe" | "raid1" | "1" | "mirror" | "raid4" | "4" | "raid5" | "5"
            | "raid6" | "6" | "raid10" | "10" => None,
            "" => Some("must not be empty"),
            _ => Some("must be one of linear, raid0, raid1, raid4, raid5, raid6, raid10"),
        };
        if let Some(rule) = rule {
            self.invalid(at.child("level"), level, rule);
        }
        let devices = all(raid.devices.as_ref());
        if devices.is_empty() {
            self.invalid(at.child("devices"), 0, "must have at least one device");
        }
        for (index, device) in devices.iter().enumerate() {
            self.path(device, &at.child("devices").key(index));
        }
    }

    fn luks(&mut self, luks: &Luks, at: &FieldPath) {
        if luks.name.contains('/') {
            self.invalid(at.child("name"), luks.name.as_str(), "must not have a slash");
        }
        if let Some(label) = luks.label.as_deref().filter(|label| label.len() > 47) {
            self.invalid(at.child("label"), label, "must have at most 47 bytes");
        }
        match luks.device.as_deref().unwrap_or_default() {
            "" => self.invalid(at.child("device"), "", "must not be empty"),
            device => self.path(device, &at.child("device")),
        }
        let has_key_file = self.key_file(luks.key_file.as_ref(), &at.child("keyFile"));
        if let Some(clevis) = &luks.clevis {
            self.clevis(clevis, &at.child("clevis"));
        }
        if luks.cex.as_ref().is_some_and(|cex| cex.enabled == Some(true)) {
            if luks.clevis.as_ref().is_some_and(is_used) {
                self.invalid(at.child("cex"), true, "must not be enabled with clevis");
            }
            if has_key_file {
                self.invalid(at.child("cex"), true, "must not be enabled with a key file");
            }
        }
    }

    fn clevis(&mut self, clevis: &Clevis, at: &FieldPath) {
        // In 3.2, a custom configuration counted as soon as it was there.
        let is_custom = |custom: &ClevisCustom| self.minor == 2 || is_set(custom.pin.as_ref());
        if clevis.custom.as_ref().is_some_and(is_custom) && has_own_pins(clevis) {
            self.invalid(at.clone(), "custom", "must not have custom with tpm2, tang or threshold");
        }
        if let Some(custom) = &clevis.custom {
            self.custom(custom, &at.child("custom"));
        }
        for (index, tang) in all(clevis.tang.as_ref()).iter().enumerate() {
            self.tang(tang, &at.child("tang").key(index));
        }
    }

    fn custom(&mut self, custom: &ClevisCustom, at: &FieldPath) {
        let (pin, config) = (is_set(custom.pin.as_ref()), is_set(custom.config.as_ref()));
        let needs_network = self.minor >= 3 && custom.needs_network == Some(true);
        if !pin && !config && !needs_network {
            return;
        }
        let name = custom.pin.as_deref().unwrap_or_default();
        if !matches!(name, "tpm2" | "tang" | "sss") {
            self.invalid(at.child("pin"), name, "must be one of tpm2, tang, sss");
        }
        if !config {
            self.invalid(at.child("config"), "", "must not be empty");
        }
    }

    fn tang(&mut self, tang: &Tang, at: &FieldPath) {
        let url = tang.url.as_deref().unwrap_or_default();
        if !url::parse(url).is_some_and(|url| matches!(url.scheme.as_str(), "http" | "https")) {
            self.confidential(at.child("url"), url, "must be a URL with the scheme http or https");
        }
        if !is_set(tang.thumbprint.as_ref()) {
            self.invalid(at.child("thumbprint"), "", "must not be empty");
        }
        let is_json = |text: &str| serde_json::from_str::<serde_json::Value>(text).is_ok();
        if let Some(text) = tang.advertisement.as_deref().filter(|text| !text.is_empty() && !is_json(text)) {
            self.confidential(at.child("advertisement"), text, "must be JSON");
        }
    }

    fn filesystem(&mut self, filesystem: &Filesystem, at: &FieldPath) {
        if let Some(path) = filesystem.path.as_deref().filter(|path| !path.is_empty()) {
            self.path(path, &at.child("path"));
        }
        self.path(&filesystem.device, &at.child("device"));
        let format = filesystem.format.as_deref().unwrap_or_default();
        let label = filesystem.label.as_deref().unwrap_or_default();
        let needs_format = is_set(filesystem.path.as_ref())
            || !label.is_empty()
            || is_set(filesystem.uuid.as_ref())
            || filesystem.wipe_filesystem == Some(true)
            || !all(filesystem.mount_options.as_ref()).is_empty()
            || !all(filesystem.options.as_ref()).is_empty();
        let longest = match format {
            "" if needs_format => {
                self.invalid(at.child("format"), "", "must be set where another field but device is");
                0
            }
            "ext4" => 16,
            "btrfs" => 256,
            "xfs" => 12,
            "swap" => 15,
            "vfat" => 11,
            "none" if self.minor >= 3 => usize::MAX,
            "" => usize::MAX,
            _ => {
                let rule = "must be one of ext4, btrfs, xfs, swap, vfat, or since 3.3.0 none";
                self.invalid(at.child("format"), format, rule);
                usize::MAX
            }
        };
        if longest == 0 && !label.is_empty() {
            self.invalid(at.child("label"), label, "must have a format beside it");
        } else if label.len() > longest {
            self.invalid(at.child("label"), label, &format!("must have at most {longest} bytes in this format"));
        }
    }
}

/// The first partition that overlaps another one, as far as both have a start and a size.
fn overlapping(partitions: &[Partition]) -> Option<usize> {
    let range = |partition: &Partition| match (partition.start_mib, partition.size_mib) {
        (Some(start), Some(size)) if start != 0 => {
            Some((start, if size == 0 { start } else { start.wrapping_add(size).wrapping_sub(1) }))
        }
        _ => None,
    };
    partitions.iter().find_map(|partition| {
        let (start, end) = range(partition)?;
        partitions.iter().position(|other| {
            range(other).filter(|_| !std::ptr::eq(partition, other)).is_some_and(|(first, last)| {
                (start >= first && start <= last) || (end >= first && end <= last) || (start < first && end > last)
            })
        })
    })
}

fn is_guid(text: &str) -> bool {
    let parts: Vec<_> = text.split('-').collect();
    let is_part =
        |(part, length): (&&str, usize)| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.is_empty() || parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(is_part)
}

/// Whether a volume is bound to Tang servers or a TPM without a custom configuration.
fn has_own_pins(clevis: &Clevis) -> bool {
    !all(clevis.tang.as_ref()).is_empty() || clevis.tpm2 == Some(true) || clevis.threshold.unwrap_or_default() != 0
}

fn is_used(clevis: &Clevis) -> bool {
    has_own_pins(clevis) || clevis.custom.as_ref().is_some_and(|custom| is_set(custom.pin.as_ref()))
}
