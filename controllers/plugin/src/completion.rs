//! Completion: scripts of shells, and the answers that kubectl asks for.

use clap::CommandFactory;
use clap_complete::generate;

use crate::{
    arguments::{Arguments, shell},
    fault::{Outcome, fail},
    names::TargetKind,
    read::Scope,
};

/// kubectl runs the program of this name, if it is in the PATH, to complete the arguments of the plugin.
const PROGRAM: &str = "\
#!/bin/sh
# Put this in your PATH as kubectl_complete-nodewright, and make it executable.
exec kubectl-nodewright __complete -- \"$@\"
";
/// kubectl's directive: complete no files.
const NO_FILES: &str = ":4";

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
}

/// What may stand for the last of the words. The others are commands and flags.
pub(crate) fn question(words: &[String]) -> Question {
    let mut command = Arguments::command();
    command.build();
    let Some((last, before)) = words.split_last() else { return Question::Words(vec![]) };
    let mut path = vec![];
    for word in before.iter().filter(|word| !word.starts_with('-')) {
        let Some(next) = command.find_subcommand(word).cloned() else { break };
        path.push(word.as_str());
        command = next;
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|it| !it.is_hide_set()).filter_map(clap::Arg::get_long);
        return Question::Words(flags.map(|it| format!("--{it}")).collect());
    }
    let commands: Vec<_> =
        command.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.get_name().to_owned()).collect();
    match path.as_slice() {
        _ if !commands.is_empty() => Question::Words(commands),
        ["why"] => Question::Objects(TargetKind::ALL.to_vec()),
        ["approve"] => Question::Objects(vec![TargetKind::Node, TargetKind::Pool]),
        ["tree"] => Question::Names(vec![TargetKind::Deployment, TargetKind::Pool]),
        ["plan", "drain"] => Question::Names(vec![TargetKind::Node]),
        ["plan", "pool"] => Question::Names(vec![TargetKind::Pool]),
        ["rollout", _] => Question::Names(vec![TargetKind::Deployment]),
        ["preserve" | "release" | "replace" | "trace"] => Question::Names(vec![TargetKind::Machine]),
        ["completion"] => {
            Question::Words(["bash", "zsh", "fish", "elvish", "powershell", "kubectl"].map(str::to_owned).to_vec())
        }
        _ => Question::Words(vec![]),
    }
}

/// The answer in the form that kubectl reads. Without a cluster there are no names.
pub(crate) async fn answer(words: &[String], scope: impl AsyncFnOnce() -> Outcome<Scope>) -> String {
    let last = words.last().map(String::as_str).unwrap_or_default();
    let found = match question(words) {
        Question::Words(words) => words,
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
    format!("{lines}{NO_FILES}\n")
}

async fn names(kinds: &[TargetKind], scope: impl AsyncFnOnce() -> Outcome<Scope>) -> Vec<String> {
    let Ok(scope) = scope().await else { return vec![] };
    let mut all = vec![];
    for kind in kinds {
        let cluster = if kind.is_namespaced() { &scope.control } else { &scope.target };
        let objects = cluster.list(kind.resource(), scope.namespace.as_deref(), "").await.unwrap_or_default();
        let name = |it: &serde_json::Value| it.pointer("/metadata/name")?.as_str().map(str::to_owned);
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
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell", "kubectl"] {
            assert!(script(shell).unwrap().contains("kubectl-nodewright"), "{shell}");
        }
        assert!(script("dash").is_err());
    }
}
