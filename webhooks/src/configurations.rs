//! The webhook configurations. `config/webhook/manifests.yaml` and `config/webhook/machine-config/manifests.yaml` are generated
//! from them.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use nodewright_api::{GROUP, VERSION, machine_config};

/// The namespace of `config/default`.
pub const DEFAULT_NAMESPACE: &str = "nodewright-system";

/// The name of both configurations of the installation that serves a namespace. Several installations can share a cluster.
pub(crate) fn configuration_name(namespace: &str) -> String {
    format!("nodewright-{namespace}")
}

/// The name of the configuration for the kinds of node configuration, of the same installation.
pub(crate) fn machine_config_name(namespace: &str) -> String {
    format!("nodewright-machine-config-{namespace}")
}

/// How long the API server waits for a response. A review takes about a millisecond; the rest covers the replacement of a
/// server. All webhooks of a request together must stay far below the 30 s that a request may take.
const TIMEOUT_SECONDS: i32 = 5;

/// A kind that the webhooks review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of the kinds")]
pub enum ReviewedKind {
    MachineDeployment,
    MachineClass,
    MachineSet,
    Machine,
    MachineConfig,
    MachineConfigPool,
    KubeletConfig,
    ControllerConfig,
}

impl ReviewedKind {
    /// The name of the kind.
    pub const fn kind(self) -> &'static str {
        self.names().0
    }

    /// The name of the resource.
    pub const fn resource(self) -> &'static str {
        self.names().1
    }

    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::MachineDeployment => ("MachineDeployment", "machinedeployments"),
            Self::MachineClass => ("MachineClass", "machineclasses"),
            Self::MachineSet => ("MachineSet", "machinesets"),
            Self::Machine => ("Machine", "machines"),
            Self::MachineConfig => ("MachineConfig", "machineconfigs"),
            Self::MachineConfigPool => ("MachineConfigPool", "machineconfigpools"),
            Self::KubeletConfig => ("KubeletConfig", "kubeletconfigs"),
            Self::ControllerConfig => ("ControllerConfig", "controllerconfigs"),
        }
    }

    /// Whether the kind is one of node configuration, which a cluster may not serve, and whose objects have no namespace.
    pub const fn is_machine_config(self) -> bool {
        matches!(self, Self::MachineConfig | Self::MachineConfigPool | Self::KubeletConfig | Self::ControllerConfig)
    }

    /// The API group of the kind.
    pub const fn group(self) -> &'static str {
        if self.is_machine_config() { machine_config::GROUP } else { GROUP }
    }

    const fn version(self) -> &'static str {
        if self.is_machine_config() { machine_config::VERSION } else { VERSION }
    }

    const fn scope(self) -> &'static str {
        if self.is_machine_config() { "Cluster" } else { "Namespaced" }
    }

    /// Controllers create nearly all MachineSets and Machines, from a template that was reviewed. A restore of them must not
    /// fail while no webhook runs. The controllers of node configuration check each object again, and hold the target of a
    /// pool: other programs write these kinds too, and must not depend on us.
    const fn failure_policy(self) -> &'static str {
        match self {
            Self::MachineDeployment | Self::MachineClass => "Fail",
            _ => "Ignore",
        }
    }

    fn conditions(self) -> Vec<MatchCondition> {
        let conditions: &[(&str, &str)] = match self {
            Self::MachineDeployment => &[NOT_DELETING, SPEC_CHANGES],
            Self::MachineClass => &[NOT_DELETING, CLASS_CHANGES],
            Self::MachineSet | Self::Machine => &[NOT_DELETING, SPEC_CHANGES, NOT_BY_CONTROLLER],
            Self::MachineConfig => &[NOT_DELETING, CONFIG_CHANGES, NOT_BY_CONTROLLER],
            Self::MachineConfigPool => &[NOT_DELETING, POOL_CHANGES],
            Self::KubeletConfig | Self::ControllerConfig => &[NOT_DELETING, CONFIG_CHANGES],
        };
        let condition = |&(name, expression): &(&str, &str)| MatchCondition {
            name: name.to_owned(),
            expression: expression.to_owned(),
        };
        conditions.iter().map(condition).collect()
    }
}

