//! The rights that a service account has used, from the audit log.

use std::{collections::BTreeSet, env, fs, io, path::Path};

use serde_json::Value;

use super::{USER_AGENT, audit::AuditLog};

/// The environment variable with a directory, to which tests write the rights that managers have used.
pub const USED_RIGHTS_VARIABLE: &str = "NODEWRIGHT_USED_RIGHTS";

/// The rights that a service account has used, and those that it lacked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UsedRights {
    /// Lines of role, verb, API group and resource, with tabs between them; for a request that names an object one more, with its name.
    pub granted: BTreeSet<String>,
    /// Lines of verb, API group, resource and name of each request that no role allowed.
    pub denied: BTreeSet<String>,
}

impl UsedRights {
    /// Reads the requests of an account since the last read of the log, without those on paths that are no resources, and without those that
    /// a test makes with its credentials.
    pub fn read(log: &AuditLog, namespace: &str, account: &str) -> io::Result<Self> {
        let user = format!("\"system:serviceaccount:{namespace}:{account}\"");
        let mut rights = Self::default();
        log.clone().each_line(|_, line| {
            // Most lines are those of others, and JSON takes its time.
            let ours = std::str::from_utf8(line).ok().filter(|line| line.contains(&user));
            if let Some(line) = ours {
                rights.add(&serde_json::from_str(line)?, namespace);
            }
            Ok(())
        })?;
        Ok(rights)
    }

    fn add(&mut self, line: &Value, namespace: &str) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (annotations, object) = (&line["annotations"], &line["objectRef"]);
        let decision = annotations["authorization.k8s.io/decision"].as_str();
        if decision.is_none() || object["resource"].is_null() || line["userAgent"].as_str() == Some(USER_AGENT) {
            return;
        }
        let (verb, group, mut resource) = (text(&line["verb"]), text(&object["apiGroup"]), text(&object["resource"]));
        if let Some(subresource) = object["subresource"].as_str() {
            resource = format!("{resource}/{subresource}");
        }
        if decision == Some("allow") {
            // RBAC: allowed by RoleBinding "a/b" of Role "b" to ServiceAccount "c/d"
            let reason = text(&annotations["authorization.k8s.io/reason"]);
            let named = reason.split_once("Role \"").and_then(|(_, rest)| rest.split_once('"'));
            let role = of_config(named.map_or("", |(name, _)| name), namespace);
            let right = right(role, &verb, &group, &resource);
            let name = object["name"].as_str().map(|name| on(&right, of_config(name, namespace)));
            self.granted.extend([Some(right), name].into_iter().flatten());
        } else {
            self.denied.insert(format!("{verb}\t{group}\t{resource}\t{}", text(&object["name"])));
        }
    }

    /// Removes from [`denied`](Self::denied) each request like one that was granted at another time, whatever the object.
    pub fn forget_denials_of_granted(&mut self) {
        let granted: BTreeSet<_> = self.granted.iter().filter_map(|line| Some(line.split_once('\t')?.1)).collect();
        self.denied.retain(|line| line.rsplit_once('\t').is_none_or(|(right, _)| !granted.contains(right)));
    }

    /// Writes the rights that were used to a file of this name, if [`USED_RIGHTS_VARIABLE`] names a directory.
    pub fn record(&self, name: &str) -> io::Result<()> {
        let Some(directory) = env::var_os(USED_RIGHTS_VARIABLE) else { return Ok(()) };
        let lines = self.granted.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>();
        fs::write(Path::new(&directory).join(name), lines)
    }
}

/// A line of [`UsedRights::granted`].
pub fn right(role: &str, verb: &str, group: &str, resource: &str) -> String {
    format!("{role}\t{verb}\t{group}\t{resource}")
}

/// The line of a right on the object of this name.
pub fn on(right: &str, name: &str) -> String {
    format!("{right}\t{name}")
}

/// The name that an object has in `config/`: `config/another-namespace` appends the namespace.
pub fn of_config<'a>(name: &'a str, namespace: &str) -> &'a str {
    name.strip_suffix(namespace).and_then(|name| name.strip_suffix('-')).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    #[test]
    fn rights_are_those_of_one_account() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut log = |user: &str, agent: &str, decision: &str, subresource: Option<&str>| {
            let line = json!({
                "verb": "patch", "user": {"username": user}, "userAgent": agent,
                "objectRef": {"resource": "machines", "name": "m", "apiGroup": "g", "subresource": subresource},
                "annotations": {"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason":
                    "RBAC: allowed by ClusterRoleBinding \"r-a\" of ClusterRole \"r-a\" to ServiceAccount \"nodewright/a\""},
            });
            writeln!(file, "{line}").unwrap();
        };
        let ours = "system:serviceaccount:a:nodewright";
        log(ours, "nodewright/1", "allow", Some("status"));
        log(ours, "nodewright/1", "allow", Some("status"));
        log(ours, "nodewright/1", "forbid", None);
        log(ours, USER_AGENT, "forbid", None);
        log("system:serviceaccount:ab:nodewright", "nodewright/1", "allow", None);
        let used = UsedRights::read(&AuditLog::from_start(file.path()), "a", "nodewright").unwrap();
        assert_eq!(Vec::from_iter(used.granted), ["r\tpatch\tg\tmachines/status", "r\tpatch\tg\tmachines/status\tm"]);
        assert_eq!(Vec::from_iter(used.denied), ["patch\tg\tmachines\tm"]);
    }

    #[test]
    fn what_was_granted_at_another_time_is_not_lacked() {
        let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        let denied = set(&["list\tg\tmachines\t", "get\tg\tmachines\tm", "list\tg\tnodes\t"]);
        let mut used = UsedRights { granted: set(&["r\tlist\tg\tmachines"]), denied };
        used.forget_denials_of_granted();
        assert_eq!(used.denied, set(&["get\tg\tmachines\tm", "list\tg\tnodes\t"]));
    }

    #[test]
    fn an_object_has_the_name_of_config() {
        for (name, expected) in [("nodewright-nodes-a", "nodewright-nodes"), ("nodewright", "nodewright"), ("a", "a")] {
            assert_eq!(of_config(name, "a"), expected);
        }
    }
}
