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
