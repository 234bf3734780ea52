//! A VM goes, and only that one.

use nodewright_api::Code;
use nodewright_driver::{MachineRequest, OrphanRequest};
use tokio::time::sleep;

use crate::context::{Checked, Context, DropAt, broken, ensure, eventually, restored, skipped};

const MOST_POLLS: usize = 40;

pub(super) async fn delete(context: &Context<'_>) -> Checked {
    let (mut request, mut other) = (context.machine("m"), context.machine("other"));
    let made = context.make(&mut request).await?;
    let stays = context.make(&mut other).await?;
    context.remove(&request).await?;
    let answer = eventually(context.fixture.eventual_timeout(), async || match context.calls.status(&request).await {
        Err(error) if error.is_passing() => None,
        Ok(found) if found.provider_id == made.provider_id => None,
        other => Some(other),
    });
    match answer.await {
        Some(Err(error)) if error.code == Code::NotFound => {}
        Some(Err(error)) if error.code == Code::Unimplemented => return skipped("status is Unimplemented"),
        Some(Err(error)) => return broken(format!("status of a deleted VM says: {error}")),
        Some(Ok(found)) => return broken(format!("status of a deleted VM finds {}", found.provider_id)),
        None => return broken(format!("status still finds VM {} after its deletion", made.provider_id)),
    }
    let vms = context.vms().await?;
    ensure(!vms.contains(&made.provider_id), || {
        format!("status says that VM {} is gone, and it is not", made.provider_id)
    })?;
    context.stays(&stays, "another machine's was to be deleted").await
}

pub(super) async fn delete_again(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    context.make(&mut request).await?;
    for _ in 0..3 {
        context.remove(&request).await?;
    }
    context.gone(&request).await
}

pub(super) async fn delete_absent(context: &Context<'_>) -> Checked {
    context.remove(&context.machine("none")).await?;
    let mut request = context.machine("m");
    // Its VM is gone, and another process is asked to delete it.
    context.make(&mut request).await?;
    context.remove(&request).await?;
    context.gone(&request).await?;
    match context.restarted().delete(&request).await {
        Err(error) if error.code != Code::NotFound => broken(format!("the VM is gone, and delete says: {error}")),
        _ => Ok(()),
    }
}

pub(super) async fn delete_by_name(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    context.make(&mut request).await?;
    context.find(&request).await?;
    let adopted_uid = Some(request.uid.clone());
    context.remove(&MachineRequest { adopted_uid, ..restored(&request) }).await?;
    context.gone(&request).await
}

pub(super) async fn delete_dropped(context: &Context<'_>) -> Checked {
    for lingers in [false, true] {
        for polls in 0..MOST_POLLS {
            let mut request = context.machine(format!("{}-{polls}", if lingers { "late" } else { "soon" }));
            context.make(&mut request).await?;
            let ended = DropAt { polls, lingers }.apply(context.calls.driver.delete(request.clone())).await;
            if ended.is_some() {
                break;
            }
            context.remove(&request).await?;
            context.gone(&request).await?;
        }
    }
    Ok(())
}

pub(super) async fn delete_orphan(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let first = context.make(&mut request).await?;
    let second = match context.calls.create(&restored(&request)).await {
        Ok(second) if second.provider_id != first.provider_id => Some(second),
        _ => None,
    };
    sleep(context.calls.driver.consistency()).await;
    let orphan = OrphanRequest {
        provider_id: first.provider_id.clone(),
        machine: request.name.clone(),
        class: request.class.clone(),
    };
    for _ in 0..2 {
        match context.calls.delete_orphan(orphan.clone()).await {
            Err(error) if error.code == Code::Unimplemented => return skipped("delete_orphan is Unimplemented"),
            Err(error) => return broken(format!("delete_orphan of VM {} fails: {error}", orphan.provider_id)),
            Ok(()) => context.gone(&request).await?,
        }
    }
    match second {
        Some(second) => context.stays(&second, "another VM of the same machine was the orphan").await,
        None => Ok(()),
    }
}

pub(super) async fn delete_hidden(context: &Context<'_>) -> Checked {
    if context.fixture.hide_next_vm().await?.is_none() {
        return skipped("the fixture cannot hide a VM");
    }
    let mut request = context.machine("m");
    context.make(&mut request).await?;
    context.remove(&request).await?;
    sleep(context.calls.driver.consistency()).await;
    context.gone(&request).await
}
