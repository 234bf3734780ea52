//! Which parts of an object are merged, and which are replaced as a whole.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

/// How the fields of a value are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As one field.
    Leaf,
    Map,
    List,
}

/// The known structure of a value.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Shape {
    /// A scalar, or an atomic value: it is replaced as a whole.
    Leaf,
    /// A structure with these known fields.
    Struct(BTreeMap<String, Shape>, Rest),
    /// A map with arbitrary keys.
    Map(Box<Shape>),
    /// A list of unique scalars.
    Set,
    /// A list whose items have these fields as their key.
    Keyed(Vec<String>, Box<Shape>),
}

/// The unnamed fields of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Rest {
    /// Known to the server, with the same rule below: maps are structures, lists are atomic.
    Open,
    /// Unknown and preserved: maps are merged, lists are atomic.
    Free,
    /// Undeclared and dropped.
    Closed,
}

static LEAF: Shape = Shape::Leaf;
static OPEN: Shape = Shape::Struct(BTreeMap::new(), Rest::Open);
static FREE: Shape = Shape::Struct(BTreeMap::new(), Rest::Free);

impl Shape {
    pub(super) fn form(&self, value: &Value) -> Form {
        match (self, value) {
            (Self::Struct(..) | Self::Map(_), Value::Object(_)) => Form::Map,
            (Self::Set | Self::Keyed(..), Value::Array(_)) => Form::List,
            _ => Form::Leaf,
        }
    }

    /// The shape of a field, and whether the server knows its name.
    pub(super) fn field(&self, key: &str) -> (&Self, bool) {
        match self {
            Self::Struct(fields, rest) => match (fields.get(key), rest) {
                (Some(shape), _) => (shape, true),
                (None, Rest::Open) => (&OPEN, true),
                (None, Rest::Free | Rest::Closed) => (&FREE, false),
            },
            Self::Map(item) => (item, false),
            _ => (&LEAF, false),
        }
    }

    pub(super) fn item(&self) -> &Self {
        match self {
            Self::Keyed(_, item) => item,
            _ => &LEAF,
        }
    }

    /// The key of an item of a list, as an element of a path.
    pub(super) fn element(&self, item: &Value) -> String {
        match self {
            Self::Keyed(keys, _) => {
                let present = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
                format!("k:{}", Value::Object(present.collect::<Map<_, _>>()))
            }
            _ => format!("v:{item}"),
        }
    }

    /// The fields of the key of a list's items.
    pub(in super::super) fn keys(&self) -> Option<&[String]> {
        match self {
            Self::Keyed(keys, _) => Some(keys),
            _ => None,
        }
    }

    /// The shape of a field, whether or not its name is known.
    pub(in super::super) fn at(&self, key: &str) -> &Self {
        self.field(key).0
    }

    /// The shape of the items of a list.
    pub(in super::super) fn of_items(&self) -> &Self {
        self.item()
    }

    /// Puts a shape at a path. `[]` is an item of a list, `{}` a value of a map.
    fn put(&mut self, path: &[&str], shape: Self) {
        match (path, self) {
            ([], place) => *place = shape,
            (["[]", rest @ ..], Self::Keyed(_, item)) | (["{}", rest @ ..], Self::Map(item)) => item.put(rest, shape),
            ([name, rest @ ..], Self::Struct(fields, _)) => {
                fields.entry((*name).to_owned()).or_insert_with(|| OPEN.clone()).put(rest, shape);
            }
            _ => {}
        }
    }
}

/// The metadata of all objects.
const METADATA: &[(&str, &str)] = &[
    ("metadata.annotations", "map"),
    ("metadata.finalizers", "set"),
    ("metadata.labels", "map"),
    ("metadata.managedFields", "leaf"),
    ("metadata.ownerReferences", "uid"),
    ("metadata.ownerReferences.[]", "leaf"),
];

const CONTAINERS: [&str; 3] = ["spec.containers", "spec.initContainers", "spec.ephemeralContainers"];
const CONTAINER: &[(&str, &str)] = &[
    ("", "name"),
    (".[].env", "name"),
    (".[].ports", "containerPort,protocol"),
    (".[].resources.limits", "map"),
    (".[].resources.requests", "map"),
    (".[].volumeDevices", "devicePath"),
    (".[].volumeMounts", "mountPath"),
];

/// The maps and lists of the kinds that Nodewright uses, from Kubernetes' `OpenAPI` document. A field that is not listed is a
/// structure, a scalar or an atomic list.
const BUILTIN: &[(&str, &[(&str, &str)])] = &[
    ("ConfigMap", &[("data", "map"), ("binaryData", "map")]),
    (
        "Node",
        &[
            ("spec.podCIDRs", "set"),
            ("status.addresses", "type"),
            ("status.allocatable", "map"),
            ("status.capacity", "map"),
            ("status.conditions", "type"),
        ],
    ),
    ("Namespace", &[("status.conditions", "type")]),
    ("PersistentVolume", &[("spec.capacity", "map")]),
    ("PersistentVolumeClaim", &[("status.conditions", "type"), ("spec.selector", "leaf")]),
    (
        "Pod",
        &[
            ("spec.hostAliases", "ip"),
            ("spec.imagePullSecrets", "name"),
            ("spec.nodeSelector", "leaf"),
            ("spec.overhead", "map"),
            ("spec.schedulingGates", "name"),
            ("spec.topologySpreadConstraints", "topologyKey,whenUnsatisfiable"),
            ("spec.volumes", "name"),
            ("status.conditions", "type"),
            ("status.hostIPs", "leaf"),
            ("status.podIPs", "ip"),
        ],
    ),
    (
        "PodDisruptionBudget",
        &[("spec.selector", "leaf"), ("status.conditions", "type"), ("status.disruptedPods", "map")],
    ),
    ("Secret", &[("data", "map"), ("stringData", "map")]),
    ("ServiceAccount", &[("imagePullSecrets", "leaf"), ("secrets", "name")]),
    ("VolumeAttachment", &[("status.attachmentMetadata", "map")]),
];

