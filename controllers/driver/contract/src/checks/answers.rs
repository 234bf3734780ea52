//! What all answers have in common. The calls of the checks before are evaluated, too.

use std::collections::BTreeSet;

use nodewright_driver::MachineRequest;
use parking_lot::Mutex;

use crate::context::{Checked, Context, ensure};

pub(super) async fn no_secrets(context: &Context<'_>) -> Checked {
    calls_of_all_kinds(context).await?;
    let leaks = seen(&context.notebook.leaks);
    ensure(leaks.is_empty(), || format!("a secret is in an answer of {leaks}"))
}

pub(super) async fn no_empty_errors(context: &Context<'_>) -> Checked {
    calls_of_all_kinds(context).await?;
    let malformed = seen(&context.notebook.malformed);
    ensure(malformed.is_empty(), || malformed)
}

pub(super) async fn no_blocking(context: &Context<'_>) -> Checked {
    calls_of_all_kinds(context).await?;
    let blocking = seen(&context.notebook.blocking);
    ensure(blocking.is_empty(), || format!("the thread of the manager stands still during {blocking}"))
}

fn seen(noted: &Mutex<BTreeSet<String>>) -> String {
    noted.lock().iter().cloned().collect::<Vec<_>>().join(", ")
}

/// Calls that succeed and calls that fail: what they answer is noted.
async fn calls_of_all_kinds(context: &Context<'_>) -> Checked {
    let mut request = context.machine("m");
    context.make(&mut request).await?;
    drop(context.calls.status(&request).await);
    drop(context.calls.initialize(&request).await);
    drop(context.calls.list(request.class.clone()).await);
    drop(context.calls.status(&context.machine("none")).await);
    let claims = MachineRequest { provider_id: request.provider_id.clone(), ..context.machine("other") };
    drop(context.calls.status(&claims).await);
    drop(context.calls.delete(&claims).await);
    for invalid in context.fixture.invalid_specs(&context.prefix) {
        let mut broken = context.machine("broken");
        broken.class.provider_spec = invalid.spec;
        drop(context.calls.create(&broken).await);
    }
    if let Some(class) = context.fixture.rejected_class(&context.prefix) {
        drop(context.calls.create(&MachineRequest { class, ..context.machine("rejected") }).await);
    }
    context.remove(&request).await
}
