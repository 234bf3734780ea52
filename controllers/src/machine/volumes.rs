//! Whose the volumes are that are attached to a Machine's Node: of those that are not the provider's a drain takes no notice.
//!
//! The provider's driver is asked once about a set of volumes. A drain can do without: if the call fails, it takes each volume for the
//! provider's, and nothing but the end of the call is logged, at debug level.

use std::{collections::BTreeSet, sync::Arc};

use nodewright_api::RawJson;
use nodewright_driver::{Class, SecretData};

use super::{
    calls::{Call, Outcome, Request, VOLUME_IDS_WITHIN, Verb},
    provider,
    scope::Scope,
};
use crate::shared::drain::Owners;

/// What is known of the volumes that are attached to the Machine's Node.
pub(super) fn owners<'a>(scope: &Scope<'a>) -> Owners<'a> {
    if !scope.driver.knows_volumes {
        return Owners::Unknown;
    }
    let attached = scope.snapshot.drain.attached_volumes();
    if attached.is_empty() {
        return Owners::Unknown;
    }
    let (call, outcomes) = (question(scope, BTreeSet::new()), scope.context.outcomes);
    let Some((asked, known)) = outcomes.asked(&call).zip(outcomes.get(&call)) else { return Owners::Unasked };
    if known.running {
        return scope.pause_end(known.begun, VOLUME_IDS_WITHIN).map_or(Owners::Unknown, Owners::Asked);
    }
    match &known.last {
        _ if !attached.is_subset(&asked.request.volumes) => Owners::Unasked,
        Some((_, Outcome::ForeignVolumes(foreign))) => Owners::Foreign(foreign),
        _ => Owners::Unknown,
    }
}

/// The question whose these volumes are. It needs nothing of the class, which may be away while a healthy Node is drained.
pub(super) fn question(scope: &Scope<'_>, volumes: BTreeSet<String>) -> Call {
    let class = Class {
        name: scope.machine.class_name().to_owned(),
        revision: String::new(),
        provider_spec: RawJson::default(),
        secret: SecretData::default(),
    };
    Call { verb: Verb::VolumeIds, request: Arc::new(Request { volumes, ..provider::request(scope, &class) }) }
}
