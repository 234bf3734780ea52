//! Completion: scripts of shells, and the answers that kubectl asks for.

use clap::CommandFactory;
use clap_complete::generate;

use crate::{
    arguments::{Arguments, shell},
    fault::{Outcome, fail},
    names::TargetKind,
    read::Scope,
    resources::NAMESPACES,
};

/// kubectl runs the program of this name, if it is in the PATH, to complete the arguments of the plugin.
const PROGRAM: &str = "\
#!/bin/sh
# Put this in your PATH as kubectl_complete-nodewright, and make it executable.
exec kubectl-nodewright __complete -- \"$@\"
";
/// kubectl's directive: complete no files.
const NO_FILES: &str = ":4";
/// kubectl's directive: what follows, or a file.
const OR_FILES: &str = ":0";
/// kubectl's directive: complete no files, and go on without a space.
const NO_SPACE: &str = ":6";

pub(crate) fn script(of: &str) -> Outcome<String> {
    if of == "kubectl" {
        return Ok(PROGRAM.to_owned());
    }
    let Ok(shell) = shell(of) else {
        return fail(format!("there is no completion for {of:?}: bash, zsh, fish, elvish, powershell or kubectl"));
    };
    let mut command = Arguments::command().bin_name("kubectl-nodewright");
    let mut text = vec![];
    generate(shell, &mut command, "kubectl-nodewright", &mut text);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What is to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// One of these words.
    Words(Vec<String>),
    /// The name of an object of one of these kinds, with the kind in front.
    Objects(Vec<TargetKind>),
    /// The name of a MachineDeployment, or of a pool, too.
    Names(Vec<TargetKind>),
    /// The name of a namespace.
    Namespaces,
    /// One of these words, or a file.
    Files(Vec<String>),
}

/// The flag of a word, if the word after it is its value.
fn flag_with_value<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    let is = |it: &&clap::Arg| match word.strip_prefix("--") {
        Some(long) => it.get_long() == Some(long),
        None => word.strip_prefix('-').is_some_and(|short| it.get_short().is_some_and(|it| short == it.to_string())),
    };
    let flag = command.get_arguments().find(is)?;
    (flag.get_action().takes_values() && !flag.is_require_equals_set()).then_some(flag)
}

/// What may be the value of a flag.
fn value_of(flag: &clap::Arg) -> Question {
    if flag.get_id() == "namespace" {
        return Question::Namespaces;
    }
    let values = flag.get_possible_values();
    let values: Vec<_> = values.iter().map(|it| it.get_name().to_owned()).collect();
    let names_file = flag.get_value_names().is_some_and(|names| names.iter().any(|name| name == "FILE"));
    if names_file { Question::Files(values) } else { Question::Words(values) }
}

/// What may stand for the last of the words. The others are commands and flags.
pub(crate) fn question(words: &[String]) -> Question {
    let mut command = Arguments::command();
    command.build();
    let Some((last, before)) = words.split_last() else { return Question::Words(vec![]) };
    let mut path = vec![];
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if let Some(flag) = flag_with_value(&command, word) {
            if words.next().is_none() {
                return value_of(flag);
            }
        } else if !word.starts_with('-') {
            let Some(next) = command.find_subcommand(word).cloned() else { break };
            path.push(word.as_str());
            command = next;
        }
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|it| !it.is_hide_set()).filter_map(clap::Arg::get_long);
        return Question::Words(flags.map(|it| format!("--{it}")).collect());
    }
    let commands: Vec<_> =
        command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name().to_owned()).collect();
    match path.as_slice() {
        ["plan"] => Question::Files(commands),
        _ if !commands.is_empty() => Question::Words(commands),
        ["why"] => Question::Objects(TargetKind::ALL.to_vec()),
        ["approve"] => Question::Objects(vec![TargetKind::Node, TargetKind::Pool]),
        ["tree"] => Question::Names(vec![TargetKind::Deployment, TargetKind::Pool]),
        ["plan", "drain"] => Question::Names(vec![TargetKind::Node]),
        ["plan", "pool"] => Question::Names(vec![TargetKind::Pool]),
        ["rollout", _] | ["plan", "rollout"] => Question::Names(vec![TargetKind::Deployment]),
        ["preserve" | "release" | "replace" | "trace"] => Question::Names(vec![TargetKind::Machine]),
        ["completion"] => {
            Question::Words(["bash", "zsh", "fish", "elvish", "powershell", "kubectl"].map(str::to_owned).to_vec())
        }
        _ => Question::Words(vec![]),
    }
}

