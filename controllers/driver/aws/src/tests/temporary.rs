//! Temporary credentials with moto's STS and EC2, over HTTP.

use nodewright_e2e_lab::ec2::{
    self as ec2,
    account::{ACCESS_KEY, SECRET_KEY},
};
use serde_json::json;

use super::{aws::Aws, moto::Server, *};

/// moto's accounts: that of all keys that it does not know, and another. A role's credentials are of the role's account.
const OWN: &str = "arn:aws:iam::123456789012:role/machines";
const FOREIGN: &str = "arn:aws:iam::111111111111:role/machines";

#[tokio::test(flavor = "multi_thread")]
async fn temporary_credentials_make_and_find_vms_of_moto() {
    let Some(moto) = Server::start("temporary_credentials_make_and_find_vms_of_moto").await else { return };
    let account = ec2::Account::open(moto.moto()).await.unwrap();
    let (folder, metadata) = (tempfile::tempdir().unwrap(), Aws::new());
    let options = Options {
        endpoint: Some(moto.moto().url().to_owned()),
        sts_endpoint: Some(moto.moto().url().to_owned()),
        metadata_endpoint: Some(metadata.serve_metadata().await),
        ..Options::default()
    };
    let driver = AwsDriver::new(&options).unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "header.claims.signature\n").unwrap();
    let file = ("workloadIdentityTokenFile", path.to_str().unwrap());
    let keys = [("accessKeyID", ACCESS_KEY), ("secretAccessKey", SECRET_KEY)];
    let instance = ("credentialSource", "Ec2InstanceMetadata");
    let external_id = ("externalID", "fleet-1");
    let class = |entries: &[(&str, &str)]| {
        let mut spec = account.provider_spec("c");
        spec["instanceMarketOptions"] = json!({"marketType": "spot"});
        Class { secret: secret(entries), ..class(&spec) }
    };
    for (name, own, foreign) in [
        ("web-identity", vec![file, ("roleARN", OWN)], vec![file, ("roleARN", FOREIGN)]),
        (
            "role",
            vec![keys[0], keys[1], ("roleARN", OWN), external_id],
            vec![keys[0], keys[1], ("roleARN", FOREIGN), external_id],
        ),
        ("instance-and-role", vec![instance, ("roleARN", OWN)], vec![instance, ("roleARN", FOREIGN)]),
    ] {
        let made = driver.create(machine(name, class(&own))).await.unwrap();
        let found = driver.status(machine(name, class(&own))).await.unwrap();
        assert_eq!(made.provider_id, found.provider_id, "{name}");
        let elsewhere = driver.status(machine(name, class(&foreign))).await.unwrap_err();
        assert_eq!(elsewhere.code, Code::NotFound, "{name}: {elsewhere}");
    }
    let listed = driver.list(class(&[instance])).await.unwrap();
    assert_eq!(listed.len(), 3);
    assert_eq!(metadata.metadata().len(), 3, "the instance's credentials were got once");
    let shown = moto.moto().ask("ec2", "Action=DescribeInstances").await.unwrap();
    assert_eq!(shown.matches("<instanceLifecycle>spot</instanceLifecycle>").count(), 3, "{shown}");
}
