//! The cloud on simulated time.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{
    Answer, Call, Caller, Cloud, Code, CreateVm, Effect, EventKind, Fault, FaultOperation, FaultOrder, KubeletOrder,
    ListVms, Page, Quota, Reply, Settings, Vm, VmState,
    memory::{Change, Memory},
};

/// A cloud whose clock the test advances.
struct TestCloud {
    cloud: Cloud,
    now: Timestamp,
    journal: Vec<Change>,
}

impl TestCloud {
    fn new() -> Self {
        Self::with(Settings { boot_jitter: 0.0, seed: 7, ..Settings::default() })
    }

    fn with(settings: Settings) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        Self { cloud: Cloud::new(settings, Memory::default()), now, journal: Vec::new() }
    }

    fn pass(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
        self.cloud.advance(self.now);
    }

    fn call(&mut self, call: &Call) -> Answer {
        let answer = self.cloud.call(self.now, call, Caller::Customer);
        self.journal.extend(self.cloud.take_changes());
        answer
    }

    fn create(&mut self, name: &str) -> Result<Vm, Code> {
        let call = Call::Create(Box::new(order(name)));
        vm(self.call(&call).reply)
    }

    fn delete(&mut self, id: &str) -> Result<Vm, Code> {
        vm(self.call(&Call::Delete(id.to_owned())).reply)
    }

    fn get(&mut self, id: &str) -> Result<Vm, Code> {
        vm(self.call(&Call::Get(id.to_owned())).reply)
    }

    fn list(&mut self, filter: ListVms) -> Page<Vm> {
        match self.call(&Call::List(filter)).reply {
            Reply::Page(page) => page,
            other => panic!("{other:?}"),
        }
    }

    fn names(&mut self) -> Vec<String> {
        self.list(ListVms::default()).items.into_iter().map(|vm| vm.name).collect()
    }

    fn fault(&mut self, operation: FaultOperation, effect: Effect) -> u64 {
        self.order_fault(FaultOrder::always(operation, effect).times(1))
    }

    fn order_fault(&mut self, order: FaultOrder) -> u64 {
        self.cloud.add_fault(self.now, order).unwrap().id
    }

    fn kinds(&self) -> Vec<EventKind> {
        self.cloud.events(0, 1_000).items.iter().map(|event| event.kind).collect()
    }
}

fn order(name: &str) -> CreateVm {
    CreateVm {
        name: name.to_owned(),
        token: format!("token-of-{name}"),
        tags: BTreeMap::from([("machine".to_owned(), name.to_owned()), ("cluster".to_owned(), "c".to_owned())]),
        ..CreateVm::default()
    }
}

