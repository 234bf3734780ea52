//! What is said while the provider is out of order: nothing that would be believed.

use futures::join;
use nodewright_api::Code;
use nodewright_driver::DriverError;

use crate::{
    Outage,
    context::{Checked, Context, broken, ensure, restored, skipped},
};

pub(super) async fn silent_provider(context: &Context<'_>) -> Checked {
    for (call, error) in during(context, Outage::Silent).await? {
        let Some(error) = error else { return broken(format!("the provider does not answer, and {call} succeeds")) };
        ensure(error.is_passing(), || format!("the provider does not answer, and {call} says: {error}"))?;
    }
    Ok(())
}

pub(super) async fn failing_provider(context: &Context<'_>) -> Checked {
    for (call, error) in during(context, Outage::Failing).await? {
        let Some(error) = error else { return broken(format!("the provider fails, and {call} succeeds")) };
        let is_believed = matches!(error.code, Code::NotFound | Code::Unimplemented | Code::InvalidArgument);
        ensure(!is_believed && error.mismatch.is_none(), || format!("the provider fails, and {call} says: {error}"))?;
    }
    Ok(())
}

pub(super) async fn no_capacity(context: &Context<'_>) -> Checked {
    let (mut known, new) = (context.machine("m"), context.machine("new"));
    context.make(&mut known).await?;
    if context.fixture.begin_outage(Outage::Full).await?.is_none() {
        return skipped("the fixture cannot take the provider's capacity away");
    }
    let (refused, found) = join!(context.calls.create(&new), context.calls.status(&known));
    context.fixture.end_outage().await?;
    let Err(error) = refused else { return broken("there is no capacity, and create succeeds") };
    ensure(error.code == Code::ResourceExhausted, || format!("there is no capacity, and create says: {error}"))?;
    let zone = error.exhausted.and_then(|exhausted| exhausted.zone);
    ensure(zone.is_none_or(|zone| !zone.is_empty()), || "the exhausted zone has no name".to_owned())?;
    ensure(found.is_ok(), || "there is no capacity for more, and status fails".to_owned())?;
    context.make(&mut new.clone()).await.map(drop)
}

type Failures = [(&'static str, Option<DriverError>); 6];

/// The failures of all calls during an outage: with the provider id, and without it, when the VM has to be looked for.
async fn during(context: &Context<'_>, outage: Outage) -> Checked<Failures> {
    let (mut known, new) = (context.machine("m"), context.machine("new"));
    let made = context.make(&mut known).await?;
    if context.fixture.begin_outage(outage).await?.is_none() {
        return skipped("the fixture cannot make the provider fail");
    }
    let (calls, sought) = (&context.calls, restored(&known));
    let (create, status, delete, list, status_by_name, delete_by_name) = join!(
        calls.create(&new),
        calls.status(&known),
        calls.delete(&known),
        calls.list(context.class()),
        calls.status(&sought),
        calls.delete(&sought)
    );
    context.fixture.end_outage().await?;
    context.stays(&made, "all requests were without effect").await?;
    Ok([
        ("create", create.err()),
        ("status", status.err()),
        ("delete", delete.err()),
        ("list", list.err()),
        ("status by name", status_by_name.err()),
        ("delete by name", delete_by_name.err()),
    ])
}
