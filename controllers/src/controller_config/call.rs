//! Reading the templates and rendering them: a call outside Kubernetes, as files are.

use std::{fmt, path::Path, sync::Arc, thread, time::Duration};

use nodewright_api::machine_config::ControllerConfig;
use nodewright_render::templates::{Generated, Inputs, TemplateError, Templates, generate};
use nodewright_runtime::{
    clip::{LONGEST, clip_list},
    effect::Effect,
    object::uid,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{folder, pull_secret::PullSecret};

/// A folder may be on a network.
const DEADLINE: Duration = Duration::from_secs(30);
/// How many errors are shown, which share the room of a condition.
const SHOWN: usize = 5;

/// Makes MachineConfigs of the templates in a folder. All calls for a folder are the same call.
#[derive(Clone)]
pub struct Generate {
    pub(super) folder: Arc<Path>,
    pub(super) object: Arc<ControllerConfig>,
    pub(super) pull_secret: PullSecret,
}

/// Which state of the inputs an outcome is of: UID and generation of the ControllerConfig, and the version of the Secret.
pub(super) type Revision = (String, Option<i64>, String);

pub(super) fn revision(call: &Generate) -> Revision {
    (uid(call.object.as_ref()).to_owned(), call.object.metadata.generation, call.pull_secret.version.clone())
}

/// What was made of a state of a ControllerConfig, or what is wrong with the templates.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(super) revision: Revision,
    pub(super) result: Result<Made, String>,
}

/// What the templates make.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) configs: Arc<[Generated]>,
    /// What is doubtful about the templates. Empty if nothing is.
    pub(super) warnings: String,
}

impl fmt::Debug for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Generate").field(&self.folder).finish()
    }
}

impl PartialEq for Generate {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Effect for Generate {
    type Outcome = Outcome;

    fn serialization_key(&self) -> Arc<str> {
        self.folder.to_string_lossy().into()
    }

    fn name(&self) -> &'static str {
        "generate_machine_configs"
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    fn timeout_outcome(&self) -> Outcome {
        self.failed(format!("the templates were neither read nor rendered within {DEADLINE:?}"))
    }

    fn succeeded(outcome: &Outcome) -> bool {
        outcome.result.is_ok()
    }
}

impl Generate {
    fn failed(&self, text: String) -> Outcome {
        Outcome { revision: revision(self), result: Err(text) }
    }

    /// An error; one that is about no file, with the folder and the flag that names it.
    fn describe(&self, error: &TemplateError) -> String {
        let folder = self.folder.display();
        if error.file.is_empty() { format!("--machine-config-templates={folder}: {error}") } else { error.to_string() }
    }
}

/// Makes the calls. It remembers the last one: the same files of the same ControllerConfig are not rendered again.
#[derive(Default)]
pub(crate) struct Generator {
    last: Mutex<Option<(Templates, Outcome)>>,
    /// Held while the folder is read.
    turn: Mutex<()>,
}

impl Generator {
    /// Reads in a thread of its own: a folder that hangs must block neither others that wait for a blocking thread, nor the end
    /// of the process. While it hangs, further calls fail at once.
    pub(crate) async fn perform(self: Arc<Self>, call: Generate) -> Outcome {
        let lost = call.failed("the rendering of the templates ended without a result".to_owned());
        let (done, finished) = oneshot::channel();
        let work = move || {
            let outcome = match self.turn.try_lock() {
                Some(_turn) => self.generate(&call),
                None => call.timeout_outcome(),
            };
            // The receiver is gone after the deadline.
            let _ = done.send(outcome);
        };
        match thread::Builder::new().name("templates".to_owned()).spawn(work) {
            Ok(_) => finished.await.unwrap_or(lost),
            Err(_) => lost,
        }
    }

    pub(super) fn generate(&self, call: &Generate) -> Outcome {
        let templates = match folder::read(&call.folder) {
            Ok(templates) => templates,
            Err(error) => return call.failed(call.describe(&error)),
        };
        let revision = revision(call);
        if let Some((known, outcome)) = &*self.last.lock()
            && *known == templates
            && outcome.revision == revision
        {
            return outcome.clone();
        }
        let clip = |errors: &[TemplateError]| {
            clip_list(SHOWN, LONGEST / SHOWN, errors.iter().map(|error| call.describe(error)), "; ")
        };
        let pull_secret = call.pull_secret.content.as_ref().map(|content| &*content.0).map_err(String::as_str);
        let result = generate(&templates, &Inputs { pull_secret, ..Inputs::from(&call.object.spec) })
            .map(|output| Made { configs: output.made.into(), warnings: clip(&output.warnings) })
            .map_err(|errors| clip(&errors));
        let outcome = Outcome { revision, result };
        *self.last.lock() = Some((templates, outcome.clone()));
        outcome
    }

    #[cfg(test)]
    pub(super) fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.turn.lock()
    }
}