/// Kinds all of whose fields are known, with those that are not listed above.
const CLOSED: &[(&str, &[&str])] = &[("ConfigMap", &["immutable"]), ("Secret", &["immutable", "type"])];

static SHAPES: LazyLock<BTreeMap<&str, Shape>> = LazyLock::new(|| {
    let shapes = BUILTIN.iter().map(|(kind, parts)| {
        let mut shape = plain();
        for (path, part) in *parts {
            put(&mut shape, path, part);
        }
        for list in CONTAINERS.iter().filter(|_| *kind == "Pod") {
            for (below, part) in CONTAINER {
                put(&mut shape, &format!("{list}{below}"), part);
            }
        }
        (*kind, shape)
    });
    let mut shapes: BTreeMap<_, _> = shapes.collect();
    for (kind, more) in CLOSED {
        let shape = shapes.entry(kind).or_insert_with(plain);
        if let Shape::Struct(fields, rest) = shape {
            let more = ["apiVersion", "kind"].iter().chain(*more).map(|name| ((*name).to_owned(), Shape::Leaf));
            fields.extend(more);
            *rest = Rest::Closed;
        }
    }
    shapes
});

/// The shape of a built-in kind, or the default shape.
pub(in super::super) fn builtin(kind: &str) -> Shape {
    SHAPES.get(kind).cloned().unwrap_or_else(plain)
}

/// The shape of an object with known metadata only.
fn plain() -> Shape {
    let mut shape = OPEN.clone();
    for (path, part) in METADATA {
        put(&mut shape, path, part);
    }
    shape
}

fn put(shape: &mut Shape, path: &str, part: &str) {
    let part = match part {
        "leaf" => Shape::Leaf,
        "map" => Shape::Map(Box::new(Shape::Leaf)),
        "set" => Shape::Set,
        keys => Shape::Keyed(keys.split(',').map(str::to_owned).collect(), Box::new(OPEN.clone())),
    };
    shape.put(&path.split('.').collect::<Vec<_>>(), part);
}

/// The shape of a custom kind, from the `openAPIV3Schema` of its definition.
pub(in super::super) fn of_schema(schema: &Value) -> Shape {
    let mut shape = of_value(schema);
    if let Shape::Struct(fields, _) = &mut shape {
        fields.extend(["apiVersion", "kind"].map(|name| (name.to_owned(), Shape::Leaf)));
        fields.insert("metadata".to_owned(), plain().at("metadata").clone());
    }
    shape
}

fn of_value(schema: &Value) -> Shape {
    let keeps_unknown = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match schema["type"].as_str() {
        Some("object") if schema["x-kubernetes-map-type"] == "atomic" => Shape::Leaf,
        Some("object") => match (&schema["properties"], &schema["additionalProperties"]) {
            (_, items @ Value::Object(_)) => Shape::Map(Box::new(of_value(items))),
            (properties, _) => {
                let fields = properties.as_object().into_iter().flatten();
                let fields = fields.map(|(name, schema)| (name.clone(), of_value(schema)));
                Shape::Struct(fields.collect(), if keeps_unknown { Rest::Free } else { Rest::Closed })
            }
        },
        Some("array") => match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Shape::Set,
            Some("map") => {
                let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
                let keys = keys.filter_map(Value::as_str).map(str::to_owned).collect();
                Shape::Keyed(keys, Box::new(of_value(&schema["items"])))
            }
            _ => Shape::Leaf,
        },
        None if keeps_unknown => FREE.clone(),
        _ => Shape::Leaf,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_distinguished_by_what_the_kind_says() {
        let pod = builtin("Pod");
        let ports = pod.at("spec").at("containers").item().at("ports");
        assert_eq!(ports.element(&json!({"containerPort": 1, "name": "x"})), "k:{\"containerPort\":1}");
        assert_eq!(pod.at("metadata").at("finalizers").element(&json!("x")), "v:\"x\"");
        assert_eq!(pod.at("spec").at("tolerations").form(&json!([])), Form::Leaf);
    }

    #[test]
    fn custom_kinds_say_it_themselves() {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "selector": {"type": "object", "x-kubernetes-map-type": "atomic"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            "status": {"type": "object", "properties": {
                "conditions": {"type": "array", "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["type"], "items": {"type": "object"}}}}}});
        let shape = of_schema(&schema);
        let spec = shape.at("spec");
        assert_eq!(spec.at("selector").form(&json!({})), Form::Leaf);
        assert_eq!((spec.at("labels").form(&json!({})), spec.at("labels").field("a").1), (Form::Map, false));
        assert_eq!((spec.at("open").at("x").form(&json!({})), spec.at("open").field("x").1), (Form::Map, false));
        assert_eq!(shape.at("status").at("conditions").keys(), Some(["type".to_owned()].as_slice()));
        assert_eq!(shape.at("metadata").at("finalizers"), &Shape::Set);
    }
}
