//! The manager reads the Secrets that a class names, and no others.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use nodewright_api::{Machine, conditions};
use nodewright_e2e_scenarios::{Environment, Failure, TestResult, ensure, history::State, skip_on_external_cluster};

/// The content of other Secrets, decoded and encoded.
const FOREIGN: [&str; 2] = ["foreign-9f2c71d0a4", "Zm9yZWlnbi05ZjJjNzFkMGE0"];
/// The content of the class's Secret.
const OWN: &str = "own-5b1e08c3d7";
/// The number of bytes of a process's memory per read.
const CHUNK: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_secrets_the_manager_holds_the_one_that_a_class_names() -> TestResult {
    if skip_on_external_cluster("secrets", "the audit log is not at hand") {
        return Ok(());
    }
    let env = Environment::start("secrets").await?;
    create_foreign(&env, 1_000).await?;
    env.apply(&env.class("small").secret("own")).await?;
    env.apply(&env.pool("a", 1)).await?;
    env.wait_for_machines("the machine to miss its secret", misses_secret).await?;
    create(&env, "own", OWN).await?;
    env.wait_for_running(1).await?;

    let pid = env.manager().await?.pid().ok_or_else(|| Failure::new("the manager has no process"))?;
    ensure(remembers(pid, OWN)?, || "what the class names is not found, so the search proves nothing".to_owned())?;
    for text in FOREIGN {
        ensure(!remembers(pid, text)?, || "the manager has read a Secret that no class names".to_owned())?;
    }
    asked_by_name(&env).await?;

    env.kubectl("delete machinedeployment --all").await?;
    env.wait_for_nothing().await?;
    let finalizers = "get secret own -o jsonpath={.metadata.finalizers}";
    ensure(env.kubectl(finalizers).await?.contains("machine-controller"), || "a class names it".to_owned())?;
    env.kubectl("delete machineclass small").await?;
    env.wait_for("the secret to be let go", async || Ok(env.kubectl(finalizers).await?.is_empty())).await?;
    env.end().await
}

async fn create_foreign(env: &Environment, count: usize) -> TestResult {
    let names = (0..count).map(|index| format!("foreign-{index}"));
    let created = stream::iter(names).map(|name| async move { create(env, &name, FOREIGN[0]).await });
    created.buffer_unordered(16).try_collect().await
}

async fn create(env: &Environment, name: &str, user_data: &str) -> TestResult {
    let data = [("userData".to_owned(), ByteString(user_data.into()))];
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let secret = Secret { metadata, data: Some(data.into()), ..Secret::default() };
    Api::<Secret>::namespaced(env.client(), env.namespace()).create(&PostParams::default(), &secret).await?;
    Ok(())
}

fn misses_secret(machines: &State<Machine>) -> bool {
    machines.values().any(|machine| {
        let conditions = machine.status.iter().flat_map(|status| &status.conditions);
        let valid = conditions.into_iter().find(|it| it.type_ == conditions::machine::CONFIGURATION_VALID);
        valid.is_some_and(|valid| valid.reason.as_deref() == Some("SecretNotFound"))
    })
}

/// One list and one watch of the namespace return only metadata; all other requests are for the one name.
async fn asked_by_name(env: &Environment) -> TestResult {
    let requests = env.requests().await?;
    let reads = requests.entries().iter().filter(|it| it.resource == "secrets" && !it.is_write());
    let (named, other): (Vec<_>, Vec<_>) = reads.partition(|it| it.uri.contains("metadata.name%3Down%2C"));
    println!("{} reads of the Secret by its name, {} of metadata", named.len(), other.len());
    // A watch lasts for minutes.
    ensure(named.len() <= 4 && other.len() <= 4, || format!("{named:#?}\n{other:#?}"))
}

/// Whether the memory of a process contains a text.
fn remembers(pid: u32, text: &str) -> TestResult<bool> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut chunk = vec![0; CHUNK];
    for (mut at, end) in writable(&fs::read_to_string(format!("/proc/{pid}/maps"))?) {
        while at < end {
            // A region may be gone meanwhile, or be unreadable, like the kernel's own pages.
            let Ok(read) = memory.read_at(&mut chunk, at) else { break };
            let read = read.min(usize::try_from(end - at).unwrap_or(CHUNK));
            // The standard library's search is fast in a debug build, too.
            if String::from_utf8_lossy(&chunk[..read]).contains(text) {
                return Ok(true);
            }
            if read <= text.len() {
                break;
            }
            // The next chunk overlaps, to find a text across the border.
            at += (read - text.len()) as u64;
        }
    }
    Ok(false)
}

/// The writable regions of a process's memory.
fn writable(maps: &str) -> Vec<(u64, u64)> {
    let region = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let is_writable = fields.next()?.starts_with("rw");
        let parse = |text| u64::from_str_radix(text, 16).ok();
        Some((parse(start)?, parse(end)?)).filter(|_| is_writable)
    };
    maps.lines().filter_map(region).collect()
}
