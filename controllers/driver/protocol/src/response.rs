//! Answers, from the types of the contract to messages, and back with distrust.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use nodewright_api::Code;
use nodewright_driver::{DriverError, Exhausted, Instance, InstanceMetadata, ListedVm, Mismatch, Power, Result};

use super::{MESSAGE_LIMIT, info::duration, v1};

/// The longest message of a failure that is read. A status keeps 1 KiB of it.
const LONGEST_MESSAGE: usize = 4 << 10;
/// The longest notes, in bytes. They are stored in the Machine's status.
const LONGEST_NOTES: usize = 64 << 10;
/// The longest id, name, zone or address, in bytes.
const LONGEST_TEXT: usize = 1 << 10;
const ADDRESSES: usize = 64;
const LABELS: usize = 64;
/// The maximum number of faults, and the longest text of one, in bytes.
const FAULTS: usize = 20;
const LONGEST_FAULT: usize = 512;

type MachineOutcome = v1::machine_response::Outcome;
type DeleteOutcome = v1::delete_machine_response::Outcome;
type VolumesOutcome = v1::get_volume_ids_response::Outcome;

/// The answer of `CreateMachine`, `InitializeMachine` and `GetMachineStatus`.
pub fn encode_instance(result: Result<Instance>) -> v1::MachineResponse {
    let outcome = match result {
        Ok(instance) => MachineOutcome::Instance(v1::Instance {
            provider_id: instance.provider_id,
            node_name: instance.node_name,
            addresses: instance
                .addresses
                .into_iter()
                .map(|it| v1::Address { r#type: it.type_, address: it.address })
                .collect(),
            last_known_state: instance.last_known_state,
            uninitialized: instance.uninitialized,
            owner_token: instance.owner_uid,
            metadata: instance.metadata.map(|metadata| encode_metadata(*metadata)),
            power: encode_power(instance.power).into(),
        }),
        Err(error) => MachineOutcome::Failure(failure(error)),
    };
    v1::MachineResponse { outcome: Some(outcome) }
}

/// The VM of an answer. Its id must begin with `prefix`, as all ids of the driver do.
pub fn decode_instance(response: v1::MachineResponse, prefix: &str) -> Result<Instance> {
    let instance = match response.outcome {
        Some(MachineOutcome::Instance(instance)) => instance,
        Some(MachineOutcome::Failure(failure)) => return Err(decode_failure(failure)),
        None => return Err(broken("neither a VM nor a failure")),
    };
    let power = decode_power(instance.power());
    let notes = decode_notes(instance.last_known_state)?;
    let checked = || {
        check_id(&instance.provider_id, prefix)?;
        if !is_text(&instance.node_name) {
            return Err(broken("a node_name that is no name"));
        }
        let is_address = |it: &v1::Address| is_text(&it.r#type) && is_text(&it.address);
        if !instance.owner_token.as_deref().is_none_or(is_text) {
            return Err(broken("an owner_token that is no token"));
        }
        if instance.addresses.len() > ADDRESSES || !instance.addresses.iter().all(is_address) {
            return Err(broken("addresses that are no short list of addresses"));
        }
        if !instance.metadata.as_ref().is_none_or(is_metadata) {
            return Err(broken("metadata that are no short texts"));
        }
        Ok(())
    };
    // The notes may be all that leads to what was made.
    checked().map_err(|error| DriverError { last_known_state: notes.clone(), ..error })?;
    let addresses = instance.addresses.into_iter().map(|it| NodeAddress { type_: it.r#type, address: it.address });
    Ok(Instance {
        provider_id: instance.provider_id,
        node_name: instance.node_name,
        owner_uid: instance.owner_token,
        addresses: addresses.collect(),
        last_known_state: notes,
        uninitialized: instance.uninitialized,
        power,
        metadata: instance.metadata.map(|metadata| Box::new(decode_metadata(metadata))),
    })
}

fn encode_metadata(metadata: InstanceMetadata) -> v1::InstanceMetadata {
    let InstanceMetadata { instance_type, zone, region, labels } = metadata;
    v1::InstanceMetadata { instance_type, zone, region, labels: labels.into_iter().collect() }
}

fn decode_metadata(metadata: v1::InstanceMetadata) -> InstanceMetadata {
    let v1::InstanceMetadata { instance_type, zone, region, labels } = metadata;
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    InstanceMetadata {
        instance_type: set(instance_type),
        zone: set(zone),
        region: set(region),
        labels: labels.into_iter().collect(),
    }
}

/// Whether the metadata are short. Whether an API server takes them as labels is the manager's concern: a VM is not lost for a label.
fn is_metadata(metadata: &v1::InstanceMetadata) -> bool {
    let known = [&metadata.instance_type, &metadata.zone, &metadata.region];
    let is_short = |text: &String| text.is_empty() || is_text(text);
    known.into_iter().flatten().all(is_short)
        && metadata.labels.len() <= LABELS
        && metadata.labels.iter().all(|(key, value)| is_text(key) && is_short(value))
}

fn encode_power(power: Power) -> v1::Power {
    match power {
        Power::Unknown => v1::Power::Unknown,
        Power::Running => v1::Power::Running,
        Power::Stopped => v1::Power::Stopped,
    }
}

fn decode_power(power: v1::Power) -> Power {
    match power {
        v1::Power::Unknown => Power::Unknown,
        v1::Power::Running => Power::Running,
        v1::Power::Stopped => Power::Stopped,
    }
}

/// The answer of `DeleteMachine` and `DeleteOrphan`.
pub fn encode_deleted(result: Result<Option<String>>) -> v1::DeleteMachineResponse {
    let outcome = match result {
        Ok(last_known_state) => DeleteOutcome::Deleted(v1::Deleted { last_known_state }),
        Err(error) => DeleteOutcome::Failure(failure(error)),
    };
    v1::DeleteMachineResponse { outcome: Some(outcome) }
}

/// The notes of an answer.
pub fn decode_deleted(response: v1::DeleteMachineResponse) -> Result<Option<String>> {
    match response.outcome {
        Some(DeleteOutcome::Deleted(deleted)) => decode_notes(deleted.last_known_state),
        Some(DeleteOutcome::Failure(failure)) => Err(decode_failure(failure)),
        None => Err(broken("neither a deletion nor a failure")),
    }
}

/// The answer of `ListMachines`: messages of at most half the size that is allowed, of which the last one is complete.
pub fn encode_list(result: Result<BTreeMap<String, ListedVm>>) -> Vec<v1::ListMachinesResponse> {
    let machines = match result {
        Ok(machines) => machines,
        Err(error) => {
            return vec![v1::ListMachinesResponse { failure: Some(failure(error)), ..Default::default() }];
        }
    };
    let (mut pages, mut size) = (vec![v1::ListMachinesResponse::default()], 0);
    for (provider_id, vm) in machines {
        size += provider_id.len() + vm.machine.len() + vm.owner_uid.as_ref().map_or(0, String::len) + 32;
        if size > MESSAGE_LIMIT / 2 {
            pages.push(v1::ListMachinesResponse::default());
            size = 0;
        }
        if let Some(page) = pages.last_mut() {
            let created =
                vm.created.map(|at| prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() });
            page.machines.push(v1::ListedMachine {
                provider_id,
                name: vm.machine,
                created,
                deleting: vm.is_deleting,
                owner_token: vm.owner_uid,
            });
        }
    }
    if let Some(page) = pages.last_mut() {
        page.complete = true;
    }
    pages
}

/// Adds one message to a list. Says whether the list is complete.
pub fn decode_listed(
    response: v1::ListMachinesResponse,
    prefix: &str,
    list: &mut BTreeMap<String, ListedVm>,
) -> Result<bool> {
    if let Some(failure) = response.failure {
        return Err(decode_failure(failure));
    }
    for machine in response.machines {
        check_id(&machine.provider_id, prefix)?;
        if !is_text(&machine.name) {
            return Err(broken("a listed name that is no name"));
        }
        if !machine.owner_token.as_deref().is_none_or(is_text) {
            return Err(broken("a listed owner_token that is no token"));
        }
        // A time that cannot be read counts as none.
        let created = machine.created.and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let vm =
            ListedVm { machine: machine.name, owner_uid: machine.owner_token, created, is_deleting: machine.deleting };
        list.insert(machine.provider_id, vm);
    }
    Ok(response.complete)
}

/// The answer of `GetVolumeIds`.
pub fn encode_volume_ids(result: Result<Vec<Option<String>>>) -> v1::GetVolumeIdsResponse {
    let outcome = match result {
        Ok(ids) => {
            let ids = ids.into_iter().map(Option::unwrap_or_default).collect();
            VolumesOutcome::Volumes(v1::VolumeIds { ids })
        }
        Err(error) => VolumesOutcome::Failure(failure(error)),
    };
    v1::GetVolumeIdsResponse { outcome: Some(outcome) }
}

/// The ids of volumes, as many as were `asked` for.
pub fn decode_volume_ids(response: v1::GetVolumeIdsResponse, asked: usize) -> Result<Vec<Option<String>>> {
    let ids = match response.outcome {
        Some(VolumesOutcome::Volumes(volumes)) => volumes.ids,
        Some(VolumesOutcome::Failure(failure)) => return Err(decode_failure(failure)),
        None => return Err(broken("neither ids of volumes nor a failure")),
    };
    if ids.len() != asked || !ids.iter().all(|id| id.is_empty() || is_text(id)) {
        return Err(broken("ids of volumes that are not one for each volume"));
    }
    Ok(ids.into_iter().map(|id| Some(id).filter(|id| !id.is_empty())).collect())
}

/// The answer of `ValidateClass`.
pub fn encode_faults(faults: Vec<(String, String)>) -> v1::ValidateClassResponse {
    let faults = faults.into_iter().map(|(path, allowed)| v1::Fault { path, allowed });
    v1::ValidateClassResponse { faults: faults.collect() }
}

/// What is wrong with a `providerSpec`: paths, and what is allowed.
pub fn decode_faults(response: v1::ValidateClassResponse) -> Vec<(String, String)> {
    let faults = response.faults.into_iter().take(FAULTS);
    faults.map(|it| (readable(LONGEST_FAULT, &it.path), readable(LONGEST_FAULT, &it.allowed))).collect()
}

fn failure(error: DriverError) -> v1::Failure {
    let mismatch = match error.mismatch {
        None => v1::Mismatch::None,
        Some(Mismatch::Cluster) => v1::Mismatch::Cluster,
        Some(Mismatch::Machine) => v1::Mismatch::Machine,
    };
    let exhausted = error.exhausted.map(|exhausted| v1::Exhausted {
        zone: exhausted.zone.unwrap_or_default(),
        retry_after: exhausted.retry_after.and_then(duration),
    });
    v1::Failure {
        code: error.code as i32,
        message: error.message,
        mismatch: mismatch.into(),
        last_known_state: error.last_known_state,
        exhausted,
        throttled: error.throttled,
    }
}

fn decode_failure(failure: v1::Failure) -> DriverError {
    let code = code(failure.code);
    let message = Some(readable(LONGEST_MESSAGE, &failure.message)).filter(|message| !message.trim().is_empty());
    let mismatch = match failure.mismatch() {
        v1::Mismatch::None => None,
        v1::Mismatch::Cluster => Some(Mismatch::Cluster),
        v1::Mismatch::Machine => Some(Mismatch::Machine),
    };
    let exhausted = failure.exhausted.map(|exhausted| Exhausted {
        zone: Some(readable(LONGEST_TEXT, &exhausted.zone)).filter(|zone| !zone.is_empty()),
        retry_after: exhausted.retry_after.and_then(|it| Duration::try_from(it).ok()),
    });
    DriverError {
        code,
        message: message.unwrap_or_else(|| "the driver has failed without a message".to_owned()),
        mismatch,
        // Notes that are too long are left out, not the failure.
        last_known_state: decode_notes(failure.last_known_state).unwrap_or_default(),
        exhausted,
        throttled: failure.throttled,
    }
}

/// The code of a number. One that this version does not know may pass. `OK` is no failure: the driver is broken.
fn code(number: i32) -> Code {
    match Code::from_number(number) {
        Some(Code::Ok) => Code::Internal,
        known => known.unwrap_or(Code::Unknown),
    }
}

fn decode_notes(notes: Option<String>) -> Result<Option<String>> {
    match notes {
        Some(notes) if notes.len() > LONGEST_NOTES => Err(broken("a last_known_state of more than 64 KiB")),
        notes => Ok(notes),
    }
}

fn check_id(id: &str, prefix: &str) -> Result<()> {
    if id.len() > prefix.len() && id.starts_with(prefix) && is_text(id) {
        return Ok(());
    }
    Err(broken(&format!("a provider id that is not one of its own, which begin {prefix}")))
}

fn is_text(text: &str) -> bool {
    (1..=LONGEST_TEXT).contains(&text.len()) && !text.contains(char::is_control)
}

/// The beginning of a text, in one line.
fn readable(most: usize, text: &str) -> String {
    let head = text.get(..text.floor_char_boundary(most)).unwrap_or_default();
    head.replace(|character: char| character.is_control(), " ")
}

fn broken(what: &str) -> DriverError {
    DriverError::new(Code::Internal, format!("the driver answers with {what}: this is a defect of the driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "p:///";

    fn instance() -> Instance {
        Instance {
            provider_id: "p:///1".to_owned(),
            node_name: "n".to_owned(),
            owner_uid: Some("uid".to_owned()),
            addresses: vec![NodeAddress { type_: "InternalIP".to_owned(), address: "10.0.0.1".to_owned() }],
            last_known_state: Some("notes".to_owned()),
            uninitialized: true,
            metadata: Some(Box::new(InstanceMetadata {
                instance_type: Some("large".to_owned()),
                zone: Some("a".to_owned()),
                region: None,
                labels: [("example.org/rack".to_owned(), "7".to_owned())].into(),
            })),
            power: Power::Stopped,
        }
    }

    fn both_ways(result: Result<Instance>) -> Result<Instance> {
        decode_instance(encode_instance(result), PREFIX)
    }

    #[test]
    fn what_one_side_answers_is_what_the_other_reads() {
        assert_eq!(both_ways(Ok(instance())), Ok(instance()));
        let bare = Instance { last_known_state: None, addresses: vec![], uninitialized: false, ..instance() };
        assert_eq!(both_ways(Ok(bare.clone())), Ok(bare));
        for notes in [None, Some(String::new()), Some("notes".to_owned())] {
            assert_eq!(decode_deleted(encode_deleted(Ok(notes.clone()))), Ok(notes));
        }
    }

    #[test]
    fn each_volume_has_its_answer_or_there_is_none() {
        let ids = vec![Some("vol-1".to_owned()), None, Some("vol-2".to_owned())];
        let read = |ids: &[Option<String>], asked| decode_volume_ids(encode_volume_ids(Ok(ids.to_vec())), asked);
        assert_eq!(read(&ids, 3), Ok(ids.clone()));
        for wrong in [
            read(&ids, 4),
            read(&[Some("a\nb".to_owned())], 1),
            decode_volume_ids(v1::GetVolumeIdsResponse::default(), 0),
        ] {
            assert_eq!(wrong.unwrap_err().code, Code::Internal);
        }
        let error = DriverError::new(Code::Unimplemented, "why");
        assert_eq!(decode_volume_ids(encode_volume_ids(Err(error.clone())), 1), Err(error));
    }

    #[test]
    fn each_failure_arrives_as_it_was() {
        let names = (1..18).map(|number| (number, code(number)));
        for (number, code) in names {
            assert_eq!(code as i32, number, "{code}");
            let error = DriverError::new(code, "why");
            assert_eq!(both_ways(Err(error.clone())), Err(error.clone()));
            assert_eq!(decode_deleted(encode_deleted(Err(error.clone()))), Err(error));
        }
        let exhausted = |zone: Option<&str>, seconds: Option<u64>| Exhausted {
            zone: zone.map(str::to_owned),
            retry_after: seconds.map(Duration::from_secs),
        };
        let error = || DriverError::new(Code::ResourceExhausted, "why");
        for error in [
            error().with_exhausted(exhausted(Some("z1"), Some(90))),
            error().with_exhausted(exhausted(None, None)).with_last_known_state("half-way"),
            error().with_mismatch(Mismatch::Cluster),
            error().with_mismatch(Mismatch::Machine).throttled(),
        ] {
            assert_eq!(both_ways(Err(error.clone())), Err(error));
        }
    }

    #[test]
    fn a_number_that_is_no_code_may_pass_and_ok_is_no_failure() {
        let failed = |code| {
            let failure = v1::Failure { code, ..v1::Failure::default() };
            let outcome = Some(MachineOutcome::Failure(failure));
            decode_instance(v1::MachineResponse { outcome }, PREFIX).unwrap_err()
        };
        assert!(failed(99).is_passing() && failed(-1).is_passing());
        assert_eq!(failed(0).code, Code::Internal);
        for code in (1..18).map(|number| v1::Code::try_from(number).unwrap()) {
            assert_eq!(format!("{:?}", failed(code.into()).code), format!("{code:?}"));
        }
        assert!(!failed(5).message.is_empty());
    }

    #[test]
    fn a_vm_of_another_provider_and_what_is_no_vm_are_refused_and_leave_their_notes() {
        let long = "x".repeat(LONGEST_TEXT + 1);
        let address = |address: &str| NodeAddress { type_: "InternalIP".to_owned(), address: address.to_owned() };
        for wrong in [
            Instance { provider_id: String::new(), ..instance() },
            Instance { provider_id: PREFIX.to_owned(), ..instance() },
            Instance { provider_id: "q:///1".to_owned(), ..instance() },
            Instance { provider_id: format!("p:///{long}"), ..instance() },
            Instance { provider_id: "p:///1\n2".to_owned(), ..instance() },
            Instance { node_name: long.clone(), ..instance() },
            Instance { node_name: String::new(), ..instance() },
            Instance { addresses: vec![address(&long)], ..instance() },
            Instance { addresses: vec![address("10.0.0.1"); ADDRESSES + 1], ..instance() },
        ] {
            let error = both_ways(Ok(wrong)).unwrap_err();
            assert_eq!((error.code, error.last_known_state.as_deref()), (Code::Internal, Some("notes")), "{error}");
        }
        let noted = Instance { last_known_state: Some("x".repeat(LONGEST_NOTES + 1)), ..instance() };
        assert!(both_ways(Ok(noted)).unwrap_err().message.contains("last_known_state"));
        for nothing in [
            decode_instance(v1::MachineResponse::default(), PREFIX).map(drop),
            decode_deleted(v1::DeleteMachineResponse::default()).map(drop),
        ] {
            assert_eq!(nothing.unwrap_err().code, Code::Internal, "never a success");
        }
    }

    #[test]
    fn texts_are_bounded_and_in_one_line() {
        let error = both_ways(Err(DriverError::new(Code::Internal, "ü\n".repeat(5_000)))).unwrap_err();
        assert!(error.message.len() <= LONGEST_MESSAGE && !error.message.contains('\n'), "{error}");
        let noted = DriverError::new(Code::Internal, "why").with_last_known_state("x".repeat(LONGEST_NOTES + 1));
        assert_eq!(both_ways(Err(noted)), Err(DriverError::new(Code::Internal, "why")));
        let faults = vec![("a\n".repeat(1_000), "b".repeat(1_000)); 100];
        let read = decode_faults(encode_faults(faults));
        assert!(read.len() == FAULTS && read.iter().all(|(path, what)| path.len() + what.len() <= 1_024));
        assert!(!read[0].0.contains('\n'));
    }

    #[test]
    fn a_list_is_whole_or_none() {
        let vm = |number: i64| ListedVm {
            created: (number % 2 == 0).then(|| Timestamp::new(number, 7).unwrap()),
            is_deleting: number % 3 == 0,
            owner_uid: Some(format!("uid-{number}")),
            ..ListedVm::of(format!("m-{number}"))
        };
        let machines: BTreeMap<String, ListedVm> =
            (0..20_000).map(|it| (format!("p:///{it}-{}", "x".repeat(100)), vm(it))).collect();
        let read = |pages: Vec<v1::ListMachinesResponse>| {
            let (mut list, mut complete) = (BTreeMap::new(), false);
            for page in pages {
                assert!(!complete, "only the last one is complete");
                complete = decode_listed(page, PREFIX, &mut list)?;
            }
            Ok::<_, DriverError>((list, complete))
        };
        let pages = encode_list(Ok(machines.clone()));
        assert!(pages.len() > 2 && pages.iter().all(|page| prost::Message::encoded_len(page) < MESSAGE_LIMIT));
        assert_eq!(read(pages), Ok((machines, true)));
        assert_eq!(read(encode_list(Ok(BTreeMap::new()))), Ok((BTreeMap::new(), true)));
        let error = DriverError::new(Code::Unavailable, "why");
        assert_eq!(read(encode_list(Err(error.clone()))), Err(error));
        let foreign = BTreeMap::from([("q:///1".to_owned(), ListedVm::of("m"))]);
        assert_eq!(read(encode_list(Ok(foreign))).unwrap_err().code, Code::Internal);
    }
}
