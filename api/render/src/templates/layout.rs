//! Where templates stand: `<role>/<name>/<variant>/{files,units,extensions}/<file>.yaml`, and `common/<variant>/…`, which goes into
//! the first MachineConfig of each role.

use super::TemplateError;
use super::platform::Platform;
use crate::ignition::UNIT_TYPES;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The folder that all roles share.
const COMMON: &str = "common";
/// The role that only one topology has, and that topology.
const ARBITER: (&str, &str) = ("arbiter", "HighlyAvailableArbiter");

/// What the name of a template ends in, unless it is that of a unit or an extension.
const YAML: &str = "yaml";
/// Files that stand beside templates. So do those that end in `.md`.
const FOREIGN: [&str; 4] = ["LICENSE", "OWNERS", "OWNERS_ALIASES", "README"];

/// How many of them a warning shows.
const SHOWN: usize = 5;

/// What a template makes a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Files,
    Units,
    Extensions,
}

impl Section {
    fn parse(folder: &str) -> Option<Self> {
        match folder {
            "files" => Some(Self::Files),
            "units" => Some(Self::Units),
            "extensions" => Some(Self::Extensions),
            _ => None,
        }
    }

    /// Refuses what an editor may have left, such as `a.yaml~`, which would be one template more.
    fn check_name(self, file: &str) -> Result<(), String> {
        let end = Path::new(file).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match self {
            _ if end == YAML => Ok(()),
            Self::Files => Err("the name of a template of a file ends in .yaml".to_owned()),
            Self::Units if UNIT_TYPES.iter().any(|kind| file.ends_with(kind)) => Ok(()),
            Self::Units => Err(format!("the name of a template of a unit ends in .yaml, {}", UNIT_TYPES.join(", "))),
            Self::Extensions if file.chars().all(is_in_extension) => Ok(()),
            Self::Extensions => {
                Err("is not the name of an extension: lower-case letters, digits, `-`, `_`, `.` and `+`; nor \
                                     does it end in .yaml"
                    .to_owned())
            }
        }
    }
}

fn is_in_extension(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.+".contains(c)
}

/// A template that applies to the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Template<'a> {
    /// The path in the folder.
    pub(super) path: &'a str,
    pub(super) section: Section,
    /// The name of the file, by which a later variant replaces it.
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl<'a> Template<'a> {
    /// The extension that the file is named after; what it renders to then only says whether it is wanted.
    pub(super) fn named_extension(&self) -> Option<&'a str> {
        let is_named =
            self.section == Section::Extensions && Path::new(self.file).extension().is_none_or(|it| it != YAML);
        is_named.then_some(self.file)
    }
}

/// The templates of a MachineConfig, in the order in which they apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MachineConfigTemplates<'a> {
    pub(super) role: String,
    pub(super) name: String,
    pub(super) templates: Vec<Template<'a>>,
}

/// The folders that stand for a role and the name of a MachineConfig; `common` has neither.
type Owner<'a> = Option<(&'a str, &'a str)>;

/// Sorts the files of a folder by MachineConfigs.
pub(super) fn read<'a>(
    files: &'a BTreeMap<String, String>,
    platform: &Platform,
) -> Result<Vec<MachineConfigTemplates<'a>>, Vec<TemplateError>> {
    let (mut found, mut errors) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    // A file at the top is about the folder, such as a README.
    for (path, text) in files.iter().filter(|(path, _)| path.contains('/') && !is_foreign(path)) {
        match locate(path) {
            Ok((owner, variant, section, file)) => {
                found.entry(owner).or_default().push((variant, Template { path, section, file, text }));
            }
            Err(detail) => errors.push(TemplateError::of_file(path, detail)),
        }
    }
    let names: Vec<_> = found.keys().copied().flatten().filter(|(role, _)| has_role(role, platform)).collect();
    errors.extend(twice(&names));
    if names.is_empty() && errors.is_empty() {
        let text = "there is no template: what is wanted stands in <role>/<name>/<variant>/{files,units,extensions}/<file>.yaml";
        errors.push(TemplateError::of_file("", text));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let variants = platform.variants();
    let of = |owner: Owner<'a>| {
        let all = found.get(&owner).map(Vec::as_slice).unwrap_or_default();
        let in_order = variants.iter().flat_map(|variant| all.iter().filter(move |(of, _)| of == variant));
        in_order.map(|(_, template)| *template).collect::<Vec<_>>()
    };
    let mut begun = BTreeSet::new();
    let each = names.into_iter().map(|(role, name)| {
        let mut templates = if begun.insert(role) { of(None) } else { vec![] };
        templates.extend(of(Some((role, name))));
        MachineConfigTemplates { role: role.to_owned(), name: name.to_owned(), templates }
    });
    Ok(each.collect())
}

