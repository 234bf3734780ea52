//! Users who install and uninstall, and a manager whose token was stolen. Each attack has its own control plane, and managers with the
//! rights of their service accounts. It returns what it measured; an error is harm.

use std::time::{Duration, Instant};

use super::{DEFAULT_INSTALLATION, Site, config};
use crate::{
    control_plane::{audit::AuditLog, rights::UsedRights},
    devcluster::{DevclusterError, machines::machines},
    process::with_causes,
};

type Measured = Result<String, String>;

const MACHINES: usize = 3;
/// An object whose definition is guarded where it is ours.
const MACHINE_CONFIG: &str =
    "{apiVersion: machineconfiguration.openshift.io/v1, kind: MachineConfig, metadata: {name: kept}, spec: {}}";
const TIMEOUT: Duration = Duration::from_mins(3);
/// The finalizer of the policies.
const GUARD: &str = "validatingadmissionpolicies,validatingadmissionpolicybindings";

/// Deletes all that was applied, in each order that comes to mind, while machines run. Then does what the page says.
pub async fn uninstall() -> Measured {
    let site = Site::start().await.map_err(text)?;
    let default = config("default");
    site.plane().apply_file(config("crd/machine-config/bases")).await.map_err(text)?;
    site.plane().apply_yaml(MACHINE_CONFIG).await.map_err(text)?;
    let mut installation = site.install(&default, DEFAULT_INSTALLATION).await.map_err(text)?;
    site.make_machines(DEFAULT_INSTALLATION, MACHINES).await.map_err(text)?;
    let labelled = wait("the labels", async || is_labelled(&site).await).await;
    labelled.map_err(|error| format!("{error}; the manager's log:\n{}", installation.manager.log_tail()))?;
    let refused = naive_deletions(&site).await?;
    // The manager and its rights are there: the fleet can still change.
    site.apply(&default, &[]).await.map_err(text)?;
    site.scale(DEFAULT_INSTALLATION, MACHINES + 1).await.map_err(|error| format!("the rights are lost: {error}"))?;
    // The same while no manager runs.
    installation.manager.kill_9();
    let refused_without = naive_deletions(&site).await?;
    expect_machines(&site, MACHINES + 1).await?;
    installation.manager.start_again().await.map_err(text)?;
    let seconds = delete_the_namespace_all_the_same(&site).await?;
    let of_cluster = finish(&site).await?;
    Ok(format!(
        "{refused} deletions refused, {refused_without} without a manager, no machine lost; a namespace that was allowed to go \
         took its {} machines and VMs along in {seconds} s; {of_cluster}",
        MACHINES + 1
    ))
}

/// Returns how many deletions were refused.
async fn naive_deletions(site: &Site) -> Result<usize, String> {
    let before = count(site).await?;
    let mut refused = 0;
    for folder in ["default", "cluster", "cluster", "crd", "guard", "default"] {
        let Err(error) = site.delete(&config(folder)).await else {
            // The policies alone may be deleted, in name.
            if folder == "guard" {
                continue;
            }
            return Err(format!("kubectl delete -k config/{folder} was not refused"));
        };
        refused += error.to_string().matches("denied request").count();
    }
    let objects = [
        "namespace/nodewright-system",
        "crd/machines.machine.sapcloud.io",
        "crd/machineconfigs.machineconfiguration.openshift.io",
        "serviceaccount/nodewright",
        "rolebinding/nodewright",
        "clusterrole/nodewright-nodes",
        "clusterrolebinding/nodewright-nodes",
        "deployment/nodewright",
    ];
    for object in objects {
        let delete = ["delete", "--wait=false", "-n", DEFAULT_INSTALLATION, object];
        let Err(error) = site.plane().kubectl(delete).await else { return Err(format!("{object} was deleted")) };
        let error = error.to_string();
        if !error.contains("docs/tasks/uninstall.md") {
            return Err(format!("the refusal does not say what to do: {error}"));
        }
        refused += 1;
    }
    expect_machines(site, before).await?;
    Ok(refused)
}

