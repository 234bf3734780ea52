//! The service accounts of a scenario's manager and of a user of the plugin, with the roles of `config/` and no other.
//!
//! With the administrator's credentials no scenario would notice a missing right, and the API server would exempt the manager from flow
//! control.
//!
//! # Guarantees
//! * When [`ServiceAccount::create`] returns, the API server grants what each role has.
//! * [`ServiceAccount::check`] has seen all requests of the account that are in the audit log by then.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::ServiceAccount as Account,
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
    config::{AuthInfo, Kubeconfig},
    core::Status,
};
use nodewright_e2e_lab::{
    control_plane::{
        USER_AGENT, apply_all,
        audit::AuditLog,
        client, parse_manifest,
        rights::{UsedRights, of_config, on, right},
    },
    devcluster::installation::{config, write_overlay},
    process::{repository, write_private},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{Cluster, Failure, TestResult, ensure, waits::LOOK};

/// The name in `config/rbac`.
const NAME: &str = "nodewright";
/// As whom a manager with `config/components/cloud-node` deletes Nodes.
const NODE_LIFECYCLE: &str = "nodewright-node-lifecycle";
/// The account of a user of the plugin.
const PLUGIN_USER: &str = "plugin-user";
/// The role of `config/plugin` that is bound in the manager's namespace alone.
const REPORT: &str = "nodewright-report";
/// Stands for the namespace in the manifests, which are rendered once.
const PLACEHOLDER: &str = "namespace-of-a-scenario";
/// The label that `config/rbac` gives all its objects, with the namespace as its value.
const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// The namespaces of roles, besides that of the scenario.
const OTHER_NAMESPACES: [&str; 2] = ["kube-system", "default"];
/// The roles that a manager needs in the cluster of the nodes; see `config/components/target-cluster`.
const OF_TARGET: [&str; 4] = [
    "nodewright-nodes",
    "nodewright-bootstrap-tokens",
    "nodewright-machine-config",
    "nodewright-machine-config-events",
];
/// How long a token is valid: longer than any scenario takes.
const TOKEN_SECONDS: i64 = 4 * 3600;
/// How long the API server may take to notice that a label of a Namespace is gone.
const POLICY_CACHE: Duration = Duration::from_secs(10);
/// How long the API server may take to notice new roles.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What a cluster has for a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The custom resources and the nodes.
    Both,
    /// The custom resources alone.
    Control,
    /// The nodes alone.
    Target,
    /// Both, for a user of the plugin.
    Plugin,
}

impl Part {
    /// Whether the object of `config/rbac` is needed here.
    fn has(self, name: &str) -> bool {
        let is_of_target = OF_TARGET.contains(&name.trim_end_matches(PLACEHOLDER).trim_end_matches('-'));
        match self {
            Self::Both | Self::Plugin => true,
            Self::Control => !is_of_target,
            Self::Target => is_of_target || name == NAME,
        }
    }

    /// The name of the account.
    fn account(self) -> &'static str {
        if self == Self::Plugin { PLUGIN_USER } else { NAME }
    }

    fn kubeconfig(self) -> &'static str {
        match self {
            Self::Both | Self::Control => "kubeconfig",
            Self::Target => "target.kubeconfig",
            Self::Plugin => "plugin.kubeconfig",
        }
    }
}

/// The service account of a manager, or of a user of the plugin, in one cluster.
pub(crate) struct ServiceAccount {
    client: Client,
    namespace: String,
    name: &'static str,
    kubeconfig: PathBuf,
    log: Option<AuditLog>,
}

impl ServiceAccount {
    /// Creates the account and its roles in a namespace of a cluster, which exists, and a kubeconfig with its token in the directory.
    pub(crate) async fn create(cluster: &Cluster, namespace: &str, part: Part, directory: &Path) -> TestResult<Self> {
        let log = cluster.control_plane().map(|plane| AuditLog::from_now(plane.audit_log())).transpose()?;
        let administrator = cluster.client().await?;
        let objects = objects(cluster, namespace, part).await?;
        apply_all(&administrator, objects.clone()).await?;
        let (name, kubeconfig) = (part.account(), directory.join(part.kubeconfig()));
        write_kubeconfig(cluster, &administrator, (namespace, name), &kubeconfig).await?;
        let account = Self { client: administrator, namespace: namespace.to_owned(), name, kubeconfig, log };
        account.wait_for_rights(&objects).await?;
        Ok(account)
    }

