//! A VM is found, and one that does not exist is not.

use nodewright_api::Code;
use nodewright_driver::{MachineRequest, Mismatch};
use tokio::time::sleep;

use super::create::same;
use crate::context::{Checked, Context, broken, ensure, restored, skipped};

pub(super) async fn status_unknown(context: &Context<'_>) -> Checked {
    match context.calls.status(&context.machine("m")).await {
        Err(error) if error.code == Code::NotFound => Ok(()),
        Err(error) if error.code == Code::Unimplemented => skipped("status is Unimplemented"),
        Err(error) => broken(format!("there is no VM, and status says: {error}")),
        Ok(found) => broken(format!("there is no VM, and status finds {}", found.provider_id)),
    }
}

pub(super) async fn status_by_name(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    let found = context.find(&restored(&request)).await?;
    same(&made, &found, "status of the restored machine")?;
    let reported = found.owner_uid.as_deref();
    ensure(!context.calls.driver.stores_owner() || reported == Some(request.uid.as_str()), || {
        format!("the VM was made for UID {}, and status says {reported:?}", request.uid)
    })
}

pub(super) async fn status_of_stopped(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    if context.fixture.stop_vm(&made.provider_id).await?.is_none() {
        return skipped("the fixture cannot stop a VM");
    }
    same(&made, &context.find(&request).await?, "status of the stopped VM")
}

pub(super) async fn several_vms(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let first = context.make(&mut request).await?;
    let mut second = restored(&request);
    let other = match context.calls.create(&second).await {
        Ok(other) if other.provider_id != first.provider_id => other,
        _ => return skipped("create with another UID makes no second VM"),
    };
    second.provider_id = Some(other.provider_id.clone());
    // Both show after a while, and then they stay.
    sleep(context.calls.driver.consistency()).await;
    let stores_owner = context.calls.driver.stores_owner();
    match context.calls.status(&restored(&request)).await {
        Err(error) if stores_owner && error.mismatch == Some(Mismatch::Machine) => {}
        Err(error) if !stores_owner && error.code == Code::OutOfRange => {}
        Err(error) => return broken(format!("there are two VMs, and status says: {error}")),
        Ok(found) => return broken(format!("there are two VMs, and status finds {}", found.provider_id)),
    }
    if stores_owner {
        let bare = MachineRequest { provider_id: None, is_proven: false, ..request.clone() };
        same(&first, &context.find(&bare).await?, "status of the first of two machines of one name")?;
    }
    context.remove(&request).await?;
    context.gone(&request).await?;
    if stores_owner {
        context.stays(&other, "it was made for another machine of the name").await?;
        context.remove(&second).await?;
    }
    let gone = context.gone(&second).await;
    ensure(gone.is_ok(), || format!("VM {} stays when the machine is deleted", other.provider_id))
}
