//! EC2's answers, as far as the driver reads them.
//!
//! # Guarantees
//! An answer that is no answer of EC2, such as a page of a gateway, is an error and never an empty list: the sets have no
//! default.

use std::collections::BTreeMap;

use jiff::Timestamp;
use nodewright_driver::Power;
use serde::{Deserialize, de::DeserializeOwned};

/// Reads an answer. The error has nothing of its text.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, &'static str> {
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8")?;
    quick_xml::de::from_str(text).map_err(|_| "it is not the XML that was expected")
}

/// EC2 writes each element of a list as an `item`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Set<T> {
    #[serde(rename = "item", default = "Vec::new")]
    pub items: Vec<T>,
}

impl<T> Default for Set<T> {
    fn default() -> Self {
        Self { items: vec![] }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instances {
    reservation_set: Set<Reservation>,
    #[serde(default)]
    pub next_token: Option<String>,
}

impl Instances {
    /// The VMs of this page, whatever request made them.
    pub(crate) fn into_vms(self) -> impl Iterator<Item = Vm> {
        self.reservation_set.items.into_iter().flat_map(|reservation| reservation.instances_set.items)
    }
}

/// What one request has made: the answer of `RunInstances`, and a part of that of `DescribeInstances`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reservation {
    pub instances_set: Set<Vm>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Vm {
    #[serde(rename = "instanceId")]
    pub id: String,
    #[serde(rename = "instanceState")]
    state: State,
    #[serde(default)]
    pub client_token: String,
    #[serde(default)]
    pub private_dns_name: String,
    #[serde(default)]
    pub private_ip_address: Option<String>,
    #[serde(default)]
    pub ip_address: Option<String>,
    #[serde(default)]
    pub dns_name: Option<String>,
    #[serde(default)]
    launch_time: Option<String>,
    #[serde(default)]
    pub instance_type: Option<String>,
    #[serde(default)]
    placement: Option<Placement>,
    #[serde(default)]
    tag_set: Set<Tag>,
    #[serde(default)]
    pub network_interface_set: Set<Interface>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Placement {
    #[serde(default)]
    availability_zone: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct State {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Tag {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Interface {
    #[serde(rename = "networkInterfaceId")]
    pub id: String,
    #[serde(default)]
    source_dest_check: bool,
    #[serde(default, rename = "interfaceType")]
    kind: Option<String>,
}

impl Interface {
    /// Whether its source/destination check is on and can be switched off: an elastic fabric adapter's cannot.
    pub(crate) fn can_stop_check(&self) -> bool {
        let is_fabric = self.kind.as_deref().is_some_and(|kind| ["efa", "efa-only"].contains(&kind));
        self.source_dest_check && !is_fabric
    }
}

impl Vm {
    /// Whether the VM exists no more; EC2 shows it for an hour all the same.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.name == "terminated"
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.state.name == "shutting-down"
    }

    /// Whether it runs; one that is about to stop or to start may do either.
    pub(crate) fn power(&self) -> Power {
        match self.state.name.as_str() {
            "running" => Power::Running,
            "stopped" => Power::Stopped,
            _ => Power::Unknown,
        }
    }

    pub(crate) fn zone(&self) -> Option<&str> {
        self.placement.as_ref()?.availability_zone.as_deref().filter(|zone| !zone.is_empty())
    }

    pub(crate) fn tags(&self) -> BTreeMap<&str, &str> {
        self.tag_set.items.iter().map(|tag| (tag.key.as_str(), tag.value.as_str())).collect()
    }

    /// The client token of its creation, the UID of a Machine.
    pub(crate) fn token(&self) -> Option<&str> {
        Some(self.client_token.as_str()).filter(|token| !token.is_empty())
    }

    pub(crate) fn owner_uid(&self) -> Option<String> {
        self.token().map(str::to_owned)
    }

    /// When it was started last.
    pub(crate) fn launched(&self) -> Option<Timestamp> {
        self.launch_time.as_deref()?.parse().ok()
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Images {
    pub images_set: Set<Image>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Image {
    #[serde(default)]
    pub root_device_name: String,
}

/// The answer of `TerminateInstances`: that it is one is all that counts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terminated {
    #[serde(rename = "instancesSet")]
    _instances_set: Set<TerminatedVm>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminatedVm {
    #[serde(rename = "instanceId")]
    _id: String,
}

/// The answer of a request that only succeeds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Done {
    #[serde(rename = "requestId")]
    _request_id: String,
}

/// A refusal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Refusal {
    errors: Errors,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Errors {
    error: Vec<Fault>,
}

/// EC2's own code and text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Fault {
    pub code: String,
    #[serde(default)]
    pub message: String,
}

impl Refusal {
    pub(crate) fn into_fault(self) -> Option<Fault> {
        self.errors.error.into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><reservationSet><item>
<reservationId>r-1</reservationId><groupSet/><instancesSet><item><instanceId>i-0123456789abcdef0</instanceId>
<instanceState><code>16</code><name>running</name></instanceState><privateDnsName>ip-10-0-0-4.eu-west-1.compute.internal</privateDnsName>
<reason/><clientToken>uid</clientToken><launchTime>2026-11-22T10:00:00.000Z</launchTime>
<privateIpAddress>10.0.0.4</privateIpAddress><ipAddress>54.1.2.3</ipAddress><tagSet><item><key>Name</key><value>m &amp; n</value></item>
<item><key>empty</key><value/></item></tagSet><networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId>
<sourceDestCheck>true</sourceDestCheck></item></networkInterfaceSet></item></instancesSet></item></reservationSet>
<nextToken>more</nextToken></DescribeInstancesResponse>"#;

    #[test]
    fn a_page_of_vms_is_read() {
        let page: Instances = read(PAGE.as_bytes()).unwrap();
        assert_eq!(page.next_token.as_deref(), Some("more"));
        let vms: Vec<Vm> = page.into_vms().collect();
        assert_eq!(vms.len(), 1);
        assert_eq!(vms[0].tags(), BTreeMap::from([("Name", "m & n"), ("empty", "")]));
        assert!(!vms[0].is_gone() && !vms[0].is_deleting());
        assert_eq!(
            vms[0].network_interface_set.items,
            [Interface { id: "eni-1".to_owned(), source_dest_check: true, kind: None }]
        );
        assert_eq!(vms[0].launched(), "2026-11-22T10:00:00Z".parse().ok());
    }

    #[test]
    fn an_empty_page_is_no_error_and_everything_else_is() {
        let read = |text: &str| read::<Instances>(text.as_bytes()).map(|page| page.into_vms().count());
        assert_eq!(read("<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"), Ok(0));
        for end in [PAGE.len() / 2, PAGE.len() - 5, 40, 0] {
            assert!(read(&PAGE[..end]).is_err(), "the first {end} bytes");
        }
        for text in [
            "<html><body>It works!</body></html>",
            "{}",
            "<DescribeInstancesResponse/>",
            "<DescribeInstancesResponse><reservationSet><item/></reservationSet></DescribeInstancesResponse>",
            "<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceState><name>running</name></instanceState></item></instancesSet></item></reservationSet></DescribeInstancesResponse>",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_has_a_code() {
        let text = "<Response><Errors><Error><Code>Unavailable</Code><Message>m</Message></Error></Errors><RequestID>r</RequestID></Response>";
        let fault = read::<Refusal>(text.as_bytes()).unwrap().into_fault().unwrap();
        assert_eq!((fault.code.as_str(), fault.message.as_str()), ("Unavailable", "m"));
        assert!(read::<Refusal>(b"<html/>").is_err());
        assert!(read::<Refusal>(b"<Response><Errors/></Response>").is_err());
    }
}
