//! Paths of a node's file system, by the rules of Go's package `path`.

/// Why Ignition refuses a path. None if it is absolute and clean.
pub(super) fn error(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        _ if !path.starts_with('/') => Some("must be absolute"),
        _ if clean(path) != path => Some("must have no empty, `.` or `..` part, and no slash at its end"),
        _ => None,
    }
}

/// Go's `path.Clean`: the shortest path that means the same.
pub(super) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    match (rooted, parts.join("/")) {
        (true, rest) => format!("/{rest}"),
        (false, rest) if rest.is_empty() => ".".to_owned(),
        (false, rest) => rest,
    }
}

/// Go's `path.Ext`: what begins with the last dot of the last part.
pub(super) fn extension(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind('.').map_or("", |dot| &name[dot..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_in_go() {
        for (path, cleaned) in [
            ("/", "/"),
            ("//", "/"),
            ("/a/", "/a"),
            ("/a//b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/..", "/"),
            ("a/..", "."),
            ("../a", "../a"),
            ("a/../../b", "../b"),
        ] {
            assert_eq!(clean(path), cleaned, "{path}");
        }
    }
}