fn has_role(role: &str, platform: &Platform) -> bool {
    role != ARBITER.0 || platform.topology == ARBITER.1
}

/// A MachineConfig has one role.
fn twice(names: &[(&str, &str)]) -> Vec<TemplateError> {
    let mut known = BTreeMap::new();
    let taken = names.iter().filter_map(|(role, name)| Some((known.insert(*name, *role)?, *role, *name)));
    let error = |(first, role, name): (&str, &str, &str)| {
        TemplateError::of_file(&format!("{role}/{name}"), format!("role {first} has a MachineConfig of this name, too"))
    };
    taken.map(error).collect()
}

/// The parts of the path of a template: its role, its variant, its section and the name of the file.
fn locate(path: &str) -> Result<(Owner<'_>, &str, Section, &str), String> {
    let parts: Vec<_> = path.split('/').collect();
    let (owner, variant, section, file) = match parts.as_slice() {
        [COMMON, variant, section, file] => (None, *variant, *section, *file),
        [role, name, variant, section, file] if *role != COMMON => (Some((*role, *name)), *variant, *section, *file),
        _ => {
            let text = "is not where a template is read: <role>/<name>/<variant>/{files,units,extensions}/<file>.yaml, or \
                        common/<variant>/{files,units,extensions}/<file>.yaml";
            return Err(text.to_owned());
        }
    };
    let names = owner.map_or([COMMON; 2], |(role, name)| [role, name]);
    if let Some(wrong) = names.into_iter().find(|name| !is_name(name)) {
        return Err(format!("{wrong:?} is no name: lower-case letters, digits, `-` and `.`, 63 at most"));
    }
    let section = Section::parse(section).ok_or(format!("{section:?} is neither files nor units nor extensions"))?;
    section.check_name(file)?;
    Ok((owner, variant, section, file))
}

/// A warning about the files that are no templates, if there are any.
pub(super) fn skipped(files: &BTreeMap<String, String>) -> Option<TemplateError> {
    let skipped: Vec<_> =
        files.keys().filter(|path| path.contains('/') && is_foreign(path)).map(String::as_str).collect();
    let shown = skipped[..skipped.len().min(SHOWN)].join(", ");
    let more = match skipped.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!skipped.is_empty())
        .then(|| TemplateError::of_file("", format!("skipped, because they are no templates: {shown}{more}")))
}

/// Whether a file is about the folder that it is in, and no template.
fn is_foreign(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    FOREIGN.contains(&file) || Path::new(file).extension().is_some_and(|extension| extension == "md")
}