    /// The path of the kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Waits until one right of each role is granted: the API server learns of roles and bindings by watches.
    async fn wait_for_rights(&self, objects: &[DynamicObject]) -> TestResult {
        let own = client(&self.kubeconfig, USER_AGENT).await?;
        let bound = bound(objects, &[self.name]);
        for object in objects {
            let binding = object.metadata.name.as_deref().and_then(|name| bound.get(name));
            let Some((rule, binding)) = object.data["rules"].get(0).zip(binding) else { continue };
            let rule: PolicyRule = serde_json::from_value(rule.clone())?;
            let review = review(&rule, binding.metadata.namespace.as_deref());
            let granted = async {
                while !is_allowed(&own, &review).await? {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                TestResult::Ok(())
            };
            let late = |_| Failure::new(format!("{:?} is not granted within {TIMEOUT:?}", object.metadata.name));
            tokio::time::timeout(TIMEOUT, granted).await.map_err(late)??;
        }
        Ok(())
    }

    /// Returns an error if a request of the account was denied for lack of a right. An API server that has just started denies everything
    /// until it has read the roles: if it `restarts` in the scenario, a right that it granted at another time is not missing.
    pub(crate) fn check(&self, restarts: bool) -> TestResult {
        let Some(log) = &self.log else { return Ok(()) };
        let mut used = UsedRights::read(log, &self.namespace, self.name)?;
        if restarts {
            used.forget_denials_of_granted();
        }
        let denied = used.denied.iter().map(String::as_str).collect::<Vec<_>>().join("\n  ");
        let (name, namespace) = (self.name, &self.namespace);
        ensure(denied.is_empty(), || format!("{name} lacks rights in namespace {namespace}:\n  {denied}"))?;
        let cluster = self.kubeconfig.file_stem().unwrap_or_default().to_string_lossy();
        Ok(used.record(&format!("{namespace}-{cluster}"))?)
    }

    /// Removes all that was created, except for what goes with the namespace.
    pub(crate) async fn remove(&self) -> TestResult {
        let ours = ListParams::default().labels(&format!("{INSTANCE_LABEL}={}", self.namespace));
        remove::<ClusterRoleBinding>(Api::all(self.client.clone()), &ours).await?;
        remove::<ClusterRole>(Api::all(self.client.clone()), &ours).await?;
        for namespace in OTHER_NAMESPACES {
            remove::<RoleBinding>(Api::namespaced(self.client.clone(), namespace), &ours).await?;
            remove::<Role>(Api::namespaced(self.client.clone(), namespace), &ours).await?;
        }
        Ok(())
    }
}

/// The policies of `config/guard` decide by the Namespaces that the API server has in its cache: for a moment one counts as in use that
/// has lost the label.
async fn remove<K>(api: Api<K>, selected: &ListParams) -> TestResult
where
    K: Resource + Clone + fmt::Debug + DeserializeOwned,
{
    let since = Instant::now();
    loop {
        match api.delete_collection(&DeleteParams::default(), selected).await {
            Err(kube::Error::Api(status)) if is_kept_by_policy(&status) && since.elapsed() < POLICY_CACHE => {
                tokio::time::sleep(LOOK).await;
            }
            result => return Ok(result.map(drop)?),
        }
    }
}

fn is_kept_by_policy(status: &Status) -> bool {
    status.code == 403 && status.message.contains("ValidatingAdmissionPolicy 'nodewright-rights'")
}

/// The account, its roles and their bindings, as an installation in this namespace has them.
async fn objects(cluster: &Cluster, namespace: &str, part: Part) -> TestResult<Vec<DynamicObject>> {
    static MANIFESTS: OnceCell<String> = OnceCell::const_new();
    let mut objects = if part == Part::Plugin {
        plugin_user(cluster.kubectl()).await?
    } else {
        let manifests = MANIFESTS.get_or_try_init(|| render_installation(cluster.kubectl(), &[])).await?;
        parse_manifest(manifests, "of config/")?
    };
    let kinds = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    objects.retain(|object| {
        let is_right = object.types.as_ref().is_some_and(|types| kinds.contains(&types.kind.as_str()));
        is_right && object.metadata.name.as_ref().is_some_and(|name| part.has(name))
    });
    if is_planted("missing") {
        for rules in objects.iter_mut().filter_map(|object| object.data.get_mut("rules")?.as_array_mut()) {
            rules.retain(|rule| rule["resources"] != json!(["events"]));
        }
    }
    let text = serde_json::to_string(&objects)?.replace(PLACEHOLDER, namespace);
    Ok(serde_json::from_str(&text)?)
}

/// Whether the roles differ from those of `config/` in this way, for the test to be seen to fail: `make test-rbac PLANT=…`.
fn is_planted(violation: &str) -> bool {
    env::var_os("PLANT").is_some_and(|planted| planted == violation)
}

async fn render_installation(kubectl: &Path, components: &[&str]) -> TestResult<String> {
    // kustomize takes relative paths alone.
    let target = repository().join("target");
    fs::create_dir_all(&target)?;
    let directory = tempfile::Builder::new().prefix("rights-").tempdir_in(&target)?;
    let folder = directory.path().join(PLACEHOLDER);
    write_overlay(&folder, PLACEHOLDER, &[], components)?;
    render(kubectl, &folder).await
}

async fn render(kubectl: &Path, folder: &Path) -> TestResult<String> {
    let output = tokio::process::Command::new(kubectl).arg("kustomize").arg(folder).output().await?;
    if !output.status.success() {
        return Err(Failure::new(format!("kubectl kustomize: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An account with the roles of `config/plugin`, bound as they say, under names of their own: scenarios share a cluster.
async fn plugin_user(kubectl: &Path) -> TestResult<Vec<DynamicObject>> {
    let mut objects = parse_manifest(&render(kubectl, &config("plugin")).await?, "of config/plugin")?;
    let mut bindings = vec![];
    for role in &mut objects {
        let is_report = role.metadata.name.as_deref() == Some(REPORT);
        let name = format!("{}-{PLACEHOLDER}", role.metadata.name.as_deref().unwrap_or_default());
        role.metadata.name = Some(name.clone());
        role.metadata.labels.get_or_insert_default().insert(INSTANCE_LABEL.to_owned(), PLACEHOLDER.to_owned());
        let (kind, namespace) =
            if is_report { ("RoleBinding", json!(PLACEHOLDER)) } else { ("ClusterRoleBinding", Value::Null) };
        bindings.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "labels": {INSTANCE_LABEL: PLACEHOLDER}},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": PLUGIN_USER, "namespace": PLACEHOLDER}],
        }));
    }
    bindings.push(json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PLUGIN_USER, "namespace": PLACEHOLDER},
    }));
    let bindings: Vec<DynamicObject> = serde_json::from_value(bindings.into())?;
    objects.extend(bindings);
    Ok(objects)
}

