//! The calls of drivers, and how faults change them.

use jiff::Timestamp;

use super::{
    api::{
        Code, CreateVm, DEFAULT_PAGE, Effect, EventKind, Failure, FaultOperation, ListVms, PAGE_LIMIT, Page, Vm,
        VmState, duration,
    },
    fault::{About, Strike},
    memory::{Hardware, KubeletBehavior, Postponed, Shape, VmRecord},
    state::{Answer, Cloud, Reply},
};

/// The label of a Node with the zone of its VM.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A call of a driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// `POST /vms`
    Create(Box<CreateVm>),
    /// `GET /vms/<id>`
    Get(String),
    /// `GET /vms`
    List(ListVms),
    /// `DELETE /vms/<id>`
    Delete(String),
}

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A driver: the call is counted, delayed, and meets faults.
    Customer,
    /// A test.
    Observer,
}

impl Call {
    fn operation(&self) -> FaultOperation {
        match self {
            Self::Create(_) => FaultOperation::Create,
            Self::Get(_) => FaultOperation::Get,
            Self::List(_) => FaultOperation::List,
            Self::Delete(_) => FaultOperation::Delete,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Get(_) => "get",
            Self::List(_) => "list",
            Self::Delete(_) => "delete",
        }
    }
}

impl Cloud {
    /// Executes a call. Returns when and how the caller learns of the result.
    pub fn call(&mut self, now: Timestamp, call: &Call, caller: Caller) -> Answer {
        self.advance(now);
        if caller == Caller::Observer {
            let reply = self.perform(now, call, Shape::default(), caller);
            return Answer { after: std::time::Duration::ZERO, reply };
        }
        let about = self.about(call);
        let strike = self.strike(now, call.operation(), &about);
        let (late_seconds, reply) = self.suffer(now, call, &about, &strike);
        let latency = match call {
            Call::Create(_) => self.settings.create_latency_seconds,
            _ => self.settings.latency_seconds,
        };
        // Each part is bounded. The sum may exceed the bound of a part.
        let seconds = (latency + strike.latency_seconds + late_seconds).max(0.0);
        self.count(call, &reply);
        Answer { after: std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default(), reply }
    }

    /// The VM of a call, for faults that apply to some machines only.
    fn about(&self, call: &Call) -> About {
        let of = |order: &CreateVm| About {
            machine: Some(order.name.clone()),
            zone: order.zone.as_ref().or_else(|| order.node.labels.get(ZONE_LABEL)).cloned(),
        };
        match call {
            Call::Create(order) => of(order),
            Call::Get(id) | Call::Delete(id) => self.memory.vms.get(id).map(|vm| of(&vm.order)).unwrap_or_default(),
            Call::List(filter) => {
                let machine = filter.name.clone().or_else(|| filter.tags.get("machine").cloned());
                About { machine, zone: None }
            }
        }
    }

    /// Executes a call with its faults. Returns the additional delay in seconds, and the reply.
    fn suffer(&mut self, now: Timestamp, call: &Call, about: &About, strike: &Strike) -> (f64, Reply) {
        let Some(effect) = &strike.instead else {
            return (0.0, self.perform(now, call, strike.shape, Caller::Customer));
        };
        let applied = match effect {
            Effect::Error { applied, .. } | Effect::Hang { applied } | Effect::Cut { applied } => *applied,
            Effect::ApplyLate { .. } | Effect::Throttled | Effect::NoCapacity => false,
            _ => true,
        };
        let reply = applied.then(|| self.perform(now, call, strike.shape, Caller::Customer));
        match (effect, reply) {
            (Effect::Error { code, message, .. }, _) => {
                let message = message.clone().unwrap_or_else(|| "ordered by a fault".to_owned());
                (0.0, Reply::Failed(Failure::new(*code, message)))
            }
            (Effect::Throttled, _) => (0.0, Reply::Failed(Failure::throttled())),
            (Effect::NoCapacity, _) => (0.0, Reply::Failed(Failure::without_capacity(about.zone.as_deref()))),
            (Effect::Hang { .. }, _) => (0.0, Reply::Never),
            (Effect::Cut { .. }, _) => (0.0, Reply::Cut),
            (Effect::Garbage, _) => (0.0, Reply::Garbage),
            (Effect::ApplyLate { seconds, code }, _) => {
                (0.0, self.apply_late(now, call, strike.shape, *seconds, *code))
            }
            (Effect::AnswerLate { seconds }, Some(reply)) => (*seconds, reply),
            (effect, Some(Reply::Page(page))) => (0.0, Reply::Page(spoil(page, effect))),
            (_, Some(reply)) => (0.0, reply),
            (_, None) => (0.0, Reply::Never),
        }
    }

