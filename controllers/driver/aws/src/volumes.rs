//! The volumes of EBS, as `PersistentVolumes` name them.

use nodewright_api::RawJson;
use serde::Deserialize;

/// The CSI driver of EBS.
const CSI_DRIVER: &str = "ebs.csi.aws.com";

/// The fields of a `PersistentVolume`'s spec that may name a volume of EBS.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    csi: Option<Csi>,
    /// The plug-in that was in Kubernetes before there was CSI.
    aws_elastic_block_store: Option<InTree>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
}

#[derive(Deserialize)]
struct InTree {
    #[serde(rename = "volumeID")]
    volume_id: String,
}

/// The id of a `PersistentVolume` at EBS, such as `vol-0123456789abcdef0`, if it is one of EBS.
pub(crate) fn id(spec: &RawJson) -> Option<String> {
    let spec: Spec = spec.parse().ok()?;
    let id = match (&spec.aws_elastic_block_store, &spec.csi) {
        (Some(volume), _) => bare(&volume.volume_id),
        (None, Some(csi)) if csi.driver == CSI_DRIVER => &csi.volume_handle,
        (None, _) => return None,
    };
    Some(id.to_owned()).filter(|id| !id.is_empty())
}

/// The id without the URL that the plug-in makes of it: `vol-1` of `aws://eu-west-1a/vol-1`.
fn bare(volume: &str) -> &str {
    volume.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_volume_of_ebs_has_its_id_and_others_have_none() {
        let csi = |driver: &str, handle: &str| json!({"csi": {"driver": driver, "volumeHandle": handle}});
        let in_tree = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id, "fsType": "ext4"}});
        let table: [(Value, Option<&str>); 9] = [
            (csi(CSI_DRIVER, "vol-1"), Some("vol-1")),
            (in_tree("vol-1"), Some("vol-1")),
            (in_tree("aws://eu-west-1a/vol-1"), Some("vol-1")),
            (in_tree("aws:///vol-1/"), Some("vol-1")),
            (csi(CSI_DRIVER, ""), None),
            (in_tree(""), None),
            (csi("efs.csi.aws.com", "fs-1"), None),
            (json!({"nfs": {"server": "a", "path": "/"}}), None),
            (json!(null), None),
        ];
        for (spec, expected) in table {
            assert_eq!(id(&RawJson::from(&spec)).as_deref(), expected, "{spec}");
        }
    }
}
