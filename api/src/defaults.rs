//! Defaults of absent fields. MCM has none, and refuses such an object.
//!
//! `spec.template` has no defaults, because a changed template starts a rollout. Absent timeouts follow the flags of the
//! controllers.

use crate::{InPlaceUpdate, MachineClass, MachineDeployment, OrchestrationType, RollingUpdate, StrategyType};
use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The default of `maxSurge`.
pub const MAX_SURGE: i32 = 1;
/// The default of `maxUnavailable`.
pub const MAX_UNAVAILABLE: i32 = 0;

/// Sets the defaults of `spec.strategy`: `RollingUpdate`, [`MAX_SURGE`], [`MAX_UNAVAILABLE`], and `Auto` for an update in
/// place. Changes no other field.
pub fn machine_deployment(deployment: &mut MachineDeployment) {
    let strategy = &mut deployment.spec.strategy;
    strategy.strategy_type = strategy.effective_type();
    match strategy.strategy_type {
        StrategyType::RollingUpdate => {
            let RollingUpdate { max_surge, max_unavailable } = strategy.rolling_update.get_or_insert_default();
            bounds(max_surge, max_unavailable);
        }
        StrategyType::InPlaceUpdate => {
            let InPlaceUpdate { max_surge, max_unavailable, orchestration_type } =
                strategy.in_place_update.get_or_insert_default();
            bounds(max_surge, max_unavailable);
            if *orchestration_type == OrchestrationType::Unset {
                *orchestration_type = OrchestrationType::Auto;
            }
        }
        StrategyType::Unset | StrategyType::Recreate | StrategyType::Other(_) => {}
    }
}

fn bounds(max_surge: &mut Option<IntOrString>, max_unavailable: &mut Option<IntOrString>) {
    max_surge.get_or_insert(IntOrString::Int(MAX_SURGE));
    max_unavailable.get_or_insert(IntOrString::Int(MAX_UNAVAILABLE));
}

/// Sets the defaults of `secretRef.namespace` and `credentialsSecretRef.namespace` to the namespace of the class. Changes no
/// other field.
pub fn machine_class(class: &mut MachineClass) {
    let Some(own) = class.metadata.namespace.clone().filter(|namespace| !namespace.is_empty()) else { return };
    let references = [class.secret_ref.as_mut(), class.credentials_secret_ref.as_mut()];
    for SecretReference { name, namespace } in references.into_iter().flatten() {
        let named = name.as_ref().is_some_and(|name| !name.is_empty());
        if named && namespace.as_ref().is_none_or(String::is_empty) {
            *namespace = Some(own.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;
    use serde_json::{Value, json};

    fn defaulted_strategy(strategy: Value) -> Value {
        let mut deployment = MachineDeployment::default();
        deployment.spec.strategy = serde_json::from_value(strategy).expect("a strategy");
        machine_deployment(&mut deployment);
        serde_json::to_value(&deployment.spec.strategy).expect("writable")
    }

    #[test]
    fn nothing_said_is_a_rolling_update_with_one_more() {
        let expected = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        assert_eq!(defaulted_strategy(json!({})), expected);
        assert_eq!(defaulted_strategy(json!({"type": "", "rollingUpdate": {}})), expected);
    }

    #[test]
    fn what_is_said_stays() {
        assert_eq!(
            defaulted_strategy(json!({"rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 2}})),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 2}}),
        );
        assert_eq!(defaulted_strategy(json!({"type": "Recreate"})), json!({"type": "Recreate"}));
        assert_eq!(defaulted_strategy(json!({"type": "Sideways"})), json!({"type": "Sideways"}));
    }

    #[test]
    fn an_update_in_place_is_orchestrated_by_the_controller() {
        assert_eq!(
            defaulted_strategy(json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"maxSurge": 0}})),
            json!({
                "type": "InPlaceUpdate",
                "inPlaceUpdate": {"maxSurge": 0, "maxUnavailable": 0, "orchestrationType": "Auto"},
            }),
        );
    }

    #[test]
    fn nothing_else_changes() {
        let mut deployment = MachineDeployment::default();
        machine_deployment(&mut deployment);
        deployment.spec.strategy = Strategy::default();
        assert_eq!(deployment, MachineDeployment::default());
    }

    #[test]
    fn secrets_are_in_the_namespace_of_the_class() {
        let mut class: MachineClass = serde_json::from_value(json!({
            "metadata": {"name": "small", "namespace": "shoot"},
            "providerSpec": {},
            "secretRef": {"name": "user-data"},
            "credentialsSecretRef": {"name": "cloud", "namespace": "elsewhere"},
        }))
        .expect("a class");
        machine_class(&mut class);
        let names: Vec<_> = class.secret_names().collect();
        assert_eq!(names, [("shoot", "user-data"), ("elsewhere", "cloud")]);
        assert_eq!(class.secret_ref.expect("kept").namespace.as_deref(), Some("shoot"));
    }
}