    fn apply_late(&mut self, now: Timestamp, call: &Call, shape: Shape, seconds: f64, code: Code) -> Reply {
        let at = match duration("seconds", seconds) {
            Ok(later) => now + later,
            Err(failure) => return Reply::Failed(failure),
        };
        match call {
            Call::Create(order) => {
                self.postpone(at, Postponed::Create { order: order.clone(), shape });
                let (name, token) = (Some(order.name.as_str()), Some(order.token.as_str()));
                self.note(now, EventKind::CreatePostponed, None, name, token, Some(format!("until {at}")));
            }
            Call::Delete(id) => {
                self.postpone(at, Postponed::Delete { id: id.clone() });
                self.note_vm(now, EventKind::DeletePostponed, id, Some(format!("until {at}")));
            }
            Call::Get(_) | Call::List(_) => {}
        }
        Reply::Failed(Failure::new(code, "the call was not answered in time"))
    }

    fn perform(&mut self, now: Timestamp, call: &Call, shape: Shape, caller: Caller) -> Reply {
        let result = match call {
            Call::Create(order) => self.create(now, order, shape),
            Call::Delete(id) => self.delete(now, id),
            Call::Get(id) => self.get(now, id, caller),
            Call::List(filter) => return Reply::Page(self.list(now, filter, caller)),
        };
        match result {
            Ok((status, vm)) => Reply::Vm { status, vm: Box::new(vm) },
            Err(failure) => Reply::Failed(failure),
        }
    }

    pub(super) fn create(&mut self, now: Timestamp, order: &CreateVm, shape: Shape) -> Result<(u16, Vm), Failure> {
        let result = self.repeated(order).and_then(|repeated| match repeated {
            Some(vm) => Ok((200, vm)),
            None => self.admit(order).map(|()| (201, self.make(now, order, shape))),
        });
        match &result {
            Ok((200, vm)) => self.note_vm(now, EventKind::CreateRepeated, &vm.id, None),
            Ok((_, vm)) => self.note_vm(now, EventKind::CreateAccepted, &vm.id, None),
            Err(failure) => {
                let (name, token) = (Some(order.name.as_str()), Some(order.token.as_str()));
                self.note(now, EventKind::CreateRefused, None, name, token, Some(failure.to_string()));
            }
        }
        result
    }

