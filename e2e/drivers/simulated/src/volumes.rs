//! The volumes of the cloud.

use nodewright_api::RawJson;
use serde::Deserialize;

use super::CSI_DRIVER;

#[derive(Deserialize)]
struct Spec {
    csi: Csi,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi {
    driver: String,
    volume_handle: String,
}

/// The id of a `PersistentVolume` in the cloud, if it is one of the cloud's.
pub(crate) fn id(spec: &RawJson) -> Option<String> {
    let Csi { driver, volume_handle } = spec.parse::<Spec>().ok()?.csi;
    let before = driver.strip_suffix(CSI_DRIVER)?;
    let is_own = before.is_empty() || before.ends_with('.');
    Some(volume_handle).filter(|id| is_own && !id.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_clouds_volumes_are_those_of_its_csi_drivers() {
        let id_with = |driver: &str| id(&RawJson::from(&json!({"csi": {"driver": driver, "volumeHandle": "v"}})));
        assert_eq!(id_with(CSI_DRIVER).as_deref(), Some("v"));
        assert_eq!(id_with(&format!("a.{CSI_DRIVER}")).as_deref(), Some("v"));
        assert_eq!([id_with(&format!("a{CSI_DRIVER}")), id_with("ebs.csi.aws.com")], [None, None]);
        let others = [json!({"nfs": {}}), json!({"csi": {"driver": CSI_DRIVER}}), json!(null)];
        assert!(others.iter().all(|spec| id(&RawJson::from(spec)).is_none()));
    }
}
