//! What a driver says of a class, and does with one that is wrong.

use nodewright_api::{Code, identity_value};
use nodewright_driver::{Class, MachineRequest};
use serde_json::Value;

use crate::context::{Checked, Context, broken, ensure, skipped};

pub(super) async fn valid_class(context: &Context<'_>) -> Checked {
    let faults = context.calls.validate(&context.class().provider_spec).await?;
    ensure(faults.is_empty(), || format!("validate says of the fixture's class: {faults:?}"))
}

pub(super) async fn invalid_class(context: &Context<'_>) -> Checked {
    let specs = context.fixture.invalid_specs(&context.prefix);
    if specs.is_empty() {
        return skipped("the fixture has no invalid spec");
    }
    let before = context.vms().await?;
    for (number, invalid) in specs.into_iter().enumerate() {
        let (path, spec) = (invalid.path, invalid.spec);
        let paths: Vec<String> = context.calls.validate(&spec).await?.into_iter().map(|(path, _)| path).collect();
        ensure(paths.iter().any(|named| named == path), || {
            format!("field {path:?} is wrong, and validate names {paths:?}")
        })?;
        let request = context.machine(number);
        let request = MachineRequest { class: Class { provider_spec: spec, ..request.class }, ..request };
        match context.calls.create(&request).await {
            Ok(made) => return broken(format!("field {path:?} is wrong, and create makes {}", made.provider_id)),
            Err(error) if error.code == Code::InvalidArgument && error.message.contains(path) => {}
            Err(error) => return broken(format!("field {path:?} is wrong, and create says: {error}")),
        }
    }
    context.only_new(&before, &[]).await
}

pub(super) async fn identity(context: &Context<'_>) -> Checked {
    let spec: Value = match context.class().provider_spec.parse() {
        Ok(spec) => spec,
        Err(error) => return broken(format!("the fixture's class cannot be read: {error}")),
    };
    let fields = context.calls.driver.identity();
    match fields.iter().find(|path| identity_value(&spec, path).is_null()) {
        Some(path) => broken(format!("identity has {path:?}, and the fixture's class has no such field")),
        None => Ok(()),
    }
}

pub(super) async fn broken_class(context: &Context<'_>) -> Checked {
    let identity = context.calls.driver.identity();
    let specs = context.fixture.invalid_specs(&context.prefix);
    let Some(invalid) = specs.into_iter().find(|invalid| !identity.contains(&invalid.path)) else {
        return skipped("the fixture has no invalid spec with a fault outside of identity");
    };
    let mut request = context.machine("m");
    let made = context.make(&mut request).await?;
    let path = invalid.path;
    request.class.provider_spec = invalid.spec;
    let found = context.find(&request).await?;
    ensure(found.provider_id == made.provider_id, || {
        format!("field {path:?} is wrong since the VM was made, and status finds {}", found.provider_id)
    })?;
    let listed = context.listed(request.class.clone()).await?;
    ensure(listed.iter().any(|(id, _)| *id == made.provider_id), || {
        format!("field {path:?} is wrong since the VM was made, and list shows {listed:?}")
    })?;
    context.remove(&request).await?;
    context.gone(&request).await
}

pub(super) async fn rejected_credentials(context: &Context<'_>) -> Checked {
    let Some(class) = context.fixture.rejected_class(&context.prefix) else {
        return skipped("the fixture has no class whose credentials are rejected");
    };
    let mut known = context.machine("m");
    let made = context.make(&mut known).await?;
    let new = MachineRequest { class: class.clone(), ..context.machine("new") };
    known.class = class.clone();
    let answers = [
        ("create", context.calls.create(&new).await.err()),
        ("status", context.calls.status(&known).await.err()),
        ("delete", context.calls.delete(&known).await.err()),
        ("list", context.calls.list(class).await.err()),
    ];
    for (call, error) in answers {
        let Some(error) = error else { return broken(format!("{call} succeeds with credentials that are rejected")) };
        let is_reported = matches!(error.code, Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument);
        ensure(is_reported, || format!("with credentials that are rejected, {call} says: {error}"))?;
    }
    context.stays(&made, "the credentials were rejected").await
}
