//! Rules of a KubeletConfig. Those of the kubelet's fields are in `nodewright-render`.

use super::{Validate, selector};
use crate::field::{FieldError, FieldPath};
use crate::machine_config::KubeletConfig;
use crate::selector::is_empty;

impl Validate for KubeletConfig {
    fn validate(&self) -> Vec<FieldError> {
        let path = FieldPath::new("spec").child("machineConfigPoolSelector");
        match self.spec.machine_config_pool_selector.as_ref().filter(|selector| !is_empty(Some(selector))) {
            Some(selector) => selector::syntax_errors(selector, &path),
            None => vec![FieldError::required(path, "an empty selector selects no pool")],
        }
    }
}
