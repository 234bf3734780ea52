//! An account with a network, as classes name it.

use serde_json::{Value, json};

use crate::ec2::{Ec2Error, Moto};

/// The region of everything.
pub const REGION: &str = "eu-west-1";
/// The id of the account's key.
pub const ACCESS_KEY: &str = "AKIATEST";
/// The secret part of the account's key. moto does not look at it.
pub const SECRET_KEY: &str = "hunter2-of-the-account";

/// What a class names besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// An AMI.
    pub image: String,
    /// A subnet with room for 4091 VMs.
    pub subnet: String,
    /// A security group of its VPC.
    pub group: String,
}

impl Account {
    /// Makes a network, and an instance profile `nodes`.
    pub async fn open(moto: &Moto) -> Result<Self, Ec2Error> {
        moto.ask("iam", "Action=CreateInstanceProfile&InstanceProfileName=nodes").await?;
        let vpc = between(&moto.ask("ec2", "Action=CreateVpc&CidrBlock=10.0.0.0/16").await?, "vpcId")?;
        let subnet = format!("Action=CreateSubnet&VpcId={vpc}&CidrBlock=10.0.0.0/20&AvailabilityZone=eu-west-1a");
        let subnet = between(&moto.ask("ec2", &subnet).await?, "subnetId")?;
        let group = format!("Action=CreateSecurityGroup&GroupName=nodes&GroupDescription=nodes&VpcId={vpc}");
        let group = between(&moto.ask("ec2", &group).await?, "groupId")?;
        let image = between(&moto.ask("ec2", "Action=DescribeImages&Owner.1=amazon").await?, "imageId")?;
        Ok(Self { image, subnet, group })
    }

    /// The `providerSpec` of a class for the VMs of a cluster.
    pub fn provider_spec(&self, cluster: &str) -> Value {
        json!({
            "ami": self.image, "region": REGION, "machineType": "t3.small", "iam": {"name": "nodes"},
            "networkInterfaces": [{"subnetID": self.subnet, "securityGroupIDs": [self.group]}],
            "blockDevices": [{"ebs": {"volumeSize": 8, "volumeType": "gp3"}}],
            "tags": {format!("kubernetes.io/cluster/{cluster}"): "1", "kubernetes.io/role/node": "1"},
        })
    }

    /// The data of the Secret of such a class.
    pub fn secret() -> Value {
        json!({
            "providerAccessKeyId": ACCESS_KEY, "providerSecretAccessKey": SECRET_KEY, "userData": "#!/bin/sh\n",
        })
    }
}

/// The text of the first element with this name.
fn between(text: &str, name: &str) -> Result<String, Ec2Error> {
    let found = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    found.map(|(text, _)| text.to_owned()).ok_or_else(|| Ec2Error::Moto(format!("no {name} in {text}")))
}
