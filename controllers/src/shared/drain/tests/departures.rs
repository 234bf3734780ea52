//! Which Pods are reported to have left, and what else a drain reports for its spans.

use super::*;

/// Plans, and lets the next plan know the notes.
fn run(fixture: &mut Fixture) -> DrainProgress {
    let progress = fixture.evictions();
    let notes = nodewright_runtime::plan::Notes::Replace(progress.notes.clone());
    fixture.notes = notes.after(std::mem::take(&mut fixture.notes), fixture.now);
    progress
}

fn traced(pods: &[Value]) -> Fixture {
    Fixture { traces: true, ..fixture(pods) }
}

/// What is reported, in words.
fn reported(progress: &DrainProgress) -> Vec<String> {
    let text = |gone: &Departure| {
        let since = gone.since.duration_since(now()).as_secs();
        let (name, left) = (&gone.pod.name, if gone.is_left { ", and is left" } else { "" });
        format!("{name} since {since}: {:?}, {:?}{left}", gone.removal, gone.blocked_by.as_deref())
    };
    progress.departures.iter().map(text).collect()
}

#[test]
fn a_pod_that_has_left_is_reported_once_with_what_this_process_knows() {
    let mut drain = traced(&[pod("a"), pod("held"), pod("forced"), leaving(pod("early"), after(20))]);
    assert!(run(&mut drain).departures.is_empty());
    drain = Fixture { now: after(60), ..drain.refused("held", 0, 55).refused("forced", -7_205, 0) };
    drain.pods = vec![pod("held"), pod("forced")];
    let gone = ["a since 0: Some(\"eviction\"), None", "early since -10: None, None"];
    assert_eq!(reported(&run(&mut drain)), gone);
    assert!(run(&mut drain).departures.is_empty(), "once");
    drain.now = after(90);
    drain.pods = vec![];
    drain.refusals.retain(|refusal| &*refusal.uid == "uid-forced");
    let progress = run(&mut drain);
    let budget = |name: &str| format!("Some(\"pod default/{name} is not evicted: no\")");
    let gone = [
        format!("forced since 0: Some(\"deletion\"), {}", budget("forced")),
        format!("held since 0: Some(\"eviction\"), {}", budget("held")),
    ];
    assert_eq!(reported(&progress), gone);
    assert_eq!(progress.end, Some(End::Done));
    assert_eq!(progress.departures[0].error(), None);
}

#[test]
fn a_pod_that_somebody_else_removed_has_no_removal_and_one_that_is_left_says_so() {
    let mut drain = traced(&[pod("a"), pod("b")]);
    run(&mut drain);
    drain = Fixture { pods: vec![pod("b")], ..drain.refused("a", 0, 0) };
    assert_eq!(reported(&run(&mut drain)), ["a since 0: None, None"], "its eviction was refused");
    drain = Fixture { force: Some("the drain timeout is over"), now: after(120), ..drain };
    drain.notes.insert(Note::Forced, now());
    drain.pods.push(leaving(pod("c"), after(150)));
    let progress = run(&mut drain);
    assert_eq!(reported(&progress), ["b since 0: Some(\"eviction\"), None, and is left"]);
    assert_eq!(progress.departures[0].error().as_deref(), Some("the drain ended before the pod did"));
    assert!(!drain.notes.keys().any(|note| matches!(note, Note::Leaving(_))), "the drain is over: {:?}", drain.notes);
    assert!(run(&mut drain).departures.is_empty());
}

#[test]
fn only_pods_that_leave_because_of_the_drain_are_noted() {
    let mut idle = traced(&[of_daemon_set(leaving(pod("d"), after(20)))]);
    assert!(run(&mut idle).departures.is_empty());
    assert!(idle.notes.is_empty(), "{:?}", idle.notes);
}

#[test]
fn a_drain_reports_a_hundred_pods_and_counts_the_others() {
    let many: Vec<_> = (0..130).map(|index| pod(&format!("p{index:03}"))).collect();
    let mut drain = traced(&many);
    run(&mut drain);
    drain.pods.drain(..90);
    assert_eq!(run(&mut drain).departures.len(), 90);
    drain.pods.clear();
    assert_eq!(run(&mut drain).departures.len(), 10, "the places of those that have left stay taken");
    let counts = Note::Leavers { reported: 100, others: 30 };
    assert!(drain.notes.contains_key(&counts), "{:?}", drain.notes);
    let mut untraced = fixture(&many);
    assert!(run(&mut untraced).notes.is_empty(), "without traces nothing is noted");
}

#[test]
fn a_wait_for_volumes_is_reported_once_when_it_is_over() {
    let waited = |fixture: Fixture| fixture.noted(detaching_note(), -30).noted(Note::WatchingVolumes, -30).detachment();
    let detached = waited(traced(&[])).detachment.unwrap();
    assert_eq!((detached.since, detached.volumes.as_str(), detached.is_left), (after(-30), "pv-a", false));
    assert!(waited(traced(&[]).attached("a", "n")).detachment.is_none(), "it lasts");
    let late = || traced(&[]).attached("a", "n").noted(detaching_note(), -130);
    assert!(late().detachment().detachment.unwrap().is_left);
    let again = late().noted(Note::DetachmentReported, -1).detachment();
    assert!(again.detachment.is_none() && again.notes.contains(&Note::DetachmentReported), "{:?}", again.notes);
    assert!(late().detachment().notes.contains(&Note::DetachmentReported));
    assert!(!fixture(&[]).detachment().notes.contains(&Note::DetachmentReported));
    assert!(waited(fixture(&[])).detachment.is_none());
}