/// Objects that are being deleted are not reviewed.
const NOT_DELETING: (&str, &str) = ("is-not-being-deleted", "!has(object.metadata.deletionTimestamp)");
/// With `.?` an object without a spec reaches the webhook, whose error names the field. With `.` the expression would fail. The
/// annotations are those with rules of their own, and all with our prefix that controllers do not write: one may be misspelled.
const SPEC_CHANGES: (&str, &str) = (
    "changes-the-spec",
    "request.operation == 'CREATE' \
     || object.?spec != oldObject.?spec \
     || ['nodewright.dev/deletion-order', 'nodewright.dev/health-timeouts', \
     'nodewright.dev/remediation-max-in-flight', 'node.machine.sapcloud.io/preserve', \
     'machinepriority.machine.sapcloud.io', 'node.machine.sapcloud.io/trigger-deletion-by-mcm'].exists(key, \
     object.metadata.?annotations[?key] != oldObject.metadata.?annotations[?key]) \
     || object.metadata.?labels[?'force-deletion'] != oldObject.metadata.?labels[?'force-deletion'] \
     || object.metadata.?annotations.orValue({}).exists(key, key.startsWith('nodewright.dev/') \
     && !(key in ['nodewright.dev/ledger', 'nodewright.dev/sized-for', 'nodewright.dev/index', \
     'nodewright.dev/applied-node-template', 'nodewright.dev/traceparent', \
     'nodewright.dev/traceparent-generation', 'nodewright.dev/deletion-traceparent']) \
     && object.metadata.annotations[key] != oldObject.metadata.?annotations[?key].orValue(''))",
);
/// A MachineClass has its fields at the top level. The annotation with its identity is reviewed while the class is in use. A
/// controller removes it together with its finalizer.
const CLASS_CHANGES: (&str, &str) = (
    "changes-the-class",
    "request.operation == 'CREATE' \
     || object.?providerSpec != oldObject.?providerSpec \
     || object.?provider != oldObject.?provider \
     || object.?secretRef != oldObject.?secretRef \
     || object.?credentialsSecretRef != oldObject.?credentialsSecretRef \
     || object.?nodeTemplate != oldObject.?nodeTemplate \
     || oldObject.metadata.?annotations[?'nodewright.dev/identity'].hasValue() \
     && object.metadata.?annotations[?'nodewright.dev/identity'] \
     != oldObject.metadata.?annotations[?'nodewright.dev/identity'] \
     && object.metadata.?finalizers.orValue([]).exists(it, it == 'machine.sapcloud.io/machine-controller-manager')",
);
/// The kinds of node configuration have no annotations with rules.
const CONFIG_CHANGES: (&str, &str) =
    ("changes-the-spec", "request.operation == 'CREATE' || object.?spec != oldObject.?spec");
/// The fields with rules. Controllers write the target of a pool, which is in its spec.
const POOL_CHANGES: (&str, &str) = (
    "changes-the-pool",
    "request.operation == 'CREATE' \
     || object.?spec.?machineConfigSelector != oldObject.?spec.?machineConfigSelector \
     || object.?spec.?nodeSelector != oldObject.?spec.?nodeSelector \
     || object.?spec.?maxUnavailable != oldObject.?spec.?maxUnavailable",
);

/// A controller copies a template that was reviewed, and must not depend on a webhook. Controllers run as service accounts: an
/// owner reference alone does not prove that a controller wrote the object.
const NOT_BY_CONTROLLER: (&str, &str) = (
    "is-not-written-by-its-controller",
    "!request.userInfo.username.startsWith('system:serviceaccount:') \
     || !object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false))",
);

/// What a webhook does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sets absent fields.
    Mutate,
    /// Accepts or refuses the object.
    Validate,
}

/// One webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// What the webhook does.
    pub action: Action,
    /// The kind that it reviews.
    pub kind: ReviewedKind,
}

