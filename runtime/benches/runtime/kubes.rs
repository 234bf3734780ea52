//! kube-runtime, used as its documentation recommends.

use std::{convert::Infallible, future::ready, sync::Arc};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt};
use kube_runtime::{
    Controller, WatchStreamExt,
    controller::Action,
    reflector::{self, ObjectRef, Store},
    watcher,
};
use nodewright_api::Machine;

use crate::{contender::Job, server::Server};

/// Starts a cache of the machines of a server.
pub(crate) fn cache(server: &Server, trimmed: bool) -> Store<Machine> {
    let (reader, writer) = reflector::store();
    let objects = watcher(Api::<Machine>::all(server.client()), watcher::Config::default()).default_backoff();
    let objects =
        if trimmed { objects.modify(|machine| machine.managed_fields_mut().clear()).boxed() } else { objects.boxed() };
    tokio::spawn(objects.reflect(writer).applied_objects().for_each(|_| ready(())));
    reader
}

/// Starts a controller.
pub(crate) fn control(server: &Server, job: Arc<Job>) {
    let client = server.client();
    let controller = Controller::new(Api::<Machine>::all(client.clone()), watcher::Config::default());
    let machines = controller.store();
    let all = move |_: ConfigMap| -> Vec<_> {
        machines.state().iter().map(|machine| ObjectRef::from_obj(machine.as_ref())).collect()
    };
    let controller = controller.watches(Api::<ConfigMap>::all(client), watcher::Config::default(), all);
    tokio::spawn(controller.run(reconcile, |_, error, _| match *error {}, job).for_each(|_| ready(())));
}

async fn reconcile(machine: Arc<Machine>, job: Arc<Job>) -> Result<Action, Infallible> {
    (job.look)(&machine);
    if job.is_slow(&machine) {
        job.wait().await;
    }
    Ok(Action::await_change())
}
