//! What moto shows of VMs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use crate::ec2::Ec2Error;

/// A VM as EC2 shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its id, `i-…`.
    pub id: String,
    /// `pending`, `running`, `shutting-down`, `terminated`, …
    pub state: String,
    /// The token of the request that made it.
    pub token: String,
    /// Its type, such as `t3.small`.
    pub instance_type: String,
    /// Its name in the network.
    pub private_dns_name: String,
    /// Its address in the network; empty once it is gone.
    pub private_ip: String,
    /// When it was started.
    pub launched: Timestamp,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

impl Vm {
    /// Whether it exists no more; EC2 shows it all the same.
    pub fn is_gone(&self) -> bool {
        self.state == "terminated"
    }
}

#[derive(Deserialize)]
struct Set<T> {
    #[serde(rename = "item", default = "Vec::new")]
    items: Vec<T>,
}

impl<T> Default for Set<T> {
    fn default() -> Self {
        Self { items: vec![] }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    reservation_set: Set<Reservation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reservation {
    instances_set: Set<Shown>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    instance_id: String,
    instance_state: State,
    #[serde(default)]
    client_token: String,
    instance_type: String,
    #[serde(default)]
    private_dns_name: String,
    #[serde(default)]
    private_ip_address: String,
    launch_time: Timestamp,
    #[serde(default)]
    tag_set: Set<Tag>,
}

#[derive(Deserialize)]
struct State {
    name: String,
}

#[derive(Deserialize)]
struct Tag {
    key: String,
    #[serde(default)]
    value: String,
}

/// The VMs in an answer of `DescribeInstances`.
pub(crate) fn vms(text: &str) -> Result<Vec<Vm>, Ec2Error> {
    let read: Described = quick_xml::de::from_str(text).map_err(|error| Ec2Error::Moto(error.to_string()))?;
    let instances = read.reservation_set.items.into_iter().flat_map(|reservation| reservation.instances_set.items);
    Ok(instances.map(Vm::from).collect())
}

impl From<Shown> for Vm {
    fn from(instance: Shown) -> Self {
        Self {
            id: instance.instance_id,
            state: instance.instance_state.name,
            token: instance.client_token,
            instance_type: instance.instance_type,
            private_dns_name: instance.private_dns_name,
            private_ip: instance.private_ip_address,
            launched: instance.launch_time,
            tags: instance.tag_set.items.into_iter().map(|tag| (tag.key, tag.value)).collect(),
        }
    }
}
