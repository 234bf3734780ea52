//! Compares the rights in `config/` with those that the managers of scenarios have used; see [`USED_RIGHTS_VARIABLE`].

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use nodewright_e2e_lab::control_plane::{binaries, rights::USED_RIGHTS_VARIABLE};
use nodewright_e2e_scenarios::{Failure, TestResult, ensure, service_account::granted};

/// Rights that no scenario uses: role, verb, API group, resource, and why the manager has it.
const UNUSED: [(&str, &str, &str, &str, &str); 0] = [];

#[tokio::test]
#[ignore = "reads what the scenarios leave behind, see `make test-rbac`"]
async fn each_right_is_used_or_explained() -> TestResult {
    let directory = env::var_os(USED_RIGHTS_VARIABLE).map(PathBuf::from);
    let directory = directory.ok_or_else(|| Failure::new(format!("{USED_RIGHTS_VARIABLE} names no directory")))?;
    let mut used = BTreeSet::new();
    for file in fs::read_dir(&directory)? {
        used.extend(fs::read_to_string(file?.path())?.lines().map(str::to_owned));
    }
    let granted = granted(&binaries().await?.join("kubectl")).await?;
    let explained: BTreeSet<_> =
        UNUSED.iter().map(|(role, verb, group, resource, _)| format!("{role}\t{verb}\t{group}\t{resource}")).collect();
    let print =
        |lines: BTreeSet<&String>| Vec::from_iter(lines.into_iter().map(|line| line.replace('\t', " "))).join("\n  ");
    let unused = print(granted.iter().filter(|right| !used.contains(*right) && !explained.contains(*right)).collect());
    ensure(unused.is_empty(), || format!("no scenario uses these rights, and nobody explains them:\n  {unused}"))?;
    let stale = print(explained.iter().filter(|right| used.contains(*right) || !granted.contains(*right)).collect());
    ensure(stale.is_empty(), || format!("these rights are explained, but used or no longer granted:\n  {stale}"))?;
    println!("{} rights: {} used, {} explained", granted.len(), granted.len() - explained.len(), explained.len());
    Ok(())
}
