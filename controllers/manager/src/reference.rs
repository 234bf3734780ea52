//! Compares `docs/reference/flags.md` with the flags. `UPDATE_FLAGS=1` writes it.

use std::{collections::BTreeMap, env, fmt::Write, fs, path::Path};

use clap::{Arg, CommandFactory};

use crate::flags::Arguments;

const HEAD: &str = "<!-- Made from the flags of `nodewright manager` by its tests (UPDATE_FLAGS=1); do not edit. -->\n\n\
    # Flags of the manager\n\n\
    What `nodewright manager --help` prints. [Commands and flags](commands.md) has what they have in common.\n";

fn row(arg: &Arg) -> Option<String> {
    let name = arg.get_long()?;
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values()).map(|names| format!("={}", names[0]));
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = defaults.join(",");
    let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    Some(format!("| `--{name}{}` | {default} | {help} |", value.unwrap_or_default()))
}

fn page() -> String {
    let mut command = Arguments::command();
    command.build();
    let manager = command.find_subcommand("manager").expect("the command");
    let (mut headings, mut tables) = (vec![], BTreeMap::<&str, Vec<String>>::new());
    for arg in
        manager.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help" && arg.get_id() != "version")
    {
        let heading = arg.get_help_heading().unwrap_or("Controllers");
        if !headings.contains(&heading) {
            headings.push(heading);
        }
        tables.entry(heading).or_default().extend(row(arg));
    }
    let mut page = HEAD.to_owned();
    for heading in headings {
        let rows = tables[heading].join("\n");
        writeln!(page, "\n## {heading}\n\n| flag | default | meaning |\n|---|---|---|\n{rows}").expect("text");
    }
    page
}

#[test]
fn the_page_has_the_flags_of_the_manager() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/flags.md");
    let expected = page();
    if env::var_os("UPDATE_FLAGS").is_some_and(|value| value == "1") {
        fs::write(&file, &expected).expect("the file can be written");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "{} differs; run the test with UPDATE_FLAGS=1", file.display());
}
