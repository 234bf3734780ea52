//! What the API server is told about the webhooks. `config/webhook/manifests.yaml` says the same; a test compares.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use nodewright_api::{GROUP, VERSION};

/// One installation of Nodewright: it serves the objects of one namespace. Several may share a cluster, each with
/// configurations of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The namespace.
    pub namespace: String,
}

impl Installation {
    /// As `config/default` has it.
    pub fn default_one() -> Self {
        Self { namespace: "nodewright-system".to_owned() }
    }

    /// The name of both configurations.
    pub fn configuration_name(&self) -> String {
        format!("nodewright-{}", self.namespace)
    }

    /// The API server labels each namespace with its name.
    fn selector(&self) -> LabelSelector {
        let name = ("kubernetes.io/metadata.name".to_owned(), self.namespace.clone());
        LabelSelector { match_labels: Some([name].into()), match_expressions: None }
    }
}

/// How long the API server waits for an answer. An answer takes about a millisecond; the rest is for a server that is
/// being replaced. All webhooks of a request together must stay far below the 30 s that a request may take.
const TIMEOUT_SECONDS: i32 = 5;

/// A kind that is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// `machinedeployments`.
    MachineDeployment,
    /// `machineclasses`.
    MachineClass,
    /// `machinesets`.
    MachineSet,
    /// `machines`.
    Machine,
}

impl Subject {
    /// The kind, as in `kind`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::MachineDeployment => "MachineDeployment",
            Self::MachineClass => "MachineClass",
            Self::MachineSet => "MachineSet",
            Self::Machine => "Machine",
        }
    }

    /// The resource, as in paths of the API server.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::MachineDeployment => "machinedeployments",
            Self::MachineClass => "machineclasses",
            Self::MachineSet => "machinesets",
            Self::Machine => "machines",
        }
    }

    /// Sets and machines are nearly always made by controllers, from a template that was reviewed; and a restore of
    /// them must not fail because the webhook is not there yet.
    const fn failure_policy(self) -> &'static str {
        match self {
            Self::MachineDeployment | Self::MachineClass => "Fail",
            Self::MachineSet | Self::Machine => "Ignore",
        }
    }

    fn conditions(self) -> Vec<MatchCondition> {
        let mut conditions = vec![NOT_DELETING];
        match self {
            Self::MachineDeployment => conditions.push(SPEC_CHANGES),
            Self::MachineClass => conditions.push(CLASS_CHANGES),
            Self::MachineSet | Self::Machine => conditions.extend([SPEC_CHANGES, NOT_BY_CONTROLLER]),
        }
        let condition = |(name, expression): (&str, &str)| MatchCondition {
            name: name.to_owned(),
            expression: expression.to_owned(),
        };
        conditions.into_iter().map(condition).collect()
    }
}

/// What is on its way out is not judged any more.
const NOT_DELETING: (&str, &str) = ("is-not-being-deleted", "!has(object.metadata.deletionTimestamp)");

/// `.?` instead of `.`: an object without a spec must reach the webhook and be refused there, by name of the field,
/// rather than fail the expression.
const SPEC_CHANGES: (&str, &str) =
    ("changes-the-spec", "request.operation == 'CREATE' || object.?spec != oldObject.?spec");

/// A MachineClass has its fields at the top level. Of its metadata the record of its identity is reviewed while it is in use:
/// a controller that removes it removes its finalizer in the same request.
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

/// What a controller writes comes from a template that was reviewed, and must not wait for a webhook. Controllers run as
/// service accounts; that an object names a controller as its owner is no proof that one wrote it.
const NOT_BY_CONTROLLER: (&str, &str) = (
    "is-not-written-by-its-controller",
    "!request.userInfo.username.startsWith('system:serviceaccount:') \
     || !object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false))",
);

/// What a webhook does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Fills in what is absent.
    Mutate,
    /// Accepts or refuses.
    Validate,
}

impl Action {
    const fn verb(self) -> &'static str {
        match self {
            Self::Mutate => "mutate",
            Self::Validate => "validate",
        }
    }
}

/// One webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// What it does.
    pub action: Action,
    /// With which kind.
    pub subject: Subject,
}

impl Endpoint {
    /// The path at the server: `/validate-machinedeployment`.
    pub fn path(self) -> String {
        format!("/{}-{}", self.action.verb(), self.subject.kind().to_ascii_lowercase())
    }

    /// The name in the configuration, which the API server shows with a refusal:
    /// `validate.machinedeployments.nodewright.dev`.
    pub fn name(self) -> String {
        format!("{}.{}.nodewright.dev", self.action.verb(), self.subject.resource())
    }

    fn rule(self) -> RuleWithOperations {
        let one = |text: &str| Some(vec![text.to_owned()]);
        RuleWithOperations {
            api_groups: one(GROUP),
            api_versions: one(VERSION),
            operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
            // Without subresources: no status is ever reviewed, and a scale has its bounds in the definition.
            resources: one(self.subject.resource()),
            scope: Some("Namespaced".to_owned()),
        }
    }
}

