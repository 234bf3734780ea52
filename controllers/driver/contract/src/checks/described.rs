//! What a Node gets where no cloud controller manager runs.

use nodewright_api::{Code, validation::is_label};
use nodewright_driver::{Instance, Power, UnownedRequest};

use crate::context::{Checked, Context, broken, ensure, eventually, skipped};

pub(super) async fn described(context: &Context<'_>) -> Checked {
    if !context.calls.driver.describes_instances() {
        return skipped("the driver describes no VMs");
    }
    let mut request = context.machine("m");
    context.make(&mut request).await?;
    let described = eventually(context.fixture.eventual_timeout(), async || {
        let found = context.find(&request).await;
        found.map_or_else(|finding| Some(Err(finding)), |found| is_complete(&found).then_some(Ok(found)))
    });
    let Some(found) = described.await else {
        return broken("status answers without an address or an instance type".to_owned());
    };
    let found = found?;
    let metadata = found.metadata.clone().unwrap_or_default();
    let known = [metadata.instance_type, metadata.zone, metadata.region].into_iter().flatten();
    let mut all: Vec<_> = known.map(|value| ("key".to_owned(), value)).collect();
    all.extend(metadata.labels);
    ensure(all.iter().all(|(key, value)| is_label(key, value)), || format!("not all of {all:?} are labels of a Node"))?;
    ensure(found.power != Power::Stopped, || "a new VM counts as stopped".to_owned())
}

/// A provider may have no zones or regions.
fn is_complete(found: &Instance) -> bool {
    let metadata = found.metadata.as_deref();
    metadata.is_some_and(|it| it.instance_type.is_some()) && !found.addresses.is_empty()
}

pub(super) async fn power(context: &Context<'_>) -> Checked {
    if !context.calls.driver.describes_instances() {
        return skipped("the driver describes no VMs");
    }
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    if context.fixture.stop_vm(&made.provider_id).await?.is_none() {
        return skipped("the fixture cannot stop a VM");
    }
    let stopped = eventually(context.fixture.eventual_timeout(), async || match context.calls.status(&request).await {
        // That such a VM is found at all is a rule of its own.
        Err(error) if error.code == Code::NotFound => Some(()),
        Ok(found) if found.power == Power::Stopped => Some(()),
        _ => None,
    });
    let text = || "the VM was switched off, and status does not say that it is stopped".to_owned();
    stopped.await.map_or_else(|| broken(text()), Ok)
}

pub(super) async fn unowned(context: &Context<'_>) -> Checked {
    if !context.calls.driver.describes_unowned() {
        return skipped("the driver describes no VMs but those of machines");
    }
    let about = |id: &str| UnownedRequest { provider_id: id.to_owned(), class: context.class() };
    let refused = async |id: &str, expected| match context.calls.describe_unowned(about(id)).await {
        Err(error) if error.code == expected => Ok(()),
        answer => broken(format!("describe_unowned of {id} is to fail with {expected}, and answers {answer:?}")),
    };
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    context.find(&request).await?;
    refused(&made.provider_id, Code::FailedPrecondition).await?;
    refused("elsewhere:///vm-1", Code::NotFound).await?;
    context.remove(&request).await?;
    context.gone(&request).await?;
    refused(&made.provider_id, Code::NotFound).await?;
    let Some(id) = context.fixture.untagged_vm().await? else {
        return skipped("the fixture cannot make a VM without tags");
    };
    let described = eventually(context.fixture.eventual_timeout(), async || {
        match context.calls.describe_unowned(about(&id)).await {
            Err(error) if error.code == Code::NotFound || error.is_passing() => None,
            Ok(found) if !is_complete(&found) => None,
            answer => Some(answer),
        }
    });
    match described.await {
        Some(Ok(found)) => ensure(found.provider_id == id, || format!("{id} is described as {}", found.provider_id)),
        Some(Err(error)) => broken(format!("describe_unowned of a VM without tags fails: {error}")),
        None => broken("describe_unowned finds a VM without tags never, or without an address or an instance type"),
    }
}
