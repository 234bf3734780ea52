//! A VM comes into being once, whatever happens to the calls.

use std::{net::IpAddr, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::Code;
use nodewright_driver::{Instance, MachineRequest};
use tokio::time::{sleep, timeout};

use crate::context::{Checked, Context, DropAt, at_once, broken, ensure};

/// A call that waits more often than this is not dropped at its later points.
const MOST_POLLS: usize = 40;
/// How long a VM is looked for that may not appear any more.
const LATE: Duration = Duration::from_secs(10);

/// The longest name of a Node, and of a Machine.
const LONGEST_NAME: usize = 253;
/// The longest host name, and the longest value of a label.
const LONGEST_LABEL: usize = 63;

pub(super) async fn create(context: &Context<'_>) -> Checked {
    let before = context.vms().await?;
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    let (id, node, prefix) = (&made.provider_id, &made.node_name, context.fixture.provider_id_prefix());
    ensure(id.len() > prefix.len() && id.starts_with(prefix), || {
        format!("the provider id is {id:?}, and should begin with {prefix:?}")
    })?;
    ensure(is_node_name(node), || format!("the name of the Node is {node:?}, and no Node can have that name"))?;
    context.only_new(&before, &[&made]).await?;
    same(&made, &context.find(&request).await?, "status")
}

pub(super) async fn addresses(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    for NodeAddress { type_, address } in made.addresses.into_iter().chain(context.find(&request).await?.addresses) {
        let is_valid = match type_.as_str() {
            "InternalIP" | "ExternalIP" => address.parse::<IpAddr>().is_ok(),
            "Hostname" | "InternalDNS" | "ExternalDNS" => is_node_name(&address),
            _ => false,
        };
        ensure(is_valid, || format!("no Node has {address:?} as its {type_:?}"))?;
    }
    Ok(())
}

pub(super) async fn create_again(context: &Context<'_>) -> Checked {
    let before = context.vms().await?;
    let request = context.machine("m");
    let made = context.make(&mut request.clone()).await?;
    for _ in 0..2 {
        same(&made, &context.make(&mut request.clone()).await?, "a second create")?;
    }
    context.only_new(&before, &[&made]).await
}

pub(super) async fn create_after_restart(context: &Context<'_>) -> Checked {
    let before = context.vms().await?;
    let request = context.machine("m");
    let made = context.make(&mut request.clone()).await?;
    match context.restarted().create(&request).await {
        Ok(again) => same(&made, &again, "create of another process")?,
        Err(error) => return broken(format!("create of another process fails: {error}")),
    }
    context.only_new(&before, &[&made]).await
}

pub(super) async fn create_at_once(context: &Context<'_>) -> Checked {
    let before = context.vms().await?;
    let (request, other) = (context.machine("m"), context.restarted());
    let answers = at_once(&[&context.calls, &other], async |caller| caller.create(&request).await).await;
    let mut first: Option<Instance> = None;
    for answer in answers {
        match (answer, &first) {
            (Ok(made), Some(first)) => same(first, &made, "another create at the same time")?,
            (Ok(made), None) => first = Some(made),
            (Err(error), _) if error.is_passing() || error.code == Code::AlreadyExists => {}
            (Err(error), _) => return broken(format!("one of several creates at once fails: {error}")),
        }
    }
    let made = match first {
        Some(made) => made,
        None => context.make(&mut request.clone()).await?,
    };
    context.only_new(&before, &[&made]).await
}

pub(super) async fn create_dropped(context: &Context<'_>) -> Checked {
    for lingers in [false, true] {
        for polls in 0..MOST_POLLS {
            let before = context.vms().await?;
            let mut request = context.machine(format!("{}-{polls}", if lingers { "late" } else { "soon" }));
            let drop_at = DropAt { polls, lingers };
            let ended = drop_at.apply(context.calls.driver.create(request.clone())).await;
            if ended.is_some() {
                break;
            }
            let made = context.make(&mut request).await?;
            context.only_new(&before, &[&made]).await.map_err(|finding| finding.after(&format!("{drop_at:?}")))?;
            context.remove(&request).await?;
        }
    }
    Ok(())
}

pub(super) async fn create_late(context: &Context<'_>) -> Checked {
    let hidden = context.calls.driver.consistency();
    let calls = [0, 1, 2, 4].map(|polls| {
        let call = context.calls.driver.create(context.machine(polls));
        timeout(hidden / 2, DropAt { polls, lingers: false }.apply(call))
    });
    join_all(calls).await;
    sleep(hidden).await;
    let settled = context.vms().await?;
    sleep(context.calls.driver.deadline().min(LATE)).await;
    let late = context.vms().await?;
    let late: Vec<&String> = late.difference(&settled).collect();
    ensure(late.is_empty(), || format!("{late:?} appeared more than {hidden:?} after create was dropped"))
}

pub(super) async fn initialize(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    for _ in 0..2 {
        match context.calls.initialize(&request).await {
            Ok(instance) => same(&made, &instance, "initialize")?,
            Err(error) if error.code == Code::Unimplemented => {}
            Err(error) => return broken(format!("initialize of a new VM fails: {error}")),
        }
    }
    Ok(())
}

pub(super) async fn names(context: &Context<'_>) -> Checked {
    let run = context.prefix.split('-').next().unwrap_or_default().trim_start_matches('t');
    let long = |length: usize, last: char| format!("{run:x<length$}").chars().take(length - 1).chain([last]).collect();
    let names: [String; 8] = [
        format!("0{run}"),
        format!("{run}a.b"),
        format!("{run}a-b"),
        format!("{run}a--b"),
        long(LONGEST_LABEL, 'a'),
        long(LONGEST_LABEL, 'b'),
        long(LONGEST_NAME, 'a'),
        long(LONGEST_NAME, 'b'),
    ];
    let mut accepted: Vec<(MachineRequest, Instance)> = vec![];
    for name in names {
        let request = context.named(&name, context.class());
        match context.calls.create(&request).await {
            Ok(made) => accepted.push((request, made)),
            Err(error) if error.code == Code::InvalidArgument => {}
            Err(error) => return broken(format!("create of a machine named {name:?} fails: {error}")),
        }
    }
    for (at, (request, made)) in accepted.iter().enumerate() {
        let mut others = accepted[..at].iter().map(|(_, other)| other);
        ensure(
            !others.any(|other| other.provider_id == made.provider_id || other.node_name == made.node_name),
            || format!("machine {:?} has the VM or the Node of another one", request.name),
        )?;
        same(made, &context.find(request).await?, &format!("status of a machine named {:?}", request.name))?;
    }
    Ok(())
}

pub(super) async fn notes(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    for notes in ["", "{\"version\": 99}", "\u{0}\u{1F980}"] {
        let noted = MachineRequest { last_known_state: notes.to_owned(), ..request.clone() };
        let found = context.find(&noted).await?;
        same(&made, &found, &format!("status with the notes {notes:?}"))?;
        let mut new = MachineRequest { last_known_state: notes.to_owned(), ..context.machine(notes.len()) };
        context.make(&mut new).await?;
        new.last_known_state = notes.to_owned();
        context.remove(&new).await?;
        context.gone(&new).await?;
    }
    Ok(())
}

/// Fails if two answers are of different VMs.
pub(super) fn same(made: &Instance, found: &Instance, what: &str) -> Checked {
    let key = |instance: &Instance| (instance.provider_id.clone(), instance.node_name.clone());
    ensure(key(made) == key(found), || format!("create answers with {:?}, and {what} with {:?}", key(made), key(found)))
}

/// Whether it is a DNS subdomain.
fn is_node_name(name: &str) -> bool {
    let is_allowed =
        |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || "-.".contains(character);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_allowed) && !name.starts_with(['-', '.'])
}