/// All webhooks, in the order of the configurations.
pub fn endpoints() -> impl Iterator<Item = Endpoint> {
    use Action::{Mutate, Validate};
    use Subject::{Machine, MachineClass, MachineDeployment, MachineSet};
    [
        (Mutate, MachineDeployment),
        (Mutate, MachineClass),
        (Validate, MachineDeployment),
        (Validate, MachineClass),
        (Validate, MachineSet),
        (Validate, Machine),
    ]
    .into_iter()
    .map(|(action, subject)| Endpoint { action, subject })
}

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Through a Service of the cluster.
    Service {
        /// The namespace of the Service.
        namespace: String,
        /// The name of the Service.
        name: String,
        /// The port of the Service.
        port: i32,
    },
    /// Directly, where the API server runs beside the webhooks.
    Url {
        /// Scheme, host and port, such as `https://127.0.0.1:9443`.
        base: String,
    },
}

impl Reach {
    /// As `config/webhook` has it.
    pub fn default_service() -> Self {
        Self::Service { namespace: "nodewright-system".to_owned(), name: "nodewright-webhook".to_owned(), port: 443 }
    }

    fn client_config(&self, endpoint: Endpoint, bundle: Option<&[u8]>) -> WebhookClientConfig {
        let ca_bundle = bundle.map(|bundle| ByteString(bundle.to_vec()));
        match self {
            Self::Service { namespace, name, port } => {
                let (namespace, name, port) = (namespace.clone(), name.clone(), Some(*port));
                let service = ServiceReference { namespace, name, port, path: Some(endpoint.path()) };
                WebhookClientConfig { ca_bundle, service: Some(service), url: None }
            }
            Self::Url { base } => {
                let url = format!("{}{}", base.trim_end_matches('/'), endpoint.path());
                WebhookClientConfig { ca_bundle, service: None, url: Some(url) }
            }
        }
    }
}

/// The two objects by which the API server knows the webhooks.
#[derive(Clone, Debug, PartialEq)]
pub struct Configurations {
    /// The webhooks that fill in what is absent.
    pub mutating: MutatingWebhookConfiguration,
    /// The webhooks that accept or refuse.
    pub validating: ValidatingWebhookConfiguration,
}

/// The configurations of all webhooks. `bundle` are the certificates, as PEM, that the API server is to trust; without
/// it, somebody else fills them in.
///
/// The rules leave the service account of Nodewright and its namespace in: what its controllers write passes through
/// the match conditions unasked.
pub fn configurations(installation: &Installation, reach: &Reach, bundle: Option<&[u8]>) -> Configurations {
    let of = |action| endpoints().filter(move |endpoint| endpoint.action == action);
    let mutating = of(Action::Mutate).map(|endpoint| mutating(endpoint, installation, reach, bundle)).collect();
    let validating = of(Action::Validate).map(|endpoint| validating(endpoint, installation, reach, bundle)).collect();
    let metadata = ObjectMeta { name: Some(installation.configuration_name()), ..ObjectMeta::default() };
    Configurations {
        mutating: MutatingWebhookConfiguration { metadata: metadata.clone(), webhooks: Some(mutating) },
        validating: ValidatingWebhookConfiguration { metadata, webhooks: Some(validating) },
    }
}

fn mutating(endpoint: Endpoint, installation: &Installation, reach: &Reach, bundle: Option<&[u8]>) -> MutatingWebhook {
    MutatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        client_config: reach.client_config(endpoint, bundle),
        failure_policy: Some(endpoint.subject.failure_policy().to_owned()),
        match_conditions: Some(endpoint.subject.conditions()),
        match_policy: Some("Equivalent".to_owned()),
        name: endpoint.name(),
        namespace_selector: Some(installation.selector()),
        object_selector: None,
        // Another webhook may change the spec after this one; the defaults of what it wrote are filled in as well.
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![endpoint.rule()]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    }
}

fn validating(
    endpoint: Endpoint,
    installation: &Installation,
    reach: &Reach,
    bundle: Option<&[u8]>,
) -> ValidatingWebhook {
    ValidatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        client_config: reach.client_config(endpoint, bundle),
        failure_policy: Some(endpoint.subject.failure_policy().to_owned()),
        match_conditions: Some(endpoint.subject.conditions()),
        match_policy: Some("Equivalent".to_owned()),
        name: endpoint.name(),
        namespace_selector: Some(installation.selector()),
        object_selector: None,
        rules: Some(vec![endpoint.rule()]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_joined_to_the_path() {
        let reach = Reach::Url { base: "https://127.0.0.1:9443/".to_owned() };
        let all = configurations(&Installation::default_one(), &reach, Some(b"PEM"));
        let webhooks = all.mutating.webhooks.unwrap();
        assert_eq!(webhooks[0].client_config.url.as_deref(), Some("https://127.0.0.1:9443/mutate-machinedeployment"));
        assert_eq!(webhooks[0].client_config.ca_bundle, Some(ByteString(b"PEM".to_vec())));
        assert!(webhooks[0].client_config.service.is_none());
    }

    #[test]
    fn installations_share_neither_name_nor_namespace() {
        let all = |namespace: &str| {
            configurations(&Installation { namespace: namespace.to_owned() }, &Reach::default_service(), None)
        };
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
        let all = configurations(&Installation::default_one(), &Reach::default_service(), None);
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
    }
}
