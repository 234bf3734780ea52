//! A provider id is a claim: only the tags of a VM prove whose it is.

use nodewright_api::Code;
use nodewright_driver::{Instance, MachineRequest, Mismatch, OrphanRequest, Result};

use tokio::time::sleep;

use super::create::same;
use crate::context::{Checked, Context, broken, ensure, restored, skipped};

pub(super) async fn other_clusters_vm(context: &Context<'_>) -> Checked {
    let theirs = context.fixture.class(&format!("{}-theirs", context.prefix));
    let mut other = context.named(&format!("{}-m", context.prefix), theirs);
    let made = context.make(&mut other).await?;
    context.find(&other).await?;
    let ours = context.machine("m");
    if let Ok(found) = context.calls.status(&ours).await {
        return broken(format!("status finds {}, and it is another cluster's", found.provider_id));
    }
    drop(context.calls.delete(&ours).await);
    context.stays(&made, "it is another cluster's VM of the same name").await?;
    left_alone(context, &ours, &made, Mismatch::Cluster).await?;
    match context.calls.create(&ours).await {
        Ok(own) if own.provider_id == made.provider_id => broken("create answers with another cluster's VM"),
        Err(error) if error.is_passing() => {
            broken(format!("create fails with a code that passes, and it will not: {error}"))
        }
        _ => context.stays(&made, "it is another cluster's VM of the same name").await,
    }
}

pub(super) async fn other_machines_vm(context: &Context<'_>) -> Checked {
    let (mut other, mut request) = (context.machine("other"), context.machine("m"));
    let made = context.make(&mut other).await?;
    context.find(&other).await?;
    left_alone(context, &request, &made, Mismatch::Machine).await?;
    let own = context.make(&mut request).await?;
    context.find(&request).await?;
    let wrong = MachineRequest { provider_id: Some(made.provider_id.clone()), ..request.clone() };
    same(&own, &context.find(&wrong).await?, "status of a machine that names another's VM")?;
    mismatch("delete", context.calls.delete(&wrong).await.map(drop), Mismatch::Machine)?;
    context.gone(&request).await?;
    context.stays(&made, "it is another machine's").await
}

pub(super) async fn other_uids_vm(context: &Context<'_>) -> Checked {
    if !context.calls.driver.stores_owner() {
        return skipped("the provider's VMs keep no token");
    }
    let mut other = context.machine("m");
    let made = context.make(&mut other).await?;
    context.find(&other).await?;
    let ours = restored(&other);
    drop(context.calls.delete(&ours).await);
    context.stays(&made, "it was made for another machine of the name").await?;
    for is_proven in [false, true] {
        let claims = MachineRequest { provider_id: other.provider_id.clone(), is_proven, ..ours.clone() };
        mismatch("delete", context.calls.delete(&claims).await.map(drop), Mismatch::Machine)?;
        context.stays(&made, "it was made for another machine of the name").await?;
    }
    let adopted_uid = Some(other.uid.clone());
    let adopts = MachineRequest { adopted_uid, provider_id: other.provider_id.clone(), is_proven: true, ..ours };
    same(&made, &context.find(&adopts).await?, "status of the machine that has adopted the VM")?;
    context.remove(&adopts).await?;
    context.gone(&other).await
}

pub(super) async fn untagged_vm(context: &Context<'_>) -> Checked {
    let Some(id) = context.fixture.untagged_vm().await? else {
        return skipped("the fixture cannot make a VM without tags");
    };
    let listed = context.listed(context.class()).await?;
    ensure(listed.iter().all(|(listed, _)| *listed != id), || format!("list shows VM {id}, which has no tags"))?;
    let vm = Instance { provider_id: id, ..Instance::default() };
    left_alone(context, &context.machine("m"), &vm, Mismatch::Machine).await
}

pub(super) async fn orphan_of_others(context: &Context<'_>) -> Checked {
    let theirs = context.fixture.class(&format!("{}-theirs", context.prefix));
    let (mut other, mut foreign) = (context.machine("other"), context.named(&format!("{}-m", context.prefix), theirs));
    for request in [&mut other, &mut foreign] {
        let made = context.make(request).await?;
        context.find(request).await?;
        let orphan = OrphanRequest {
            provider_id: made.provider_id.clone(),
            machine: format!("{}-m", context.prefix),
            class: context.class(),
        };
        match context.calls.delete_orphan(orphan).await {
            Err(error) if error.code == Code::Unimplemented => return skipped("delete_orphan is Unimplemented"),
            Err(error) if error.mismatch.is_some() => {}
            answer => return broken(format!("delete_orphan of another's VM answers {answer:?}, and not a Mismatch")),
        }
        context.stays(&made, "its tags are not those of the orphan").await?;
    }
    Ok(())
}

pub(super) async fn hidden_vm(context: &Context<'_>) -> Checked {
    if context.fixture.hide_next_vm().await?.is_none() {
        return skipped("the fixture cannot hide a VM");
    }
    let mut other = context.machine("other");
    let made = context.make(&mut other).await?;
    let claims = MachineRequest { provider_id: Some(made.provider_id.clone()), ..context.machine("m") };
    drop(context.calls.delete(&claims).await);
    sleep(context.calls.driver.consistency()).await;
    context.find(&other).await?;
    context.stays(&made, "nothing proved that it is the machine's that names it").await
}

pub(super) async fn other_providers_id(context: &Context<'_>) -> Checked {
    let claims = MachineRequest { provider_id: Some("elsewhere:///vm-1".to_owned()), ..context.machine("m") };
    mismatch("status", context.calls.status(&claims).await.map(drop), Mismatch::Machine)?;
    mismatch("delete", context.calls.delete(&claims).await.map(drop), Mismatch::Machine)
}

/// A Machine without a VM names one that is not its own.
async fn left_alone(context: &Context<'_>, request: &MachineRequest, vm: &Instance, expected: Mismatch) -> Checked {
    let id = &vm.provider_id;
    // An earlier proof does not count while the tags name another owner.
    for is_proven in [false, true] {
        let claims = MachineRequest { provider_id: Some(id.clone()), is_proven, ..request.clone() };
        mismatch("status", context.calls.status(&claims).await.map(drop), expected)?;
        mismatch("delete", context.calls.delete(&claims).await.map(drop), expected)?;
    }
    context.stays(vm, "it is not the machine's that names it").await
}

fn mismatch(call: &str, answer: Result<()>, expected: Mismatch) -> Checked {
    match answer {
        Ok(()) => broken(format!("the machine names a VM that is not its own, and {call} succeeds")),
        Err(error) if error.code == Code::Unimplemented => skipped(format!("{call} is Unimplemented")),
        Err(error) => ensure(error.mismatch == Some(expected) && error.code != Code::NotFound, || {
            format!("the machine names a VM that is not its own, and {call} says {:?}: {error}", error.mismatch)
        }),
    }
}
