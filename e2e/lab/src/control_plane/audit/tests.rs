use std::io::Write;

use super::*;

fn line(agent: &str, verb: &str, stage: &str, subresource: &str, code: u16) -> String {
    serde_json::json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "1", "stage": stage,
        "requestURI": "/apis/machine.sapcloud.io/v1alpha1/namespaces/a/machines/b?fieldManager=x",
        "verb": verb, "user": {"username": "administrator", "groups": ["system:masters"]}, "userAgent": agent,
        "objectRef": {"resource": "machines", "namespace": "a", "name": "b", "subresource": subresource},
        "responseStatus": {"metadata": {}, "code": code},
        "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z", "stageTimestamp": "2026-01-02T03:04:05.678902Z",
    })
    .to_string()
}

fn parse_all(lines: &[String]) -> Vec<Entry> {
    let mut arrived = HashMap::new();
    lines.iter().filter_map(|line| parse(&mut arrived, 0, line.as_bytes()).unwrap()).collect()
}

#[test]
fn reads_on_where_it_stopped_and_leaves_half_a_line() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut log = AuditLog::from_start(file.path());
    let text = line("nodewright/1 (machine)", "patch", "ResponseComplete", "status", 200);
    let (first, second) = text.split_at(20);
    write!(file, "{text}\n{first}").unwrap();
    assert_eq!(log.read().unwrap().len(), 1);
    assert_eq!(log.read().unwrap().len(), 0);
    writeln!(file, "{second}").unwrap();
    assert_eq!(log.read().unwrap()[0].subresource, "status");
}

#[test]
fn a_missing_log_is_empty_and_old_lines_can_be_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    assert_eq!(AuditLog::from_start(&path).read().unwrap(), []);
    std::fs::write(&path, line("x", "get", "ResponseComplete", "", 200) + "\n").unwrap();
    assert_eq!(AuditLog::from_now(&path).unwrap().read().unwrap(), []);
    let (before, next) = (line("x", "get", "ResponseComplete", "", 200), line("y", "get", "ResponseComplete", "", 200));
    for before in [String::new(), before + "\n"] {
        std::fs::write(&path, before.clone() + &next[..20]).unwrap();
        let mut log = AuditLog::from_now(&path).unwrap();
        std::fs::write(&path, before + &next + "\n").unwrap();
        let agents: Vec<_> = log.read().unwrap().into_iter().map(|entry| entry.user_agent).collect();
        assert_eq!(agents, ["y"]);
    }
}

#[test]
fn a_rotated_log_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = line("x", "get", "ResponseComplete", "", 200) + "\n";
    std::fs::write(file.path(), text.repeat(2)).unwrap();
    let mut log = AuditLog::from_start(file.path());
    assert_eq!(log.read().unwrap().len(), 2);
    std::fs::write(file.path(), text).unwrap();
    assert!(log.read().unwrap_err().to_string().contains("rotated"));
}

#[test]
fn each_request_counts_once() {
    let lines = [
        line("nodewright/1 (machine)", "watch", "ResponseStarted", "", 200),
        line("nodewright/1 (machine)", "watch", "ResponseComplete", "", 200),
        line("nodewright/1 (machine)", "patch", "ResponseStarted", "", 201),
        line("nodewright/1 (machine)", "patch", "ResponseComplete", "", 201),
        line("kubectl/1", "patch", "ResponseComplete", "", 201),
    ];
    let entries = parse_all(&lines);
    let counts = Counts::by_agent(&entries, "nodewright/");
    assert_eq!(counts.total(), 2);
    assert_eq!(counts.exactly("patch", "machines", 201), 1);
    assert_eq!(Counts::of(&entries).exactly("patch", "machines", 201), 2);
    assert!(!entries[0].is_write() && entries[1].is_write());
}

#[test]
fn the_body_of_a_write_is_read_if_the_log_has_one() {
    let mut logged: serde_json::Value =
        serde_json::from_str(&line("a", "patch", "ResponseComplete", "status", 200)).unwrap();
    assert!(parse_all(&[logged.to_string()])[0].body.is_null());
    logged["requestObject"] = serde_json::json!([{"op": "test", "path": "/metadata/uid", "value": "1"}]);
    assert_eq!(parse_all(&[logged.to_string()])[0].body, logged["requestObject"]);
}

#[test]
fn requests_at_once_are_those_without_an_answer_yet() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut log = AuditLog::from_start(file.path());
    let stage = |id: &str, stage| {
        line("a", "create", stage, "eviction", 201).replace(r#""auditID":"1""#, &format!(r#""auditID":"{id}""#))
    };
    let mut entries = vec![];
    // The log may be read in the midst of a request.
    for part in ["+a +b -b +c", "+d -c -a", "-d +e -e"] {
        for event in part.split(' ') {
            let (what, id) = event.split_at(1);
            writeln!(file, "{}", stage(id, if what == "+" { "RequestReceived" } else { "ResponseComplete" })).unwrap();
        }
        entries.extend(log.read().unwrap());
    }
    assert_eq!(entries.len(), 5);
    assert_eq!(most_at_once(&entries), Some(3), "b was answered before c came");
    assert_eq!((most_at_once(&entries[4..]), most_at_once([])), (Some(1), Some(0)));
    let unknown = parse_all(&[stage("f", "ResponseComplete")]);
    assert_eq!(most_at_once(&unknown), None, "its arrival is not in the log");
}

#[test]
fn prints_a_table() {
    let lines = [
        line("a", "patch", "ResponseComplete", "status", 200),
        line("a", "patch", "ResponseComplete", "status", 200),
        line("a", "delete", "ResponseComplete", "", 200),
    ];
    let counts = Counts::of(&parse_all(&lines));
    let expected = "\
RESOURCE         VERB              CODE  REQUESTS
machines         delete             200         1
machines/status  patch              200         2
total                                           3
";
    assert_eq!(counts.to_string(), expected);
}
