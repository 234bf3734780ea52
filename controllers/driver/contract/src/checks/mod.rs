//! All checks, in the order in which they run. The name of a check is that of its function.

mod answers;
mod class;
mod create;
mod delete;
mod described;
mod list;
mod outage;
mod owner;
mod status;
mod volumes;

use futures::{FutureExt, future::LocalBoxFuture};

use super::context::{Checked, Context};

pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) run: for<'a> fn(&'a Context<'a>) -> LocalBoxFuture<'a, Checked>,
}

macro_rules! checks {
    ($($file:ident::$name:ident: $rule:literal,)+) => {
        pub(crate) const ALL: &[Check] = &[$(
            Check { name: stringify!($name), rule: $rule, run: |context| $file::$name(context).boxed_local() },
        )+];
    };
}

checks! {
    class::valid_class: "`validate` finds nothing wrong with a good class.",
    class::invalid_class: "`validate` names the field that is wrong; `create` refuses it with InvalidArgument, names it, and makes no VM.",
    class::identity: "The fields of `identity` are in the `providerSpec`.",
    class::broken_class: "`status`, `delete` and `list` need the fields of `identity` and no others: a class that was broken later keeps no VM.",
    class::rejected_credentials: "With credentials that the provider rejects, each call fails with Unauthenticated, PermissionDenied or InvalidArgument.",
    create::create: "`create` makes one VM, and answers with its provider id, which has the driver's prefix, and the name of its Node.",
    create::create_again: "`create` is idempotent by its token, the Machine's UID.",
    create::create_after_restart: "`create` is idempotent by its token when another process calls it.",
    create::create_at_once: "Several calls of `create` at once with one token make one VM.",
    create::create_dropped: "A `create` can be dropped at any point: the next one with its token finds what it did, and there is one VM.",
    create::create_late: "A `create` that was dropped has no effect after `consistency`.",
    create::initialize: "`initialize` is idempotent and answers for the Machine's VM, or is Unimplemented.",
    create::addresses: "Addresses are of the types of a Node's, and those of types for IP addresses are IP addresses.",
    create::names: "Any name of a Machine is accepted and kept apart from others, or refused with InvalidArgument.",
    create::notes: "Notes that another version of the driver has left, or that were lost, prevent nothing.",
    status::status_unknown: "`status` of a Machine without a VM is NotFound.",
    status::status_by_name: "`status` finds the VM by cluster and Machine name, whatever the UID: a Machine may be restored from a backup. If VMs keep their tokens, the answer has that of the creation as `owner_uid`.",
    status::status_of_stopped: "A VM that is switched off is found: it is not gone.",
    status::several_vms: "Of several VMs of one name, a Machine finds and deletes the one that was made for it; for a third Machine of that name, `status` is a Mismatch::Machine. If VMs keep no tokens, `status` is OutOfRange, and `delete` deletes all of them.",
    delete::delete: "A deleted VM is found until it is gone, and then it is NotFound; other VMs stay.",
    delete::delete_again: "`delete` is idempotent.",
    delete::delete_absent: "`delete` of a Machine without a VM succeeds, or is NotFound.",
    delete::delete_by_name: "`delete` finds the VM by cluster and Machine name, and by the token that the Machine has adopted.",
    delete::delete_dropped: "A `delete` can be dropped at any point: the next one completes it.",
    delete::delete_hidden: "`delete` of a proven provider id reaches a VM that does not show yet.",
    delete::delete_orphan: "`delete_orphan` deletes the VM of the id and no other, not even one of the same Machine; without such a VM it succeeds.",
    list::list: "`list` shows a VM by provider id and Machine name, at the latest after `consistency`.",
    list::list_of_cluster: "`list` shows the VMs of the class's cluster alone.",
    list::list_whole: "`list` shows all VMs, however many pages the provider makes of them.",
    owner::other_clusters_vm: "A VM of another cluster is left alone, also when the Machine names it: that is a Mismatch::Cluster.",
    owner::other_machines_vm: "A VM of another Machine is left alone, also when the Machine names it: that is a Mismatch::Machine. The Machine's own VM is found and deleted all the same.",
    owner::other_uids_vm: "If VMs keep their tokens, `delete` spares a VM that was made for another Machine of the same cluster and name, whatever the Machine names: that is a Mismatch::Machine.",
    owner::untagged_vm: "A VM without tags is not listed and left alone, also when a Machine names it: that is a Mismatch::Machine.",
    owner::orphan_of_others: "`delete_orphan` leaves a VM alone that is another cluster's or another Machine's: that is a Mismatch.",
    owner::hidden_vm: "A VM that a Machine names and that does not show is left alone, unless its id was proven before.",
    owner::other_providers_id: "A provider id of another provider is a Mismatch::Machine.",
    outage::silent_provider: "A call that gets no answer ends with a code that passes, or waits until it is dropped.",
    outage::failing_provider: "While the provider fails, each call fails; none says that there is no VM, or that a VM is deleted.",
    outage::no_capacity: "Without capacity, `create` fails with ResourceExhausted; other calls and later creations succeed.",
    volumes::volume_ids: "If the driver has `volume_ids`: each volume of the provider has its id, at its place in the answer, and all others have none.",
    described::described: "If the driver has `describes_instances`: `status` answers with addresses and an instance type, and what it says fits into labels of a Node.",
    described::power: "If the driver has `describes_instances`: a VM that is switched off is stopped, and a new one is not.",
    described::unowned: "If the driver has `describe_unowned`: a VM without tags is described; one that `list` shows is FailedPrecondition; one that does not exist, or is another provider's, is NotFound.",
    answers::no_secrets: "No answer has a secret in its text.",
    answers::no_empty_errors: "Each error has a code, and a message for people.",
    answers::no_blocking: "No call keeps its thread: it waits by `.await`.",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_authors_has_all_rules() {
        let page = include_str!("../../../../../docs/tasks/write-a-driver.md");
        let (_, rules) = page.split_once("| check | rule |\n|---|---|\n").unwrap();
        let rows: Vec<String> = ALL.iter().map(|check| format!("| `{}` | {} |", check.name, check.rule)).collect();
        assert_eq!(rules.lines().collect::<Vec<_>>(), rows);
    }
}
