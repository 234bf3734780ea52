//! Readers for values that an API server stores and the types of other crates reject.
//!
//! An object that cannot be decoded is not reconciled at all. So a value out of range is read as the nearest one in range.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::NodeCondition,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use crate::{text, wire::null_as_default};

/// The first time that an API server accepts: 0001-01-01T00:00:00Z.
const FIRST: i64 = -62_135_596_800;

/// Reads a time. Go's range ends later than jiff's: a later time is read as jiff's last.
pub fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    Ok(Option::<AnyTime>::deserialize(deserializer)?.map(|AnyTime(time)| Time(time)))
}

struct AnyTime(Timestamp);

impl<'de> Deserialize<'de> for AnyTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::parse(deserializer, |text| {
            if let Ok(time) = text.parse::<Timestamp>() {
                return Ok(Self(time.max(Timestamp::from_second(FIRST).unwrap_or(Timestamp::MIN))));
            }
            // Go writes the year 10000 for a time of 9999 with an offset.
            let (year, rest) = text.split_once('-').unwrap_or_default();
            let is_late = year.parse::<u32>().is_ok_and(|year| year >= 9999) && rest.contains(['T', 't']);
            if is_late { Ok(Self(Timestamp::MAX)) } else { Err("must be a time as in RFC 3339") }
        })
    }
}

/// Reads a list without room for more. The caches have thousands of them.
pub fn exact<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    let mut all = Option::<Vec<T>>::deserialize(deserializer)?;
    all.iter_mut().for_each(Vec::shrink_to_fit);
    Ok(all)
}

/// Reads the conditions of a Node, with times as [`time`] reads them.
pub fn node_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<NodeCondition>>, D::Error> {
    let all = Option::<Vec<Condition>>::deserialize(deserializer)?;
    Ok(all.map(|all| {
        let mut all: Vec<_> = all.into_iter().map(NodeCondition::from).collect();
        // The caches have thousands of these lists.
        all.shrink_to_fit();
        all
    }))
}

/// Reads the conditions of a Machine. An absent list is empty.
pub(crate) fn copied_node_conditions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<NodeCondition>, D::Error> {
    Ok(node_conditions(deserializer)?.unwrap_or_default())
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    kind: String,
    #[serde(deserialize_with = "null_as_default")]
    status: String,
    reason: Option<String>,
    message: Option<String>,
    #[serde(deserialize_with = "time")]
    last_heartbeat_time: Option<Time>,
    #[serde(deserialize_with = "time")]
    last_transition_time: Option<Time>,
}

impl From<Condition> for NodeCondition {
    fn from(condition: Condition) -> Self {
        let Condition { kind, status, reason, message, last_heartbeat_time, last_transition_time } = condition;
        Self { type_: kind, status, reason, message, last_heartbeat_time, last_transition_time }
    }
}

/// Reads quantities. A number is one, as in `cpu: 4`.
pub(crate) fn quantities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    let all = Option::<BTreeMap<String, NumberOrText>>::deserialize(deserializer)?.unwrap_or_default();
    let text = |value| match value {
        NumberOrText::Number(number) => number.to_string(),
        NumberOrText::Text(text) => text,
    };
    Ok(all.into_iter().map(|(name, value)| (name, Quantity(text(value)))).collect())
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
enum NumberOrText {
    Number(Number),
    Text(String),
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_list_has_no_room_for_more() {
        let read = |value: Value| exact::<_, Value>(value).unwrap().map(|all| (all.len(), all.capacity()));
        assert_eq!(read(json!(["a"])), Some((1, 1)));
        assert_eq!(read(json!([])), Some((0, 0)));
        assert_eq!(read(Value::Null), None);
    }

    #[test]
    fn times_beyond_the_range_are_the_last_one() {
        let read = |text: &str| time(Value::from(text)).map(|time| time.unwrap().0.to_string());
        assert_eq!(read("2026-06-01T12:00:00Z").unwrap(), "2026-06-01T12:00:00Z");
        for late in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "10000-01-01T11:59:59Z"] {
            assert_eq!(read(late).unwrap(), "9999-12-30T22:00:00.999999999Z", "{late}");
        }
        assert_eq!(read("0000-01-01T00:00:00+10:00").unwrap(), "0001-01-01T00:00:00Z");
        assert!(read("soon").is_err() && read("9999-soon").is_err());
        assert_eq!(time(Value::Null).unwrap(), None);
    }

    #[test]
    fn conditions_and_quantities_are_read_as_go_reads_them() {
        let conditions = json!([{"type": "Ready", "status": "True", "reason": null,
            "lastHeartbeatTime": "9999-12-31T23:59:59Z", "lastTransitionTime": null}]);
        let conditions = node_conditions(conditions).unwrap().unwrap();
        assert_eq!(conditions[0].last_heartbeat_time, Some(Time(Timestamp::MAX)));
        let read = quantities(json!({"cpu": 4, "gpu": "1", "memory": 2.5})).unwrap();
        assert_eq!(read.values().map(|it| it.0.as_str()).collect::<Vec<_>>(), ["4", "1", "2.5"]);
    }
}
