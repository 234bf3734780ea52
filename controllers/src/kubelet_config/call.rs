//! What a KubeletConfig makes for a pool. That may take long, as its base is rendered: a call outside Kubernetes.

use std::{fmt, sync::Arc, time::Duration};

use nodewright_api::{
    field,
    machine_config::{KubeletConfig, MachineConfigPool, MachineConfigSpec},
};
use nodewright_render::kubelet;
use nodewright_runtime::{
    effect::{Effect, Group},
    object::{name, uid},
};

use crate::shared::rendering::{Inputs, compute, one_at_a_time};

const DEADLINE: Duration = Duration::from_mins(1);

/// Makes the content of the MachineConfig of a pool. All calls for a KubeletConfig and a pool are the same call.
#[derive(Clone)]
pub struct Generate {
    pub(super) object: Arc<KubeletConfig>,
    pub(super) pool: Arc<MachineConfigPool>,
    /// What the pool selects besides.
    pub(super) base: Arc<Inputs>,
    /// The digest of the inputs of what exists and has not been changed: of the same, nothing is made.
    pub(super) present: Option<String>,
    /// The digest of these inputs, if it is known.
    pub(super) digest: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Outcome {
    /// What exists is of inputs with this digest.
    Present(String),
    /// What is made of inputs with this digest.
    Content(Arc<MachineConfigSpec>, String),
    /// For users: what to correct.
    Refused(String),
    /// There is no result in time.
    Failed,
}

impl Generate {
    /// Whether another call has the same inputs.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.object.spec == other.object.spec && self.pool.spec == other.pool.spec && self.base.is_same(&other.base)
    }

    fn generate(&self) -> Outcome {
        let (pool, pool_spec, spec) = (name(self.pool.as_ref()), &self.pool.spec, &self.object.spec);
        let digest = || kubelet::digest(&self.base.digest(), pool, pool_spec, spec);
        let digest = self.digest.clone().unwrap_or_else(digest);
        if self.present.as_ref() == Some(&digest) {
            return Outcome::Present(digest);
        }
        let base = match self.base.render() {
            Ok(base) => base,
            Err(errors) => {
                let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
                return Outcome::Refused(texts.join("; "));
            }
        };
        if let Err(error) = kubelet::check_order(pool, &self.base.each(), &base) {
            return Outcome::Refused(error.to_string());
        }
        match kubelet::generate(pool, pool_spec, &base.spec.config, spec) {
            Ok(spec) => Outcome::Content(spec.into(), digest),
            Err(errors) => Outcome::Refused(field::summary(&errors)),
        }
    }
}

/// Makes the calls.
pub(crate) fn perform(call: Generate) -> impl Future<Output = Outcome> + Send {
    compute(move || call.generate())
}

impl fmt::Debug for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (object, pool) = (name(self.object.as_ref()), name(self.pool.as_ref()));
        f.debug_tuple("Generate").field(&object).field(&pool).finish()
    }
}

impl PartialEq for Generate {
    fn eq(&self, other: &Self) -> bool {
        let is_same_object = uid(self.object.as_ref()) == uid(other.object.as_ref());
        is_same_object && name(self.pool.as_ref()) == name(other.pool.as_ref())
    }
}

impl Effect for Generate {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        format!("{}/{}", name(self.object.as_ref()), name(self.pool.as_ref())).into()
    }

    fn name(&self) -> &'static str {
        "generate_kubelet_config"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn timeout_outcome(&self) -> Outcome {
        Outcome::Failed
    }

    fn succeeded(outcome: &Outcome) -> bool {
        !matches!(outcome, Outcome::Failed)
    }

    fn groups(&self) -> Vec<Group> {
        one_at_a_time("rendering")
    }
}