/// The annotation lets the namespace go. The manager keeps its rights until the last machine is gone.
async fn delete_the_namespace_all_the_same(site: &Site) -> Result<u64, String> {
    let begun = Instant::now();
    let namespace = ["annotate", "namespace", DEFAULT_INSTALLATION, "nodewright.dev/allow-deletion=true"];
    site.plane().kubectl(namespace).await.map_err(text)?;
    site.plane().kubectl(["delete", "--wait=false", "namespace", DEFAULT_INSTALLATION]).await.map_err(text)?;
    wait("the end of all VMs", async || Ok(site.vms(DEFAULT_INSTALLATION).await.map_err(text)? == 0)).await?;
    wait("the end of the namespace", async || {
        let get = ["get", "namespace", DEFAULT_INSTALLATION, "--ignore-not-found", "-o", "name"];
        Ok(site.plane().kubectl(get).await.map_err(text)?.trim().is_empty())
    })
    .await?;
    Ok(begun.elapsed().as_secs())
}

/// With nothing in use all of it can be deleted, the policies after their finalizers.
async fn finish(site: &Site) -> Measured {
    let definitions = site.delete(&config("crd")).await.map_err(|error| format!("nothing is in use, but {error}"))?;
    let guard = config("guard").display().to_string();
    let patch = ["patch", "-k", guard.as_str(), "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#];
    site.plane().kubectl(patch).await.map_err(text)?;
    let left = site.plane().kubectl(["get", GUARD, "-o", "name"]).await.map_err(text)?;
    let left = left.lines().filter(|name| name.contains("nodewright-deletion") || name.contains("-rights")).count();
    if left > 0 {
        return Err(format!("{left} policies are left"));
    }
    Ok(format!("afterwards {} CRDs could be deleted", definitions.lines().count()))
}

/// Two installations of two overlays each make machines, and one of them is uninstalled.
pub async fn overlays() -> Measured {
    let site = Site::start().await.map_err(text)?;
    let names = ["team-a", "team-b"];
    let mut installations = vec![];
    for name in names {
        // One of both runs the webhooks of node configuration, too.
        let resources: &[_] = if name == "team-a" { &["webhook/machine-config"] } else { &[] };
        let folder = site.write_overlay_with(name, resources, &[]).map_err(text)?;
        installations.push(site.install(&folder, name).await.map_err(text)?);
    }
    for name in names {
        site.make_machines(name, MACHINES).await.map_err(|error| format!("{name}: {error}"))?;
    }
    for name in names {
        refuses_by_webhook(&site, name).await?;
        // A rollout deletes machines, drains their nodes and makes tokens: all rights are used.
        let patch = r#"{"spec":{"template":{"spec":{"nodeTemplate":{"metadata":{"labels":{"round":"2"}}}}}}}"#;
        let patch = ["patch", "mcd", "demo-pool", "-n", name, "--type=merge", "-p", patch];
        site.plane().kubectl(patch).await.map_err(text)?;
        site.scale(name, MACHINES - 1).await.map_err(|error| format!("{name}: {error}"))?;
    }
    let bundle = "-o=jsonpath={.webhooks[*].clientConfig.caBundle}";
    let bundle = ["get", "validatingwebhookconfiguration", "nodewright-machine-config-team-a", bundle];
    wait("the certificate at the webhooks of node configuration", async || {
        Ok(!site.plane().kubectl(bundle).await.map_err(text)?.is_empty())
    })
    .await?;
    check_rights(&site, &["team-a", "team-b"])?;
    uninstall_one(&site, "team-b").await?;
    site.scale("team-a", MACHINES).await.map_err(|error| format!("team-a after the end of team-b: {error}"))?;
    Ok("2 installations made and ended machines under their own accounts, no request forbidden; one was uninstalled as the page \
        says, and the other made another machine"
        .to_owned())
}

/// As docs/tasks/uninstall.md says.
async fn uninstall_one(site: &Site, namespace: &str) -> Result<(), String> {
    let kinds = "machinedeployments,machinesets,machines,machineclasses";
    site.plane().kubectl(["delete", "-n", namespace, "--timeout=2m", kinds, "--all"]).await.map_err(text)?;
    let in_use = ["get", "namespaces", "-l", "nodewright.dev/in-use", "-o", "name"];
    let name = format!("namespace/{namespace}");
    wait("the end of the label", async || {
        let names = site.plane().kubectl(in_use).await.map_err(text)?;
        Ok(names.lines().all(|line| line != name))
    })
    .await?;
    let overlay = site.write_overlay(namespace).map_err(text)?;
    site.delete(&overlay).await.map_err(|error| format!("{namespace} is not in use, but {error}"))?;
    wait("the end of the namespace", async || {
        let get = ["get", name.as_str(), "--ignore-not-found", "-o", "name"];
        Ok(site.plane().kubectl(get).await.map_err(text)?.trim().is_empty())
    })
    .await?;
    let vms = site.vms(namespace).await.map_err(text)?;
    if vms > 0 { Err(format!("{vms} VMs of {namespace} are left")) } else { Ok(()) }
}

/// The webhook of the namespace answers, and knows what the schema does not.
async fn refuses_by_webhook(site: &Site, namespace: &str) -> Result<(), String> {
    let patch = r#"{"spec":{"template":{"metadata":{"labels":{"name":"left"}}}}}"#;
    let patch = ["patch", "mcd", "demo-pool", "-n", namespace, "--type=merge", "-p", patch];
    match site.plane().kubectl(patch).await {
        Err(error) if error.to_string().contains("must match spec.selector") => Ok(()),
        Err(error) => Err(format!("{namespace}: not the webhook's refusal: {error}")),
        Ok(_) => Err(format!("{namespace}: the webhook was not asked")),
    }
}

/// Returns an error if a manager of these installations lacked a right.
pub(super) fn check_rights(site: &Site, namespaces: &[&str]) -> Result<(), String> {
    let log = AuditLog::from_start(site.plane().audit_log());
    for namespace in namespaces {
        let used = UsedRights::read(&log, namespace, "nodewright").map_err(|error| error.to_string())?;
        if !used.denied.is_empty() {
            return Err(format!("the manager of {namespace} lacks rights: {:?}", used.denied));
        }
        let site = site.directory.path().file_name().unwrap_or_default().to_string_lossy();
        used.record(&format!("{site}-{namespace}")).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the token of the manager must not be good for.
pub async fn token_secrets() -> Measured {
    let site = Site::start().await.map_err(text)?;
    let mut installation = site.install(&config("default"), DEFAULT_INSTALLATION).await.map_err(text)?;
    // A free name, which the manager would take again.
    installation.manager.kill_9();
    let certificate = ["delete", "secret", "nodewright-webhook-certificate", "-n", DEFAULT_INSTALLATION];
    site.plane().kubectl(certificate).await.map_err(text)?;
    let admin = ["create", "serviceaccount", "powerful", "-n", DEFAULT_INSTALLATION];
    site.plane().kubectl(admin).await.map_err(text)?;
    let create = ["create", "secret", "generic", "cloud", "--from-literal=a=b", "-n", DEFAULT_INSTALLATION];
    site.plane().kubectl(create).await.map_err(text)?;
    let kubeconfig = format!("--kubeconfig={}", site.kubeconfig(DEFAULT_INSTALLATION).display());
    let token = r#"{"apiVersion":"v1","kind":"Secret","type":"kubernetes.io/service-account-token","metadata":{"NAME","annotations":{"kubernetes.io/service-account.name":"powerful"}}}"#;
    let bodies = [
        token.replace("NAME", r#"name":"stolen"#),
        token.replace("NAME", r#"name":"nodewright-webhook-certificate"#),
        token.replace("NAME", r#"generateName":"nodewright-webhook-certificate"#),
        r#"{"apiVersion":"v1","kind":"Secret","type":"Opaque","metadata":{"name":"mine"}}"#.to_owned(),
    ];
    let mut succeeded = vec![];
    let mut refused = 0;
    for (place, body) in bodies.iter().enumerate() {
        let path = site.kubeconfig(&format!("attack-{place}"));
        std::fs::write(&path, body).map_err(|error| error.to_string())?;
        let path = path.display().to_string();
        let create = [kubeconfig.as_str(), "create", "--validate=false", "-n", DEFAULT_INSTALLATION, "-f", &path];
        if place == 0 {
            await_enforcement(&site, &create).await?;
        }
        note(site.plane().kubectl(create).await, body, &mut refused, &mut succeeded)?;
    }
    let patches = [
        ("secret", "cloud", r#"{"data":{"a":"eA=="}}"#),
        ("secret", "cloud", r#"{"immutable":true}"#),
        ("secret", "cloud", r#"{"metadata":{"annotations":{"kubernetes.io/service-account.name":"powerful"}}}"#),
        (
            "namespace",
            DEFAULT_INSTALLATION,
            r#"{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}"#,
        ),
        ("namespace", DEFAULT_INSTALLATION, r#"{"metadata":{"annotations":{"nodewright.dev/allow-deletion":"true"}}}"#),
        ("namespace", "default", r#"{"metadata":{"labels":{"nodewright.dev/in-use":"true"}}}"#),
        ("crd", "machines.machine.sapcloud.io", r#"{"metadata":{"labels":{"in-use.nodewright.dev/another":"true"}}}"#),
        ("crd", "machines.machine.sapcloud.io", r#"{"spec":{"names":{"shortNames":["stolen"]}}}"#),
    ];
    for (kind, name, patch) in patches {
        let call = [kubeconfig.as_str(), "patch", kind, name, "-n", DEFAULT_INSTALLATION, "--type=merge", "-p", patch];
        note(site.plane().kubectl(call).await, patch, &mut refused, &mut succeeded)?;
    }
    let total = bodies.len() + patches.len();
    if succeeded.is_empty() {
        Ok(format!("{refused} of {total} abuses of the manager's rights refused"))
    } else {
        Err(format!("{refused} of {total} refused, not {}", succeeded.join(", ")))
    }
}

/// An API server enforces a policy some time after it was created.
async fn await_enforcement(site: &Site, refused: &[&str]) -> Result<(), String> {
    let attempt = [refused, &["--dry-run=server"]].concat();
    let is_refused = async || Ok(site.plane().kubectl(&attempt).await.is_err_and(|error| is_refusal(&error)));
    wait("the enforcement of the policies", is_refused).await
}

fn is_refusal(error: &impl std::fmt::Display) -> bool {
    error.to_string().contains("orbidden")
}

fn note(
    answer: Result<String, impl std::fmt::Display>,
    what: &str,
    refused: &mut usize,
    succeeded: &mut Vec<String>,
) -> Result<(), String> {
    match answer {
        Ok(_) => succeeded.push(what.to_owned()),
        Err(error) if is_refusal(&error) => *refused += 1,
        Err(error) => return Err(format!("no refusal: {error}")),
    }
    Ok(())
}

async fn is_labelled(site: &Site) -> Result<bool, String> {
    let of = async |object: &str, label: &str| {
        let path = format!("jsonpath={{.metadata.labels.{}}}", label.replace('.', "\\."));
        site.plane().kubectl(["get", object, "-o", path.as_str()]).await.map(|value| value == "true").map_err(text)
    };
    let of_definition = "in-use.nodewright.dev/nodewright-system";
    Ok(of("namespace/nodewright-system", "nodewright.dev/in-use").await?
        && of("crd/machines.machine.sapcloud.io", of_definition).await?
        && of("crd/machineconfigs.machineconfiguration.openshift.io", of_definition).await?)
}

async fn count(site: &Site) -> Result<usize, String> {
    let machines = machines(&site.plane().client(), DEFAULT_INSTALLATION).await.map_err(text)?;
    Ok(machines.iter().filter(|machine| !machine.is_deleting()).count())
}

async fn expect_machines(site: &Site, wanted: usize) -> Result<(), String> {
    let (machines, vms) = (count(site).await?, site.vms(DEFAULT_INSTALLATION).await.map_err(text)?);
    let as_wanted = machines == wanted && vms == wanted;
    if as_wanted { Ok(()) } else { Err(format!("{machines} machines and {vms} VMs are left of {wanted}")) }
}

pub(super) async fn wait(what: &str, mut is_there: impl AsyncFnMut() -> Result<bool, String>) -> Result<(), String> {
    let since = Instant::now();
    while !is_there().await? {
        if since.elapsed() > TIMEOUT {
            return Err(format!("{what} did not come within {TIMEOUT:?}"));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(())
}

pub(super) fn text(error: impl Into<DevclusterError>) -> String {
    let error: DevclusterError = error.into();
    with_causes(&error)
}
