//! Reading a folder of templates.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use nodewright_render::templates::{LARGEST_FILE, MOST_FILES, TemplateError, Templates};

/// Role, name, variant and section: folders below them are not read.
const DEEPEST: usize = 4;
/// What is replaced where the folder is a mounted `ConfigMap`: the kubelet lets this link point to other files, all at once.
const MOUNTED: &str = "..data";
/// How often a folder is read that is replaced meanwhile.
const ATTEMPTS: usize = 3;

/// Reads the templates of a folder. Links are followed; what has a name that begins with a dot is left out.
///
/// # Errors
/// The folder is missing or cannot be read, is too large, or is replaced again and again while it is read.
pub fn read(folder: &Path) -> Result<Templates, TemplateError> {
    for _ in 0..ATTEMPTS {
        let version = || fs::read_link(folder.join(MOUNTED)).ok();
        let before = version();
        let read = read_once(folder);
        if before == version() {
            return read;
        }
    }
    Err(TemplateError::of_file("", format!("{} is replaced while it is read", folder.display())))
}

fn read_once(root: &Path) -> Result<Templates, TemplateError> {
    let mut templates = Templates::default();
    // With a bound for folders as well, which may be empty.
    let (mut folders, mut seen) = (vec![(root.to_owned(), String::new(), 0)], 0);
    while let Some((folder, path, depth)) = folders.pop() {
        let fail =
            |error: io::Error| TemplateError::of_file(&path, format!("failed to read {}: {error}", folder.display()));
        for entry in fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let shown = name.to_string_lossy();
            if shown.starts_with('.') {
                continue;
            }
            let path = if path.is_empty() { shown.to_string() } else { format!("{path}/{shown}") };
            seen += 1;
            if name.to_str().is_none() || seen > 2 * MOST_FILES {
                return Err(TemplateError::of_file(
                    &path,
                    "has a name that is no text, or the folder has too many files",
                ));
            }
            let kind = fs::metadata(entry.path()).map_err(|error| unreadable(&path, &error))?;
            if kind.is_dir() {
                if depth == DEEPEST {
                    return Err(TemplateError::of_file(
                        &path,
                        "is a folder, and templates are not read below this one",
                    ));
                }
                folders.push((entry.path(), path, depth + 1));
            } else {
                templates
                    .add(&path, content(&entry.path(), kind.is_file()).map_err(|error| unreadable(&path, &error))?)?;
            }
        }
    }
    Ok(templates)
}

fn unreadable(path: &str, error: &io::Error) -> TemplateError {
    TemplateError::of_file(path, format!("failed to read it: {error}"))
}

/// What is in a file; of one that is too large a part that is too large.
fn content(file: &PathBuf, is_file: bool) -> io::Result<Vec<u8>> {
    if !is_file {
        return Err(io::Error::other("it is no file"));
    }
    let mut content = Vec::new();
    File::open(file)?.take(LARGEST_FILE as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn expected(files: &[(&str, &str)]) -> Templates {
        let mut templates = Templates::default();
        for (path, text) in files {
            templates.add(path, text.as_bytes().to_vec()).unwrap();
        }
        templates
    }

    #[test]
    fn a_folder_is_read_with_its_links_and_without_hidden_files() {
        let root = tempfile::tempdir().unwrap();
        // As a kubelet mounts a ConfigMap.
        write(root.path(), "..2026/worker/a/_base/files/a.yaml", "a");
        symlink("..2026", root.path().join("..data")).unwrap();
        symlink("..data/worker", root.path().join("worker")).unwrap();
        write(root.path(), "README.md", "b");
        write(root.path(), ".git/config", "c");
        assert_eq!(read(root.path()), Ok(expected(&[("worker/a/_base/files/a.yaml", "a"), ("README.md", "b")])));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = |text: &str| {
            let error = read(root.path()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        assert_eq!(read(root.path()), Ok(Templates::default()), "an empty folder is no error here");
        symlink(".", root.path().join("loop")).unwrap();
        error("loop/loop/loop/loop/loop: is a folder");
        fs::remove_file(root.path().join("loop")).unwrap();
        write(root.path(), "large", &"x".repeat(LARGEST_FILE + 1));
        error("large: has more than");
        fs::remove_file(root.path().join("large")).unwrap();
        symlink("nowhere", root.path().join("dangling")).unwrap();
        error("dangling: failed to read it");
        fs::remove_file(root.path().join("dangling")).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        error("socket: failed to read it: it is no file");
        drop(socket);
        let missing = root.path().join("missing");
        assert!(read(&missing).unwrap_err().to_string().contains("failed to read"));
    }
}