/// The namespace that the words name.
fn namespace(words: &[String]) -> Option<String> {
    let joined = words.iter().find_map(|word| word.strip_prefix("--namespace=").or_else(|| word.strip_prefix("-n=")));
    let apart = || {
        let at = words.iter().position(|word| word == "-n" || word == "--namespace")?;
        words.get(at + 1).map(String::as_str)
    };
    joined.or_else(apart).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The answer in the form that kubectl reads. Without a cluster there are no names.
pub(crate) async fn answer(words: &[String], scope: impl AsyncFnOnce(Option<String>) -> Outcome<Scope>) -> String {
    let before = &words[..words.len().saturating_sub(1)];
    let named = namespace(before);
    let scope = async || scope(named).await;
    let last = words.last().map(String::as_str).unwrap_or_default();
    let question = question(words);
    let directive = match &question {
        Question::Files(_) => OR_FILES,
        Question::Objects(_) if !last.contains('/') => NO_SPACE,
        _ => NO_FILES,
    };
    let found = match question {
        Question::Words(words) | Question::Files(words) => words,
        Question::Namespaces => namespaces(scope).await,
        Question::Objects(kinds) => match last.split_once('/') {
            None => kinds.iter().map(|kind| format!("{}/", kind.kind().to_ascii_lowercase())).collect(),
            Some((word, _)) => {
                let kind = format!("{word}/x").parse::<crate::names::Target>().map(|target| target.kind);
                let kinds: Vec<_> = kind.into_iter().filter(|kind| kinds.contains(kind)).collect();
                names(&kinds, scope).await.into_iter().map(|name| format!("{word}/{name}")).collect()
            }
        },
        Question::Names(kinds) => names(&kinds, scope).await,
    };
    let lines = found.into_iter().filter(|it| it.starts_with(last)).map(|it| it + "\n").collect::<String>();
    format!("{lines}{directive}\n")
}

/// The namespaces, for those who may list them.
async fn namespaces(scope: impl AsyncFnOnce() -> Outcome<Scope>) -> Vec<String> {
    let Ok(scope) = scope().await else { return vec![] };
    let namespaces = scope.control.list(NAMESPACES, None, "").await.unwrap_or_default();
    namespaces.iter().filter_map(name).collect()
}

fn name(object: &serde_json::Value) -> Option<String> {
    object.pointer("/metadata/name")?.as_str().map(str::to_owned)
}

async fn names(kinds: &[TargetKind], scope: impl AsyncFnOnce() -> Outcome<Scope>) -> Vec<String> {
    let Ok(scope) = scope().await else { return vec![] };
    let mut all = vec![];
    for kind in kinds {
        let cluster = if kind.is_namespaced() { &scope.control } else { &scope.target };
        let objects = cluster.list(kind.resource(), scope.namespace.as_deref(), "").await.unwrap_or_default();
        all.extend(objects.iter().filter_map(name));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Question {
        question(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn commands_flags_and_objects_are_completed() {
        let Question::Words(commands) = asked("") else { panic!() };
        assert!(
            commands.contains(&"rollout".to_owned()) && !commands.contains(&"__complete".to_owned()),
            "{commands:?}"
        );
        let Question::Words(commands) = asked("rollout ") else { panic!() };
        assert!(commands.contains(&"undo".to_owned()), "{commands:?}");
        let Question::Words(flags) = asked("rollout status --") else { panic!() };
        assert!(flags.contains(&"--timeout".to_owned()) && flags.contains(&"--context".to_owned()), "{flags:?}");
        assert_eq!(asked("rollout undo "), Question::Names(vec![TargetKind::Deployment]));
        assert_eq!(asked("why "), Question::Objects(TargetKind::ALL.to_vec()));
        // A value of a flag is no command, and each flag has its own values.
        assert_eq!(asked("-n why rollout undo "), Question::Names(vec![TargetKind::Deployment]));
        for line in ["-n ", "--namespace ", "tree -n "] {
            assert_eq!(asked(line), Question::Namespaces, "{line}");
        }
        assert_eq!(asked("tree -o "), Question::Words(["wide", "json", "yaml"].map(str::to_owned).to_vec()));
        assert_eq!(asked("report -f "), Question::Files(vec![]));
        assert_eq!(asked("plan "), Question::Files(["rollout", "drain", "pool", "help"].map(str::to_owned).to_vec()));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for line in ["-n other tree", "tree --namespace other", "why --namespace=other"] {
            assert_eq!(namespace(&words(line)).as_deref(), Some("other"), "{line}");
        }
        assert_eq!(namespace(&words("tree -o")), None);
        assert_eq!(asked("plan rollout "), Question::Names(vec![TargetKind::Deployment]));
        assert_eq!(asked("rollout undo --dry-run "), Question::Names(vec![TargetKind::Deployment]));
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell", "kubectl"] {
            assert!(script(shell).unwrap().contains("kubectl-nodewright"), "{shell}");
        }
        assert!(script("dash").is_err());
    }
}