/// Whether it may be the name of an object, and the value of a label.
fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63 && text.chars().all(is_inner) && is_end(text.chars().next()) && is_end(text.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(paths: &[&str], topology: &str) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
        let files = paths.iter().map(|path| ((*path).to_owned(), "text".to_owned())).collect();
        let platform = Platform { kind: "AWS".to_owned(), topology: topology.to_owned(), ..Platform::default() };
        let text = |errors: Vec<TemplateError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let paths = |it: &MachineConfigTemplates<'_>| it.templates.iter().map(|it| it.path.to_owned()).collect();
        let read = read(&files, &platform).map_err(text)?;
        Ok(read.iter().map(|it| (format!("{}/{}", it.role, it.name), paths(it))).collect())
    }

    #[test]
    fn common_comes_before_the_first_name_of_each_role_and_variants_in_their_order() {
        let read = read_all(
            &[
                "README.md",
                "common/aws/files/a.yaml",
                "common/_base/files/a.yaml",
                "common/gcp/files/a.yaml",
                "worker/01-worker-kubelet/_base/units/k.yaml",
                "worker/00-worker/sno/files/a.yaml",
                "worker/00-worker/aws/files/b.yaml",
                "worker/00-worker/_base/files/b.yaml",
                "worker/00-worker/OWNERS",
                "worker/00-worker/aws/README.md",
                "worker/00-worker/_base/units/OWNERS",
                "common/OWNERS",
                "master/00-master/_base/extensions/e.yaml",
                "arbiter/00-arbiter/_base/files/a.yaml",
            ],
            "SingleReplica",
        );
        let common = ["common/_base/files/a.yaml", "common/aws/files/a.yaml"];
        let with = |more: &[&str]| common.iter().chain(more).map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let worker = ["worker/00-worker/_base/files/b.yaml", "worker/00-worker/aws/files/b.yaml"];
        let worker = [&worker[..], &["worker/00-worker/sno/files/a.yaml"]].concat();
        assert_eq!(
            read.unwrap(),
            [
                ("master/00-master".to_owned(), with(&["master/00-master/_base/extensions/e.yaml"])),
                ("worker/00-worker".to_owned(), with(&worker)),
                ("worker/01-worker-kubelet".to_owned(), vec!["worker/01-worker-kubelet/_base/units/k.yaml".to_owned()]),
            ]
        );
        let arbiter = read_all(&["arbiter/00-arbiter/_base/files/a.yaml"], "HighlyAvailableArbiter").unwrap();
        assert_eq!(arbiter[0].0, "arbiter/00-arbiter");
    }

    #[test]
    fn what_stands_in_the_wrong_place_is_named() {
        for (path, text) in [
            ("worker/00-worker/_base/file/a.yaml", "\"file\" is neither files nor units nor extensions"),
            ("worker/00-worker/_base/a.yaml", "is not where a template is read"),
            ("common/x/_base/files/a.yaml", "is not where a template is read"),
            ("worker/00-worker/_base/files/b/a.yaml", "is not where a template is read"),
            ("worker/00-worker/_base/files/a.yaml~", "the name of a template of a file ends in .yaml"),
            ("worker/00-worker/_base/files/a.service", "the name of a template of a file ends in .yaml"),
            ("worker/00-worker/_base/units/a", "the name of a template of a unit ends in .yaml, .service, "),
            ("worker/00-worker/_base/units/a.service~", "the name of a template of a unit ends in .yaml, .service, "),
            ("worker/00-worker/_base/extensions/usbguard~", "is not the name of an extension"),
            ("worker/00-worker/_base/Makefile", "is not where a template is read"),
            ("worker/00_worker/_base/files/a.yaml", "\"00_worker\" is no name"),
            ("Worker/00-worker/_base/files/a.yaml", "\"Worker\" is no name"),
            ("-/00-worker/_base/files/a.yaml", "\"-\" is no name"),
        ] {
            let errors = read_all(&[path, "worker/01-a/_base/files/a.yaml"], "").unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with(&format!("{path}: ")) && errors[0].contains(text), "{errors:?}");
        }
        let errors = read_all(&["a/x/_base/files/a.yaml", "b/x/_base/files/a.yaml"], "").unwrap_err();
        assert_eq!(errors, ["b/x: role a has a MachineConfig of this name, too"]);
    }

    #[test]
    fn what_is_skipped_is_named() {
        let files = |paths: &[&str]| paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
        assert_eq!(skipped(&files(&["README.md", "OWNERS", "worker/a/_base/files/a.yaml"])), None);
        let paths = ["a/OWNERS", "b/LICENSE", "c/README", "d/x.md", "e/OWNERS_ALIASES", "f/OWNERS", "g/OWNERS"];
        let begin = "skipped, because they are no templates: a/OWNERS, b/LICENSE";
        let warning = |paths| skipped(&files(paths)).unwrap().to_string();
        assert_eq!(warning(&paths[..2]), begin);
        assert_eq!(warning(&paths), format!("{begin}, c/README, d/x.md, e/OWNERS_ALIASES and 2 more"));
    }

    #[test]
    fn a_folder_without_a_template_is_an_error() {
        for paths in [
            &[][..],
            &["README.md"],
            &["worker/a/OWNERS"],
            &["common/_base/files/a.yaml"],
            &["arbiter/a/_base/files/a.yaml"],
        ] {
            let errors = read_all(paths, "HighlyAvailable").unwrap_err();
            assert!(errors.len() == 1 && errors[0].starts_with("there is no template"), "{errors:?}");
        }
    }
}
