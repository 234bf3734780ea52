//! What Machines are, at each scrape.

use std::fmt;

use nodewright_api::{Machine, MachinePhase};

use crate::shared::mcm_metrics::{Scrape, created_at};

pub(super) fn write(scrape: &mut Scrape<'_, '_, Machine>) -> fmt::Result {
    scrape.numbers(&[("current_status_phase", |machine| Some(of_phase(machine.phase())))])?;
    scrape.gauges("info", |machine, write| {
        let (class, created) = (&machine.spec.class, created_at(machine));
        let labels = [
            ("createdAt", created.as_str()),
            ("spec_provider_id", &machine.spec.provider_id),
            ("spec_class_api_group", &class.api_group),
            ("spec_class_kind", &class.kind),
            ("spec_class_name", &class.name),
            ("node_name", machine.node_name().unwrap_or_default()),
        ];
        write(&labels, 1)
    })?;
    scrape.conditions(|machine| {
        let all = machine.status.iter().flat_map(|status| &status.conditions);
        all.map(|it| (it.type_.as_str(), it.status.as_str())).collect()
    })
}

/// machine-controller-manager's numbers, and others for the phases that it got later: it writes 0 for those, as if they were Pending.
fn of_phase(phase: &MachinePhase) -> i64 {
    match phase {
        MachinePhase::Terminating => -4,
        MachinePhase::Failed => -3,
        MachinePhase::CrashLoopBackOff => -2,
        MachinePhase::Unknown => -1,
        MachinePhase::Pending | MachinePhase::Unset | MachinePhase::Other(_) => 0,
        MachinePhase::Running => 1,
        MachinePhase::Available => 2,
        MachinePhase::InPlaceUpdating => 3,
        MachinePhase::InPlaceUpdateSuccessful => 4,
        MachinePhase::InPlaceUpdateFailed => -5,
    }
}
