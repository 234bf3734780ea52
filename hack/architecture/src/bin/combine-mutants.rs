//! Puts the changes of patches into one tree, so that it is compiled once for all of them: `combine-mutants TREE PATCH…`. The
//! environment variable `NODEWRIGHT_MUTANT` chooses one by the patch's name.

use std::{collections::BTreeMap, error::Error, fs, path::Path, process::Command};

use nodewright_architecture::combine;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tree = arguments.next().ok_or("usage: combine-mutants TREE PATCH…")?;
    let mut versions: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for patch in arguments {
        let name = Path::new(&patch).file_stem().ok_or("a patch has no name")?.to_string_lossy().into_owned();
        let patch = fs::canonicalize(&patch)?.to_string_lossy().into_owned();
        git(&tree, &["apply", &patch])?;
        for file in git(&tree, &["diff", "--name-only"])?.lines() {
            let text = fs::read_to_string(Path::new(&tree).join(file))?;
            versions.entry(file.to_owned()).or_default().push((name.clone(), text));
        }
        git(&tree, &["checkout", "--quiet", "."])?;
    }
    for (file, versions) in versions {
        let path = Path::new(&tree).join(&file);
        let combined = combine(&fs::read_to_string(&path)?, &versions)
            .map_err(|name| format!("{name} changes more in {file} than the bodies of functions"))?;
        fs::write(path, combined)?;
    }
    Ok(())
}

fn git(tree: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    let output = Command::new("git").arg("-C").arg(tree).args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr)).into())
}