    /// The VM that the token created before.
    fn repeated(&self, order: &CreateVm) -> Result<Option<Vm>, Failure> {
        let Some(id) = self.memory.tokens.get(&order.token) else { return Ok(None) };
        let Some(vm) = self.memory.vms.get(id) else {
            let message = format!("the token was used for vm {id:?}, which is deleted; a new vm needs a new token");
            return Err(Failure::new(Code::FailedPrecondition, message));
        };
        if vm.order != *order {
            let message =
                format!("IdempotentParameterMismatch: the token was used for vm {id:?} with other parameters");
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        Ok(Some(vm.view()))
    }

    fn admit(&self, order: &CreateVm) -> Result<(), Failure> {
        order.validate()?;
        match self.memory.quota.vms {
            Some(quota) if self.memory.live() >= quota => Err(Failure::beyond_quota(quota)),
            _ => Ok(()),
        }
    }

    fn make(&mut self, now: Timestamp, order: &CreateVm, shape: Shape) -> Vm {
        let number = self.memory.sequence + 1;
        let suffix: String = std::iter::repeat_with(|| self.random.lowercase()).take(4).collect();
        let invisible = shape.invisible_seconds.max(self.settings.visible_after_seconds);
        let vm = VmRecord {
            number,
            id: format!("vm-{number:08}-{suffix}"),
            order: order.clone(),
            state: VmState::Pending,
            created_at: now,
            visible_from: later(now, invisible),
            boots_at: later(now, self.boot_seconds(order, shape)),
            gone_at: None,
            kubelet: KubeletBehavior { silent: shape.never_joins, ..KubeletBehavior::default() },
            hardware: Hardware::default(),
            addresses: None,
        };
        let view = vm.view();
        self.store(vm);
        view
    }

    fn boot_seconds(&mut self, order: &CreateVm, shape: Shape) -> f64 {
        let stray = 1.0 + self.settings.boot_jitter * (2.0 * self.random.f64() - 1.0);
        shape.boot_seconds.or(order.boot_seconds).unwrap_or(self.settings.boot_seconds * stray)
    }

    pub(super) fn delete(&mut self, now: Timestamp, id: &str) -> Result<(u16, Vm), Failure> {
        let vm = self.memory.vms.get(id).ok_or_else(|| Failure::unknown_vm(id))?;
        if vm.state == VmState::Deleting {
            return Ok((202, vm.view()));
        }
        let gone_at = Some(later(now, self.settings.delete_seconds));
        let vm = VmRecord { state: VmState::Deleting, gone_at, ..vm.clone() };
        let view = vm.view();
        self.store(vm);
        self.note_vm(now, EventKind::DeleteAccepted, id, None);
        Ok((202, view))
    }

    fn get(&self, now: Timestamp, id: &str, caller: Caller) -> Result<(u16, Vm), Failure> {
        let vm = self.memory.vms.get(id).filter(|vm| is_visible(vm, now, caller));
        vm.map(|vm| (200, vm.view())).ok_or_else(|| Failure::unknown_vm(id))
    }

    fn list(&self, now: Timestamp, filter: &ListVms, caller: Caller) -> Page<Vm> {
        let limit = filter.limit.unwrap_or(DEFAULT_PAGE).clamp(1, PAGE_LIMIT);
        let after = filter.after.clone().map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let mut fitting = self
            .memory
            .vms
            .range((after, std::ops::Bound::Unbounded))
            .map(|(_, vm)| vm)
            .filter(|vm| is_visible(vm, now, caller) && fits(vm, filter));
        let items: Vec<Vm> = fitting.by_ref().take(limit).map(VmRecord::view).collect();
        let more = fitting.next().is_some();
        let next = items.last().filter(|_| more).map(|last| last.id.clone());
        Page { items, next }
    }

    fn count(&mut self, call: &Call, reply: &Reply) {
        let code = match reply {
            Reply::Vm { .. } | Reply::Page(_) => "OK".to_owned(),
            Reply::Failed(failure) => failure.code.to_string(),
            Reply::Never => "hung".to_owned(),
            Reply::Cut => "cut".to_owned(),
            Reply::Garbage => "garbage".to_owned(),
        };
        *self.calls.entry(call.name().to_owned()).or_default().entry(code).or_default() += 1;
    }
}

fn is_visible(vm: &VmRecord, now: Timestamp, caller: Caller) -> bool {
    caller == Caller::Observer || vm.visible_from <= now
}

fn fits(vm: &VmRecord, filter: &ListVms) -> bool {
    filter.name.as_ref().is_none_or(|name| *name == vm.order.name)
        && filter.tags.iter().all(|(key, value)| vm.order.tags.get(key) == Some(value))
}

fn spoil(page: Page<Vm>, effect: &Effect) -> Page<Vm> {
    match effect {
        Effect::ListEmpty => Page { items: Vec::new(), next: None },
        Effect::ListTruncated { items } => Page { items: page.items.into_iter().take(*items).collect(), next: None },
        // The cursor is before the first entry: the next page is this page again.
        Effect::ListEndless => Page { next: Some("vm-".to_owned()), ..page },
        _ => page,
    }
}

/// A time in the future. An out-of-range delay counts as zero.
fn later(now: Timestamp, seconds: f64) -> Timestamp {
    std::time::Duration::try_from_secs_f64(seconds).ok().and_then(|later| now.checked_add(later).ok()).unwrap_or(now)
}
