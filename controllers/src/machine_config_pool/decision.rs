//! What becomes of the target of a pool.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use nodewright_api::{
    annotations::{ACCEPT_RENDER, RENDER_INPUTS},
    field::{self, FieldError},
    machine_config::{GENERATED_BY, MachineConfig},
    reasons::machine_config_pool as reasons,
};
use nodewright_render::{
    LARGEST, Provenance, RenderError, RenderedSpec,
    change::{Kind, differences, irreconcilable},
    check_image_owner, name as name_of,
};
use nodewright_runtime::{
    cache::Lookup,
    clip::clip_list,
    object::{ResourceType, annotation, child_of, controller_uid, is_deleting, name, uid},
};
use serde_json::{Value, json};

use super::{
    call::{Render, Wanted},
    memory::{Context, Note},
    rendering::{Rendering, Scope},
    snapshot::{Snapshot, noted_target},
};
use crate::shared::machine_config::{CachedConfig, VERSION};

/// For how long a rendered MachineConfig has to be wanted to become the target: meanwhile other changes may come, which belong
/// together.
const QUIET: SignedDuration = SignedDuration::from_secs(5);
/// The reason of that wait.
pub(super) const QUIET_PERIOD: &str = "QuietPeriod";
/// For how long it has to be wanted to be stored at all, as a part of that time: of MachineConfigs that are applied one after the
/// other each makes another rendering, of up to a megabyte.
const SETTLED: SignedDuration = SignedDuration::from_secs(2);
/// The reason of that wait.
pub(super) const SETTLING: &str = "Settling";

/// How many names a message has, and how long each may be.
const EXAMPLES: usize = 5;
const LONGEST_NAME: usize = 128;

