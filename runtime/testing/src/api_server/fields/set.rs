//! Sets of fields, as a tree, like `fieldsV1` on the wire.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A set of fields. Each key is an element of a path: `f:name`, `k:{"type":"Ready"}` or `v:"item"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Set(BTreeMap<String, Node>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    /// Whether the element itself belongs to the set, besides its children.
    member: bool,
    below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    pub(super) fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(&path.iter().map(|name| field(name)).collect::<Vec<_>>());
        }
        set
    }

    pub(super) fn only(path: &[String]) -> Self {
        let mut set = Self::default();
        set.insert(path);
        set
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.values().all(Node::is_empty)
    }

    pub(super) fn insert(&mut self, path: &[String]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.0.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    pub(super) fn has(&self, element: &str) -> bool {
        self.0.get(element).is_some_and(|node| node.member)
    }

    /// The children of an element, if it has any.
    pub(super) fn below(&self, element: &str) -> Option<&Self> {
        self.0.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (element, node) in &other.0 {
            let mine = all.0.entry(element.clone()).or_default();
            mine.member |= node.member;
            mine.below = mine.below.union(&node.below);
        }
        all
    }

    pub(super) fn intersection(&self, other: &Self) -> Self {
        self.combine(other, |mine, other| Node {
            member: mine.member && other.is_some_and(|other| other.member),
            below: other.map(|other| mine.below.intersection(&other.below)).unwrap_or_default(),
        })
    }

    /// Without the members of another set; their children stay.
    pub(super) fn difference(&self, other: &Self) -> Self {
        self.combine(other, |mine, other| match other {
            None => mine.clone(),
            Some(other) => Node { member: mine.member && !other.member, below: mine.below.difference(&other.below) },
        })
    }

    /// Without the members of another set, and without their children.
    pub(super) fn without(&self, other: &Self) -> Self {
        self.combine(other, |mine, other| match other {
            None => mine.clone(),
            Some(other) if other.member => Node::default(),
            Some(other) => Node { member: mine.member, below: mine.below.without(&other.below) },
        })
    }

    fn combine(&self, other: &Self, combine: impl Fn(&Node, Option<&Node>) -> Node) -> Self {
        let nodes = self.0.iter().map(|(element, node)| (element.clone(), combine(node, other.0.get(element))));
        Self(nodes.filter(|(_, node)| !node.is_empty()).collect())
    }

    /// The set with more members: the elements with children for which `is_member` holds. `below` maps the children.
    pub(super) fn map(&self, is_member: impl Fn(&str) -> bool, below: impl Fn(&str, &Self) -> Self) -> Self {
        let nodes = self.0.iter().map(|(element, node)| {
            let has_more = !node.below.is_empty();
            let member = node.member || has_more && is_member(element);
            (element.clone(), Node { member, below: below(element, &node.below) })
        });
        Self(nodes.collect())
    }

    /// All members by their paths, in the format of error messages: each level before the next one.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = vec![];
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, prefix: &str, paths: &mut Vec<String>) {
        let members = self.0.iter().filter(|(_, node)| node.member);
        paths.extend(members.map(|(element, _)| format!("{prefix}{}", readable(element))));
        for (element, node) in &self.0 {
            node.below.collect(&format!("{prefix}{}", readable(element)), paths);
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let nodes = self.0.iter().filter(|(_, node)| !node.is_empty());
        let fields = nodes.map(|(element, node)| {
            let mut below = node.below.to_json();
            if node.member
                && let Some(fields) = below.as_object_mut()
                && !fields.is_empty()
            {
                fields.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (element.clone(), below)
        });
        Value::Object(fields.collect())
    }

    pub(super) fn from_json(fields: &Value) -> Self {
        let fields = fields.as_object().into_iter().flatten().filter(|(element, _)| *element != ".");
        let nodes = fields.map(|(element, below)| {
            let is_leaf = below.as_object().is_none_or(Map::is_empty);
            let member = is_leaf || below.get(".").is_some();
            (element.clone(), Node { member, below: Self::from_json(below) })
        });
        Self(nodes.collect())
    }
}

/// The element of a field's path.
pub(super) fn field(name: &str) -> String {
    format!("f:{name}")
}

/// The format of messages: `.name`, `[type="Ready"]` or `["item"]`.
fn readable(element: &str) -> String {
    match element.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some((_, value)) => format!("[={value}]"),
        None => element.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(fields: &Value) -> Set {
        Set::from_json(fields)
    }

    #[test]
    fn sets_are_read_and_written() {
        let json = json!({"f:a": {".": {}, "f:b": {}}, "f:c": {"k:{\"type\":\"x\"}": {"f:d": {}}}});
        assert_eq!(set(&json).to_json(), json);
        assert_eq!(set(&json).paths(), [".a", ".a.b", ".c[type=\"x\"].d"]);
    }

    #[test]
    fn sets_are_combined() {
        let (left, right) = (set(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}})), set(&json!({"f:a": {}})));
        assert_eq!(left.difference(&right).to_json(), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        assert_eq!(left.without(&right).to_json(), json!({"f:c": {}}));
        assert_eq!(left.intersection(&right).to_json(), json!({"f:a": {}}));
        assert_eq!(left.union(&set(&json!({"f:d": {}}))).paths(), [".a", ".c", ".d", ".a.b"]);
        assert!(left.difference(&left).is_empty());
    }
}
