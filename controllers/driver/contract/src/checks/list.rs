//! What the VMs of a cluster are.

use std::collections::BTreeSet;

use nodewright_driver::{Class, Instance};

use crate::context::{Checked, Context, broken, ensure, eventually};

pub(super) async fn list(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    let named = shown(context, context.class(), &made).await?;
    ensure(named == request.name, || {
        format!("list says that VM {} is of machine {named:?}, and it is of {:?}", made.provider_id, request.name)
    })?;
    context.remove(&request).await?;
    context.gone(&request).await?;
    let listed = context.listed(context.class()).await?;
    ensure(listed.iter().all(|(id, _)| *id != made.provider_id), || {
        format!("list shows the deleted VM {}", made.provider_id)
    })
}

pub(super) async fn list_of_cluster(context: &Context<'_>) -> Checked {
    let theirs = context.fixture.class(&format!("{}-theirs", context.prefix));
    let mut other = context.named(&format!("{}-theirs", context.prefix), theirs.clone());
    let made = context.make(&mut other).await?;
    shown(context, theirs, &made).await?;
    let listed = context.listed(context.class()).await?;
    ensure(listed.is_empty(), || format!("list shows {listed:?}, and they are of another cluster"))
}

pub(super) async fn list_whole(context: &Context<'_>) -> Checked {
    let made = context.make_many(context.fixture.list_size()).await?;
    let mut missing = made.len();
    let complete =
        eventually(context.calls.driver.consistency(), async || match context.listed(context.class()).await {
            Ok(listed) => {
                let listed: BTreeSet<String> = listed.into_iter().map(|(id, _)| id).collect();
                missing = made.difference(&listed).count();
                (missing == 0).then_some(Ok(()))
            }
            Err(finding) => Some(Err(finding)),
        });
    let complete = complete.await;
    complete.unwrap_or_else(|| broken(format!("there are {} VMs, and list forgets {missing}", made.len())))
}

/// The name of the Machine whose VM a list shows.
async fn shown(context: &Context<'_>, class: Class, made: &Instance) -> Checked<String> {
    let found = eventually(context.calls.driver.consistency(), async || match context.listed(class.clone()).await {
        Ok(listed) => listed.into_iter().find(|(id, _)| *id == made.provider_id).map(|(_, name)| Ok(name)),
        Err(finding) => Some(Err(finding)),
    });
    found.await.unwrap_or_else(|| broken(format!("list does not show VM {}", made.provider_id)))
}