/// The administrator's kubeconfig with a token of the account in place of the administrator's credentials.
async fn write_kubeconfig(
    cluster: &Cluster,
    administrator: &Client,
    (namespace, account): (&str, &str),
    path: &Path,
) -> TestResult {
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let accounts: Api<Account> = Api::namespaced(administrator.clone(), namespace);
    let created = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    let token = created.status.map(|status| status.token).unwrap_or_default();
    let mut config = Kubeconfig::read_from(cluster.kubeconfig())?;
    for user in &mut config.auth_infos {
        user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
    }
    Ok(write_private(path, &serde_json::to_string(&config)?)?)
}

/// Asks for the first right of a rule.
fn review(rule: &PolicyRule, namespace: Option<&str>) -> SelfSubjectAccessReview {
    let first = |texts: &Option<Vec<String>>| texts.as_ref().and_then(|texts| texts.first().cloned());
    let resource = first(&rule.resources).unwrap_or_default();
    let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
    let attributes = ResourceAttributes {
        group: first(&rule.api_groups),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: rule.verbs.first().cloned(),
        name: first(&rule.resource_names),
        namespace: namespace.map(str::to_owned),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() }
}

async fn is_allowed(own: &Client, review: &SelfSubjectAccessReview) -> TestResult<bool> {
    let asked = Api::<SelfSubjectAccessReview>::all(own.clone()).create(&PostParams::default(), review).await?;
    Ok(asked.status.is_some_and(|status| status.allowed))
}

/// The roles that are bound to these accounts, each with one of its bindings. That of those who read metrics is bound to another one.
fn bound<'a>(objects: &'a [DynamicObject], accounts: &[&str]) -> BTreeMap<&'a str, &'a DynamicObject> {
    let is_theirs = |object: &&DynamicObject| {
        let mut subjects = object.data["subjects"].as_array().into_iter().flatten();
        subjects.any(|subject| subject["name"].as_str().is_some_and(|name| accounts.contains(&name)))
    };
    let role = |object: &'a DynamicObject| Some((object.data["roleRef"]["name"].as_str()?, object));
    objects.iter().filter(is_theirs).filter_map(role).collect()
}

/// Each right of the roles in `config/` that are bound to the manager, to the account as which it deletes Nodes, and to users of the plugin,
/// as a line of [`UsedRights::granted`].
pub async fn granted(kubectl: &Path) -> TestResult<BTreeSet<String>> {
    let mut objects = parse_manifest(&render_installation(kubectl, &["cloud-node"]).await?, "of config/")?;
    objects.extend(plugin_user(kubectl).await?);
    let bound = bound(&objects, &[NAME, NODE_LIFECYCLE, PLUGIN_USER]);
    let mut granted = BTreeSet::new();
    for object in &objects {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let rules = object.data.get("rules").filter(|_| bound.contains_key(name));
        let Some(rules) = rules.cloned() else { continue };
        let role = of_config(name, PLACEHOLDER);
        for rule in serde_json::from_value::<Vec<PolicyRule>>(rules)? {
            granted.extend(rights(&rule, role));
        }
    }
    granted.extend(is_planted("unused").then(|| right(NAME, "delete", "", "configmaps")));
    Ok(granted)
}

/// The rights of a rule of a role. Those on named objects have a line for each of these.
fn rights(of: &PolicyRule, role: &str) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    let names: Vec<_> = of.resource_names.iter().flatten().map(|name| of_config(name, PLACEHOLDER)).collect();
    for group in of.api_groups.iter().flatten() {
        for resource in of.resources.iter().flatten() {
            for verb in &of.verbs {
                let right = right(role, verb, group, resource);
                rights.extend(names.iter().map(|name| on(&right, name)));
                rights.extend(names.is_empty().then_some(right));
            }
        }
    }
    rights
}