#[derive(Debug)]
pub(super) enum Decision<'a> {
    /// The target is what is wanted.
    Keep(&'a str),
    /// This is wanted, and is made: the object.
    Create(&'a str, Box<Value>),
    /// This is wanted, and is made at this time, if it is wanted until then.
    Settle(&'a str, Timestamp),
    /// It exists, and has no owner.
    Adopt(&'a CachedConfig),
    /// It becomes the target at this time, if it is wanted until then.
    Pending(&'a str, Timestamp),
    /// It becomes the target now.
    Target(&'a str),
    /// The target stays, for a reason that users can act on.
    Hold(&'static str, String),
    /// The target stays, until something has been read or made.
    Wait(String),
    /// What is selected is rendered first, now or at this time.
    Render(Option<&'a Render>, Option<Timestamp>),
}

/// A value, or what is decided without it.
type OrDecided<'a, T> = Result<T, Decision<'a>>;

pub(super) fn decide<'a>(context: &Context<'_>, scope: &'a Scope<'_>) -> Decision<'a> {
    decide_early(context, scope).unwrap_or_else(|decided| decided)
}

fn decide_early<'a>(context: &Context<'_>, scope: &'a Scope<'_>) -> OrDecided<'a, Decision<'a>> {
    let snapshot = scope.snapshot;
    let target = snapshot.target_name.as_deref().unwrap_or_default();
    let errors = &snapshot.errors;
    let images = check_image_owner(&snapshot.pool.spec, snapshot.selected.iter().filter_map(|config| config.input()));
    let (wanted, spec, provenance) = match &scope.rendering {
        Rendering::SelectsAll => return Err(Decision::Hold(reasons::SELECTS_ALL, field::summary(errors))),
        // No webhook has reviewed it.
        _ if !errors.is_empty() => return Err(Decision::Hold(reasons::INVALID, field::summary(errors))),
        Rendering::Empty => return Err(selects_nothing()),
        Rendering::Unreadable(text) => return Err(Decision::Hold(reasons::INVALID, text.clone())),
        _ if let Err(error) = images => return Err(Decision::Hold(reasons::INVALID, error.to_string())),
        _ if snapshot.ungenerated.is_some() => {
            return Err(Decision::Wait(snapshot.ungenerated.clone().unwrap_or_default()));
        }
        _ if snapshot.failing.is_some() => {
            return Err(Decision::Hold(reasons::WAITING_FOR_INPUTS, snapshot.failing.clone().unwrap_or_default()));
        }
        Rendering::Pending(call, at) => return Err(Decision::Render(call.as_ref(), *at)),
        Rendering::Settled(_) => return verify(scope).map(|_| Decision::Keep(target)),
        Rendering::Former(name) => (name.as_str(), None, None),
        Rendering::Done(outcome, _) => match outcome.as_ref() {
            Err(errors) => return Err(Decision::Hold(reasons::INVALID, summary(errors))),
            Ok(Wanted { name, rendered }) => (name.as_str(), Some(&rendered.spec), Some(&rendered.provenance)),
        },
    };
    let read = verify(scope)?;
    // An earlier release has rendered it: what it says is in the object alone.
    let Some(spec) = spec.or(read.as_ref()) else { return Err(Decision::Wait(unread(wanted))) };
    if wanted == target && scope.existing.is_some() {
        return Ok(Decision::Keep(target));
    }
    if wanted != target && compare(scope, wanted, spec, provenance)? == Comparison::Equal {
        return Ok(Decision::Keep(target));
    }
    let Some(existing) = scope.existing else {
        // What is too large is reported at once.
        let made = create(scope, wanted, spec)?;
        let due = wanted_for(context, wanted, SETTLED);
        return Ok(if due > context.now { Decision::Settle(wanted, due) } else { made });
    };
    if controller_uid(existing.as_ref()).is_none() {
        return Ok(Decision::Adopt(existing));
    }
    let due = wanted_for(context, name(existing.as_ref()), QUIET);
    Ok(if due > context.now { Decision::Pending(wanted, due) } else { Decision::Target(wanted) })
}

fn selects_nothing<'a>() -> Decision<'a> {
    let text = "spec.machineConfigSelector: Invalid value: no MachineConfig has these labels";
    Decision::Hold(reasons::NO_MACHINE_CONFIGS, text.to_owned())
}

fn summary(errors: &[RenderError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn unread(name: &str) -> String {
    format!("MachineConfig {name} has yet to be read")
}

/// Whether the object of the wanted name is what its name says, if it exists. Returns its content where that had to be read.
fn verify<'a>(scope: &Scope<'_>) -> OrDecided<'a, Option<RenderedSpec>> {
    let snapshot = scope.snapshot;
    let Some(existing) = scope.existing else { return Ok(None) };
    let config = name(existing.as_ref());
    if is_deleting(existing.as_ref()) {
        return Err(Decision::Wait(format!("MachineConfig {config} is being deleted, and made again once it is gone")));
    }
    if !scope.is_unverified {
        return Ok(None);
    }
    let whole = read(scope.whole(), config)?;
    let Some(whole) = whole else { return Err(Decision::Wait(unread(config))) };
    let spec = RenderedSpec::read(&whole.spec).ok();
    let pool = name(snapshot.pool.as_ref());
    let Some(spec) = spec.filter(|spec| name_of(pool, spec) == config) else {
        let text = format!(
            "MachineConfig {config}: spec: Invalid value: it was changed, and is not what its name says; delete it, and it is \
             made again"
        );
        return Err(Decision::Hold(reasons::INVALID, text));
    };
    let owner = controller_uid(existing.as_ref());
    if owner.is_some_and(|owner| owner != uid(snapshot.pool.as_ref())) {
        return Err(Decision::Wait(format!("MachineConfig {config} belongs to a former pool of this name")));
    }
    Ok(Some(spec))
}

/// The whole object, unless it is missing.
fn read<'a, 'b>(whole: &'b Lookup<MachineConfig>, config: &str) -> OrDecided<'a, Option<&'b MachineConfig>> {
    match whole {
        Lookup::Found(object) => Ok(Some(object)),
        Lookup::Missing => Ok(None),
        Lookup::Pending => Err(Decision::Wait(unread(config))),
        Lookup::Failed(why) => Err(Decision::Wait(format!("MachineConfig {config} cannot be read: {why}"))),
        Lookup::Unreadable(object) => Err(Decision::Hold(reasons::INVALID, object.describe::<MachineConfig>())),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    /// The target has the same content under another name.
    Equal,
    /// The nodes can get from the target to it, or there is none.
    Reachable,
}

/// Compares what is wanted with the target.
fn compare<'a>(
    scope: &Scope<'_>,
    wanted: &str,
    new: &RenderedSpec,
    provenance: Option<&Provenance>,
) -> OrDecided<'a, Comparison> {
    let snapshot = scope.snapshot;
    let Some(target) = snapshot.target_name.as_deref() else { return Ok(Comparison::Reachable) };
    let whole = read(scope.target(), target)?;
    let is_accepted = annotation(snapshot.pool.as_ref(), ACCEPT_RENDER) == Some(wanted);
    let accept = format!("to continue, annotate the pool with {ACCEPT_RENDER}={wanted}");
    let Some(whole) = whole else {
        // It was the target before somebody wrote a name that nothing has.
        if is_accepted || noted_target(&snapshot.pool) == Some(wanted) {
            return Ok(Comparison::Reachable);
        }
        let text =
            format!("there is no MachineConfig {target} any more, with which {wanted} could be compared; {accept}");
        return Err(Decision::Hold(reasons::NOT_RECONCILABLE, text));
    };
    let old = match RenderedSpec::read(&whole.spec) {
        Ok(old) => old,
        Err(_) if is_accepted => return Ok(Comparison::Reachable),
        Err(errors) => {
            let text = format!("the target {target} cannot be compared: {}; {accept}", field::summary(&errors));
            return Err(Decision::Hold(reasons::NOT_RECONCILABLE, text));
        }
    };
    if old == *new {
        return Ok(Comparison::Equal);
    }
    let errors = irreconcilable(&old, new, &[]);
    if !errors.is_empty() {
        let texts: Vec<_> = errors.iter().map(|error| with_authors(error, new, provenance)).collect();
        return Err(Decision::Hold(reasons::NOT_RECONCILABLE, texts.join("; ")));
    }
    if is_accepted {
        return Ok(Comparison::Reachable);
    }
    if new.os_image_url.is_empty() && !old.os_image_url.is_empty() {
        let text = format!(
            "neither a MachineConfig nor the ControllerConfig machine-config-controller names an image of the operating system, \
             and the target does: create the ControllerConfig; {accept}"
        );
        return Err(Decision::Hold(reasons::WAITING_FOR_INPUTS, text));
    }
    let (removed, all) = removed(&old, new);
    if 2 * removed.len() > all {
        let count = removed.len();
        let examples = clip_list(EXAMPLES, LONGEST_NAME, removed.into_iter(), ", ");
        let text = format!("{wanted} lacks {count} of the {all} files and units of the target ({examples}); {accept}");
        return Err(Decision::Hold(reasons::TOO_MUCH_REMOVED, text));
    }
    Ok(Comparison::Reachable)
}

/// An error with the MachineConfigs that have set what is wrong.
fn with_authors(error: &FieldError, spec: &RenderedSpec, provenance: Option<&Provenance>) -> String {
    let path = error.path.as_str().trim_start_matches("spec.");
    let authors: BTreeSet<&str> = match (provenance, path.strip_prefix("config.")) {
        (None, _) => BTreeSet::new(),
        (Some(provenance), Some(below)) => provenance.of_element(&spec.config, below).1.into_iter().collect(),
        (Some(provenance), None) => provenance.at(path).flat_map(|origin| origin.set_by).collect(),
    };
    let authors: Vec<_> = authors.into_iter().collect();
    if authors.is_empty() { error.to_string() } else { format!("{error} (set by {})", authors.join(", ")) }
}

/// The files and units of the old configuration that the new one lacks, by path and name; and how many there were.
fn removed(old: &RenderedSpec, new: &RenderedSpec) -> (Vec<String>, usize) {
    let name = |key: &str| {
        let lists = ["config.storage.files[", "config.systemd.units["];
        lists.iter().find_map(|list| Some(key.strip_prefix(list)?.strip_suffix(']')?.to_owned()))
    };
    let differences = differences(old, new);
    let removed = differences.iter().filter(|it| it.kind == Kind::Removed).filter_map(|it| name(&it.key)).collect();
    let all = ["/storage/files", "/systemd/units"].iter().map(|list| old.config.list(list).len()).sum();
    (removed, all)
}

/// The selected MachineConfigs that have most of the bytes, with how many.
fn largest(snapshot: &Snapshot) -> String {
    let size = |config: &CachedConfig| serde_json::to_string(&config.spec).map_or(0, |text| text.len());
    let mut sizes: Vec<_> = snapshot.selected.iter().map(|it| (size(it), name(it.as_ref()))).collect();
    sizes.sort_by(|a, b| b.cmp(a));
    sizes.iter().take(EXAMPLES).map(|(size, name)| format!("{name} ({size})")).collect::<Vec<_>>().join(", ")
}

fn create<'a>(scope: &Scope<'_>, wanted: &'a str, spec: &RenderedSpec) -> OrDecided<'a, Decision<'a>> {
    let resource = ResourceType::of::<MachineConfig>();
    let mut metadata = child_of(scope.snapshot.pool.as_ref(), "", wanted);
    for owner in metadata.owner_references.iter_mut().flatten() {
        owner.block_owner_deletion = Some(true);
    }
    let mut annotations = vec![(GENERATED_BY.to_owned(), VERSION.to_owned())];
    if let Rendering::Done(_, digest) = &scope.rendering {
        annotations.push((RENDER_INPUTS.to_owned(), digest.to_string()));
    }
    metadata.annotations = Some(annotations.into_iter().collect());
    // Not by the type, which leaves out what is empty: that would be another content.
    let object = json!({
        "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata, "spec": spec,
    });
    let size = serde_json::to_string(&object).map_or(usize::MAX, |text| text.len());
    if size > LARGEST {
        let largest = largest(scope.snapshot);
        let text = format!(
            "{wanted} has {size} bytes, and an API server takes at most {LARGEST}: make files smaller; most bytes are of {largest}"
        );
        return Err(Decision::Hold(reasons::TOO_LARGE, text));
    }
    Ok(Decision::Create(wanted, Box::new(object)))
}

/// When something will have been wanted for so long: until then other changes may come. The age of the object does not show that: it may be of an earlier change, and be wanted for a
/// moment only, between two MachineConfigs that are changed together. A process that starts waits again.
fn wanted_for(context: &Context<'_>, wanted: &str, long: SignedDuration) -> Timestamp {
    let since = context.noted_since(&Note::Desired(wanted.to_owned())).unwrap_or(context.now);
    since.checked_add(long).unwrap_or(context.now)
}

/// The reference to an input, as machine-config-operator writes it.
pub(super) fn source(config: &str) -> Value {
    let resource = ResourceType::of::<MachineConfig>();
    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "name": config})
}