impl Endpoint {
    const fn verb(self) -> &'static str {
        match self.action {
            Action::Mutate => "mutate",
            Action::Validate => "validate",
        }
    }

    /// The path at the server, such as `/validate-machinedeployment`.
    pub fn path(self) -> String {
        format!("/{}-{}", self.verb(), self.kind.kind().to_ascii_lowercase())
    }

    /// The name in the configuration, such as `validate.machinedeployments.nodewright.dev`. The API server shows it with a
    /// refusal.
    pub fn name(self) -> String {
        format!("{}.{}.nodewright.dev", self.verb(), self.kind.resource())
    }

    fn rule(self) -> RuleWithOperations {
        let one = |text: &str| Some(vec![text.to_owned()]);
        RuleWithOperations {
            api_groups: one(self.kind.group()),
            api_versions: one(self.kind.version()),
            operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
            // Without subresources: statuses are not reviewed, and the definition has the bounds of a scale.
            resources: one(self.kind.resource()),
            scope: Some(self.kind.scope().to_owned()),
        }
    }
}

/// All webhooks, in the order of the configurations.
pub fn endpoints() -> impl Iterator<Item = Endpoint> {
    use Action::{Mutate, Validate};
    use ReviewedKind::{
        ControllerConfig, KubeletConfig, Machine, MachineClass, MachineConfig, MachineConfigPool, MachineDeployment,
        MachineSet,
    };
    [
        (Mutate, MachineDeployment),
        (Mutate, MachineClass),
        (Validate, MachineDeployment),
        (Validate, MachineClass),
        (Validate, MachineSet),
        (Validate, Machine),
        (Validate, MachineConfig),
        (Validate, MachineConfigPool),
        (Validate, KubeletConfig),
        (Validate, ControllerConfig),
    ]
    .into_iter()
    .map(|(action, kind)| Endpoint { action, kind })
}

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientConfig {
    /// Through the Service of `config/webhook`.
    Service,
    /// Directly, by scheme, host and port, such as `https://127.0.0.1:9443`.
    Url(String),
}

impl ClientConfig {
    fn of(&self, endpoint: Endpoint, bundle: Option<&[u8]>) -> WebhookClientConfig {
        let ca_bundle = bundle.map(|bundle| ByteString(bundle.to_vec()));
        let (service, url) = match self {
            Self::Service => {
                let (namespace, name) = (DEFAULT_NAMESPACE.to_owned(), "nodewright-webhook".to_owned());
                let service = ServiceReference { namespace, name, port: Some(443), path: Some(endpoint.path()) };
                (Some(service), None)
            }
            Self::Url(base) => (None, Some(format!("{}{}", base.trim_end_matches('/'), endpoint.path()))),
        };
        WebhookClientConfig { ca_bundle, service, url }
    }
}

/// Both webhook configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Configurations {
    /// The webhooks that set absent fields.
    pub mutating: MutatingWebhookConfiguration,
    /// The webhooks that accept or refuse.
    pub validating: ValidatingWebhookConfiguration,
}

/// The configurations of the webhooks for the machines of a namespace. `bundle` has the certificates, as PEM, that the API
/// server trusts. Without it, another program sets them.
///
/// The rules do not exclude Nodewright's service account and namespace: the match conditions let the writes of its
/// controllers pass.
pub fn configurations(namespace: &str, client: &ClientConfig, bundle: Option<&[u8]>) -> Configurations {
    // The API server sets the label.
    let name = ("kubernetes.io/metadata.name".to_owned(), namespace.to_owned());
    let selector = LabelSelector { match_labels: Some([name].into()), match_expressions: None };
    let of = |action| {
        let endpoints = endpoints().filter(move |it| it.action == action && !it.kind.is_machine_config());
        endpoints.map(|endpoint| webhook(endpoint, client, bundle, Some(selector.clone())))
    };
    let metadata = ObjectMeta { name: Some(configuration_name(namespace)), ..ObjectMeta::default() };
    let mutating = Some(of(Action::Mutate).collect());
    let validating = Some(of(Action::Validate).map(validating).collect());
    Configurations {
        mutating: MutatingWebhookConfiguration { metadata: metadata.clone(), webhooks: mutating },
        validating: ValidatingWebhookConfiguration { metadata, webhooks: validating },
    }
}

