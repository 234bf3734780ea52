//! How the lists of a config merge: the table of their keys.

use serde_json::Value;
use std::borrow::Cow;

/// How a list merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// The parent's elements, then the child's.
    Append,
    /// Elements with the same key merge at the parent's place. The other ones of the child follow.
    Keyed(Key, Space),
}

/// What identifies an element. An element that is a string is its own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The string itself.
    Text,
    /// A field.
    Field(&'static str),
    /// The number of a partition, or its label if the number is zero.
    Partition,
}

/// Lists of one object that share their keys: an element of one replaces the element of another with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// The list shares its keys with no other.
    Own,
    /// Files, directories and links: a path is one of them.
    Nodes,
    /// Kernel arguments that should exist, and those that should not.
    KernelArguments,
}

/// The lists of Ignition 3.5 by field name. No name means two things, except `groups` of passwd (objects) and of a user
/// (strings), and `options` (always [`List::Append`]). Ignition has this in the methods `Key`, `IgnoreDuplicates` and
/// `MergedKeys` of its types.
const LISTS: [(&str, List); 25] = {
    use Key::{Field, Partition, Text};
    use List::{Append, Keyed};
    use Space::{KernelArguments, Nodes, Own};
    [
        ("append", Append),
        ("certificateAuthorities", Keyed(Field("source"), Own)),
        ("devices", Keyed(Text, Own)),
        ("directories", Keyed(Field("path"), Nodes)),
        ("disks", Keyed(Field("device"), Own)),
        ("dropins", Keyed(Field("name"), Own)),
        ("files", Keyed(Field("path"), Nodes)),
        ("filesystems", Keyed(Field("device"), Own)),
        ("groups", Keyed(Field("name"), Own)),
        ("httpHeaders", Keyed(Field("name"), Own)),
        ("links", Keyed(Field("path"), Nodes)),
        ("luks", Keyed(Field("name"), Own)),
        ("merge", Keyed(Field("source"), Own)),
        ("mountOptions", Append),
        ("noProxy", Keyed(Text, Own)),
        ("openOptions", Keyed(Text, Own)),
        ("options", Append),
        ("partitions", Keyed(Partition, Own)),
        ("raid", Keyed(Field("name"), Own)),
        ("shouldExist", Keyed(Text, KernelArguments)),
        ("shouldNotExist", Keyed(Text, KernelArguments)),
        ("sshAuthorizedKeys", Keyed(Text, Own)),
        ("tang", Keyed(Field("url"), Own)),
        ("units", Keyed(Field("name"), Own)),
        ("users", Keyed(Field("name"), Own)),
    ]
};

/// How the list of a field merges. None: the name is not in the table.
pub(crate) fn list(field: &str) -> Option<List> {
    LISTS.iter().find(|(name, _)| *name == field).map(|(_, list)| *list)
}

/// The key of an element of a keyed list.
pub(crate) fn key_of(key: Key, element: &Value) -> Cow<'_, str> {
    if let Some(text) = element.as_str() {
        return text.into();
    }
    let text = |field: &str| element.get(field).and_then(Value::as_str);
    match key {
        Key::Text => "".into(),
        Key::Field(field) => text(field).unwrap_or_default().into(),
        Key::Partition => match (element.get("number").and_then(Value::as_i64), text("label")) {
            (Some(number), _) if number != 0 => format!("number:{number}").into(),
            (_, Some(label)) => format!("label:{label}").into(),
            _ => "".into(),
        },
    }
}

/// The key of an element of the list `field`, such as the path of a file. None if the list has no keys.
pub(crate) fn element_key<'a>(field: &str, element: &'a Value) -> Option<Cow<'a, str>> {
    match list(field)? {
        List::Keyed(key, _) => Some(key_of(key, element)),
        List::Append => None,
    }
}

/// The field by which the elements of a list are known.
pub(crate) fn key_field(field: &str) -> Option<&'static str> {
    match list(field)? {
        List::Keyed(Key::Field(name), _) => Some(name),
        _ => None,
    }
}

/// Whether the elements of a list have no keys that can be shown: a list to which each config adds, or one of resources,
/// whose keys are what they contain.
pub(crate) fn is_open_list(field: &str) -> bool {
    matches!(list(field), None | Some(List::Append | List::Keyed(Key::Field("source"), _)))
}