fn vm(reply: Reply) -> Result<Vm, Code> {
    match reply {
        Reply::Vm { vm, .. } => Ok(*vm),
        Reply::Failed(failure) => Err(failure.code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vm_boots_runs_and_is_deleted() {
    use EventKind::{CreateAccepted, DeleteAccepted, VmGone, VmRunning};
    let mut test = TestCloud::new();
    let vm = test.create("a").unwrap();
    assert_eq!(vm.state, VmState::Pending);
    assert_eq!(vm.provider_id, format!("simulated:///{}", vm.id));
    test.pass(1.9);
    assert_eq!(test.get(&vm.id).unwrap().state, VmState::Pending);
    test.pass(0.1);
    assert_eq!(test.get(&vm.id).unwrap().state, VmState::Running);
    assert_eq!(test.delete(&vm.id).unwrap().state, VmState::Deleting);
    test.pass(0.5);
    assert_eq!(test.delete(&vm.id).unwrap().state, VmState::Deleting, "again, and it takes no longer");
    test.pass(0.5);
    assert_eq!(test.get(&vm.id), Err(Code::NotFound));
    assert_eq!(test.delete(&vm.id), Err(Code::NotFound));
    assert_eq!(test.kinds(), [CreateAccepted, VmRunning, DeleteAccepted, VmGone]);
    let stats = test.cloud.stats();
    assert_eq!((stats.created, stats.deleted, stats.live, stats.most_live_at_once), (1, 1, 0, 1));
}

#[test]
fn a_token_makes_one_vm_for_ever() {
    let mut test = TestCloud::new();
    let first = test.create("a").unwrap();
    assert_eq!(test.create("a").unwrap().id, first.id);
    let other = CreateVm { size: Some("large".to_owned()), ..order("a") };
    assert_eq!(vm(test.call(&Call::Create(Box::new(other))).reply), Err(Code::AlreadyExists));
    test.delete(&first.id).unwrap();
    assert_eq!(test.create("a").unwrap().state, VmState::Deleting);
    test.pass(2.0);
    assert_eq!(test.create("a"), Err(Code::FailedPrecondition));
    assert_eq!(test.cloud.stats().created, 1);
}

#[test]
fn the_answers_status_tells_a_new_vm_from_a_known_one() {
    let mut test = TestCloud::new();
    let call = Call::Create(Box::new(order("a")));
    for expected in [201, 200] {
        match test.call(&call).reply {
            Reply::Vm { status, .. } => assert_eq!(status, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_list_has_pages_and_filters() {
    let mut test = TestCloud::new();
    for number in 0..25 {
        test.create(&format!("m{number:02}")).unwrap();
    }
    let mut names = Vec::new();
    let mut after = None;
    loop {
        let page = test.list(ListVms { limit: Some(10), after, ..ListVms::default() });
        names.extend(page.items.into_iter().map(|vm| vm.name));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, (0..25).map(|number| format!("m{number:02}")).collect::<Vec<_>>());
    let tags = BTreeMap::from([("machine".to_owned(), "m07".to_owned())]);
    assert_eq!(test.list(ListVms { tags, ..ListVms::default() }).items[0].name, "m07");
    let by_name = test.list(ListVms { name: Some("m08".to_owned()), ..ListVms::default() });
    assert_eq!((by_name.items.len(), by_name.next), (1, None));
    let exactly = test.list(ListVms { limit: Some(25), ..ListVms::default() });
    assert_eq!(exactly.next, None, "a full last page has no next");
}

#[test]
fn the_quota_counts_what_is_not_gone_yet() {
    let mut test = TestCloud::new();
    test.cloud.set_quota(Quota { vms: Some(1) });
    let first = test.create("a").unwrap();
    assert_eq!(test.create("b"), Err(Code::ResourceExhausted));
    assert!(test.create("a").is_ok(), "a repeated call needs no quota");
    test.delete(&first.id).unwrap();
    assert_eq!(test.create("b"), Err(Code::ResourceExhausted));
    test.pass(1.0);
    assert!(test.create("b").is_ok());
}

#[test]
fn a_hung_or_cut_call_is_applied_or_not() {
    for (effect, applied) in [
        (Effect::Hang { applied: true }, true),
        (Effect::Hang { applied: false }, false),
        (Effect::Cut { applied: true }, true),
        (Effect::Cut { applied: false }, false),
        (Effect::Garbage, true),
        (Effect::Error { code: Code::Internal, message: None, applied: true }, true),
        (Effect::Error { code: Code::Internal, message: None, applied: false }, false),
    ] {
        let mut test = TestCloud::new();
        test.fault(FaultOperation::Create, effect.clone());
        let answer = test.call(&Call::Create(Box::new(order("a"))));
        assert!(!matches!(answer.reply, Reply::Vm { .. }), "{effect:?}: {answer:?}");
        assert_eq!(test.names().len(), usize::from(applied), "{effect:?}");
        assert!(test.create("a").is_ok(), "{effect:?}: the fault struck once only");
        assert_eq!(test.cloud.stats().created, 1, "{effect:?}");
    }
}

#[test]
fn latencies_add_up() {
    let mut test = TestCloud::new();
    test.fault(FaultOperation::Any, Effect::Latency { seconds: 2.0 });
    test.fault(FaultOperation::Create, Effect::Latency { seconds: 3.0 });
    test.fault(FaultOperation::Create, Effect::AnswerLate { seconds: 10.0 });
    let answer = test.call(&Call::Create(Box::new(order("a"))));
    assert_eq!(answer.after, Duration::from_millis(15_100));
    assert!(matches!(answer.reply, Reply::Vm { status: 201, .. }));
    assert_eq!(test.names(), ["a"], "it was done at once all the same");
}

#[test]
fn a_late_create_appears_later_but_never_twice() {
    let mut test = TestCloud::new();
    test.fault(FaultOperation::Create, Effect::ApplyLate { seconds: 90.0, code: Code::DeadlineExceeded });
    assert_eq!(test.create("a"), Err(Code::DeadlineExceeded));
    test.pass(89.0);
    assert!(test.names().is_empty());
    test.pass(1.0);
    assert_eq!(test.names(), ["a"]);

    test.fault(FaultOperation::Create, Effect::ApplyLate { seconds: 90.0, code: Code::DeadlineExceeded });
    assert!(test.create("b").is_err());
    let b = test.create("b").unwrap();
    test.delete(&b.id).unwrap();
    test.pass(200.0);
    assert_eq!(test.names(), ["a"], "the late one found its token spent");
}

#[test]
fn a_late_delete_comes_later() {
    let mut test = TestCloud::new();
    let a = test.create("a").unwrap();
    test.fault(FaultOperation::Delete, Effect::ApplyLate { seconds: 10.0, code: Code::Unavailable });
    assert_eq!(test.delete(&a.id), Err(Code::Unavailable));
    test.pass(9.0);
    assert_ne!(test.get(&a.id).unwrap().state, VmState::Deleting);
    test.pass(2.0);
    assert!(test.names().is_empty());
}

#[test]
fn lists_can_lie() {
    let mut test = TestCloud::new();
    for name in ["a", "b", "c"] {
        test.create(name).unwrap();
    }
    test.fault(FaultOperation::List, Effect::ListTruncated { items: 1 });
    assert_eq!(test.names(), ["a"]);
    test.fault(FaultOperation::List, Effect::ListEmpty);
    assert!(test.names().is_empty());
    test.fault(FaultOperation::List, Effect::ListEndless);
    let page = test.list(ListVms::default());
    let again = test.list(ListVms { after: page.next, ..ListVms::default() });
    assert_eq!(again.items, page.items);
    assert_eq!(test.names().len(), 3);
}

#[test]
fn a_new_vm_can_be_invisible_at_first() {
    let mut test = TestCloud::new();
    test.fault(FaultOperation::Create, Effect::Invisible { seconds: 300.0 });
    let a = test.create("a").unwrap();
    assert_eq!(test.get(&a.id), Err(Code::NotFound));
    assert!(test.names().is_empty());
    let seen = test.cloud.call(test.now, &Call::Get(a.id.clone()), Caller::Observer);
    assert!(matches!(seen.reply, Reply::Vm { .. }), "an observer sees it");
    test.pass(300.0);
    assert!(test.get(&a.id).is_ok());
}

#[test]
fn a_fault_strikes_whom_it_is_for() {
    let mut test = TestCloud::new();
    let effect = Effect::Error { code: Code::PermissionDenied, message: None, applied: false };
    let order = FaultOrder::always(FaultOperation::Any, effect).on_machine("bad-*");
    let id = test.order_fault(order.for_seconds(60.0));
    assert_eq!(test.create("bad-1"), Err(Code::PermissionDenied));
    let good = test.create("good-1").unwrap();
    assert!(test.get(&good.id).is_ok());
    assert_eq!(test.names(), ["good-1"], "a list that is about no machine passes");
    assert_eq!(test.cloud.faults(test.now)[0].struck, 1);
    test.pass(60.0);
    assert!(test.create("bad-1").is_ok());
    assert!(test.cloud.faults(test.now).is_empty());
    assert_eq!(test.cloud.end_faults(Some(id)), 0);
}

#[test]
fn a_probable_fault_strikes_now_and_then() {
    let mut test = TestCloud::new();
    let effect = Effect::Error { code: Code::Internal, message: None, applied: false };
    let order = FaultOrder { probability: Some(0.5), ..FaultOrder::always(FaultOperation::Create, effect) };
    test.order_fault(order);
    let failed = (0..100).filter(|number| test.create(&format!("m{number}")).is_err()).count();
    assert!((30..70).contains(&failed), "{failed}");
}

#[test]
fn nonsense_is_refused() {
    let mut test = TestCloud::new();
    for bad in [
        CreateVm { name: String::new(), ..order("a") },
        CreateVm { token: "x".repeat(300), ..order("a") },
        CreateVm { size: Some("gigantic".to_owned()), ..order("a") },
        CreateVm { boot_seconds: Some(f64::NAN), ..order("a") },
        CreateVm { boot_seconds: Some(-1.0), ..order("a") },
        CreateVm { tags: (0..65).map(|number| (number.to_string(), String::new())).collect(), ..order("a") },
    ] {
        assert_eq!(vm(test.call(&Call::Create(Box::new(bad))).reply), Err(Code::InvalidArgument));
    }
    for bad in [
        FaultOrder::always(FaultOperation::Get, Effect::ListEmpty),
        FaultOrder::always(FaultOperation::Any, Effect::NeverJoins),
        FaultOrder::always(FaultOperation::List, Effect::ApplyLate { seconds: 1.0, code: Code::Internal }),
        FaultOrder::always(FaultOperation::Any, Effect::Latency { seconds: f64::INFINITY }),
        FaultOrder::always(FaultOperation::Any, Effect::Garbage).times(0),
    ] {
        assert_eq!(test.cloud.add_fault(test.now, bad).unwrap_err().code, Code::InvalidArgument);
    }
}

#[test]
fn a_vm_dies_and_comes_back() {
    let mut test = TestCloud::new();
    let a = test.create("a").unwrap();
    test.pass(2.0);
    let now = test.now;
    assert_eq!(test.cloud.kill(now, &a.id).unwrap().state, VmState::Stopped);
    assert_eq!(test.cloud.start(now, &a.id).unwrap().state, VmState::Running);
    test.delete(&a.id).unwrap();
    assert_eq!(test.cloud.kill(now, &a.id).unwrap().state, VmState::Deleting, "what is being deleted stays so");
    assert_eq!(test.cloud.kill(now, "nobody").unwrap_err().code, Code::NotFound);
}

#[test]
fn a_kubelet_takes_other_names() {
    let mut test = TestCloud::new();
    let a = test.create("a").unwrap();
    let now = test.now;
    let mut names = |order| {
        test.cloud.order_kubelet(now, &a.id, order).unwrap();
        test.cloud.memory().vms[&a.id].node_names()
    };
    assert_eq!(names(KubeletOrder::RegisterAlso { node_name: "b".to_owned() }), ["a", "b"]);
    assert_eq!(names(KubeletOrder::Rename { node_name: "c".to_owned() }), ["c"]);
}

#[test]
fn what_the_journal_says_is_what_was_there() {
    let mut test = TestCloud::with(Settings { seed: 3, ..Settings::default() });
    test.cloud.set_quota(Quota { vms: Some(3) });
    test.fault(FaultOperation::Create, Effect::ApplyLate { seconds: 5.0, code: Code::Internal });
    for name in ["a", "b", "c", "d", "e"] {
        drop(test.create(name));
    }
    let id = test.list(ListVms::default()).items[0].id.clone();
    test.delete(&id).unwrap();
    test.pass(0.7);
    test.order_fault(FaultOrder::always(FaultOperation::Get, Effect::Latency { seconds: 1.0 }));
    test.journal.extend(test.cloud.take_changes());

    let mut read = Memory::default();
    for change in &test.journal {
        let line = serde_json::to_string(change).unwrap();
        read.apply(serde_json::from_str(&line).unwrap());
    }
    assert_eq!(&read, test.cloud.memory());

    // A restarted cloud continues like the other one, but never repeats an id.
    let mut restarted = TestCloud { cloud: Cloud::new(test.cloud.settings, read), now: test.now, journal: Vec::new() };
    test.pass(10.0);
    restarted.pass(10.0);
    assert_eq!(restarted.cloud.stats().created, test.cloud.stats().created);
    assert_eq!(restarted.cloud.stats().live, test.cloud.stats().live);
}

#[test]
fn the_same_seed_gives_the_same_cloud() {
    let run = |seed| {
        let mut test = TestCloud::with(Settings { seed, ..Settings::default() });
        for number in 0..20 {
            test.create(&format!("m{number}")).unwrap();
            test.pass(0.3);
        }
        test.cloud.memory().clone()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn faults_are_written_as_documented() {
    for text in [
        r#"{"operation":"create","effect":{"kind":"latency","seconds":2}}"#,
        r#"{"operation":"any","match":{"machine":"worker-*"},"count":3,"effect":{"kind":"error","code":"Internal"}}"#,
        r#"{"operation":"get","for_seconds":60,"probability":0.1,"effect":{"kind":"hang"}}"#,
        r#"{"operation":"delete","effect":{"kind":"answer-late","seconds":5}}"#,
        r#"{"operation":"create","effect":{"kind":"cut"}}"#,
        r#"{"operation":"create","effect":{"kind":"apply-late","seconds":90}}"#,
        r#"{"operation":"list","effect":{"kind":"garbage"}}"#,
        r#"{"operation":"list","effect":{"kind":"list-truncated","items":1}}"#,
        r#"{"operation":"list","effect":{"kind":"list-empty"}}"#,
        r#"{"operation":"list","effect":{"kind":"list-endless"}}"#,
        r#"{"operation":"create","effect":{"kind":"invisible","seconds":300}}"#,
        r#"{"operation":"create","effect":{"kind":"boot","seconds":60}}"#,
        r#"{"operation":"create","effect":{"kind":"never-joins"}}"#,
    ] {
        let order: FaultOrder = serde_json::from_str(text).unwrap();
        let mut test = TestCloud::new();
        let fault = test.cloud.add_fault(test.now, order).unwrap();
        let again: Fault = serde_json::from_str(&serde_json::to_string(&fault).unwrap()).unwrap();
        assert_eq!(again, fault, "{text}");
    }
    for text in [
        r#"{"operation":"create","effect":{"kind":"explode"}}"#,
        r#"{"operation":"create","effect":{"kind":"hang"},"often":true}"#,
        r#"{"operation":"create","effect":{"kind":"error","code":"Oops"}}"#,
    ] {
        assert!(serde_json::from_str::<FaultOrder>(text).is_err(), "{text}");
    }
}

#[test]
fn kubelet_orders_are_written_as_documented() {
    for text in [
        r#"{"action":"silence"}"#,
        r#"{"action":"revive"}"#,
        r#"{"action":"flap","seconds":5}"#,
        r#"{"action":"not-ready"}"#,
        r#"{"action":"ready"}"#,
        r#"{"action":"rename","nodeName":"x"}"#,
        r#"{"action":"register-also","nodeName":"x"}"#,
    ] {
        assert!(serde_json::from_str::<KubeletOrder>(text).is_ok(), "{text}");
    }
}

#[test]
fn the_history_can_be_read_in_parts() {
    let mut test = TestCloud::new();
    for number in 0..10 {
        test.create(&format!("m{number}")).unwrap();
    }
    let first = test.cloud.events(0, 4);
    assert_eq!(first.items.iter().map(|event| event.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let rest = test.cloud.events(4, 1_000);
    assert_eq!((rest.items.len(), rest.items[0].number, rest.next), (6, 5, None));
    assert!(test.cloud.events(99, 10).items.is_empty());
    assert!(test.cloud.events(u64::MAX, 10).items.is_empty());
}