/// The configuration of the webhooks for node configuration, for a cluster that serves its kinds. `namespace` is that of the
/// installation: the kinds have none.
pub fn machine_config_configuration(
    namespace: &str,
    client: &ClientConfig,
    bundle: Option<&[u8]>,
) -> ValidatingWebhookConfiguration {
    let endpoints = endpoints().filter(|endpoint| endpoint.kind.is_machine_config());
    let webhooks = endpoints.map(|endpoint| validating(webhook(endpoint, client, bundle, None))).collect();
    let metadata = ObjectMeta { name: Some(machine_config_name(namespace)), ..ObjectMeta::default() };
    ValidatingWebhookConfiguration { metadata, webhooks: Some(webhooks) }
}

fn webhook(
    endpoint: Endpoint,
    client: &ClientConfig,
    bundle: Option<&[u8]>,
    namespace_selector: Option<LabelSelector>,
) -> MutatingWebhook {
    MutatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        client_config: client.of(endpoint, bundle),
        failure_policy: Some(endpoint.kind.failure_policy().to_owned()),
        match_conditions: Some(endpoint.kind.conditions()),
        match_policy: Some("Equivalent".to_owned()),
        name: endpoint.name(),
        namespace_selector,
        object_selector: None,
        // Another webhook may change the spec after this one and leave fields without defaults.
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![endpoint.rule()]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    }
}

/// The same webhook for validation, which has no reinvocation policy.
fn validating(webhook: MutatingWebhook) -> ValidatingWebhook {
    ValidatingWebhook {
        admission_review_versions: webhook.admission_review_versions,
        client_config: webhook.client_config,
        failure_policy: webhook.failure_policy,
        match_conditions: webhook.match_conditions,
        match_policy: webhook.match_policy,
        name: webhook.name,
        namespace_selector: webhook.namespace_selector,
        object_selector: webhook.object_selector,
        rules: webhook.rules,
        side_effects: webhook.side_effects,
        timeout_seconds: webhook.timeout_seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_joined_to_the_path() {
        let client = ClientConfig::Url("https://127.0.0.1:9443/".to_owned());
        let all = configurations(DEFAULT_NAMESPACE, &client, Some(b"PEM"));
        let webhooks = all.mutating.webhooks.unwrap();
        assert_eq!(webhooks[0].client_config.url.as_deref(), Some("https://127.0.0.1:9443/mutate-machinedeployment"));
        assert_eq!(webhooks[0].client_config.ca_bundle, Some(ByteString(b"PEM".to_vec())));
        assert!(webhooks[0].client_config.service.is_none());
    }

    #[test]
    fn installations_share_neither_name_nor_namespace() {
        let all = |namespace: &str| configurations(namespace, &ClientConfig::Service, None);
        let (a, b) = (all("a"), all("b"));
        assert_ne!(a.mutating.metadata.name, b.mutating.metadata.name);
        assert_ne!(a.validating.metadata.name, b.validating.metadata.name);
        let selectors = [
            a.mutating.webhooks.unwrap().into_iter().map(|webhook| webhook.namespace_selector).collect::<Vec<_>>(),
            a.validating.webhooks.unwrap().into_iter().map(|webhook| webhook.namespace_selector).collect(),
        ];
        for selector in selectors.concat() {
            assert_eq!(selector.unwrap().match_labels.unwrap()["kubernetes.io/metadata.name"], "a");
        }
    }

    #[test]
    fn only_what_users_write_depends_on_the_webhook() {
        let all = configurations(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
        let policies: Vec<_> = all
            .validating
            .webhooks
            .unwrap()
            .into_iter()
            .map(|webhook| (webhook.name, webhook.failure_policy.unwrap()))
            .collect();
        let expected = [
            ("validate.machinedeployments.nodewright.dev", "Fail"),
            ("validate.machineclasses.nodewright.dev", "Fail"),
            ("validate.machinesets.nodewright.dev", "Ignore"),
            ("validate.machines.nodewright.dev", "Ignore"),
        ];
        assert_eq!(policies, expected.map(|(name, policy)| (name.to_owned(), policy.to_owned())));
        let all = machine_config_configuration(DEFAULT_NAMESPACE, &ClientConfig::Service, None);
        assert!(all.webhooks.unwrap().iter().all(|webhook| webhook.failure_policy.as_deref() == Some("Ignore")));
    }
}
