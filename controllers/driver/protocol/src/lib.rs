//! The protocol of drivers that run in processes of their own, [`v1`], and what its messages mean as types of the contract.
//!
//! ```text
//! manager: MachineRequest ──encode──▶ v1 ══socket══▶ v1 ──decode──▶ MachineRequest :driver
//!          Instance, DriverError ◀──decode── v1 ◀══socket══ v1 ◀──encode── Instance, DriverError
//! ```
//!
//! `proto/driver.proto` is the protocol; the test `generated` fails when the code in `src/generated` is not what it generates. A driver
//! serves it with [`server`].
//!
//! # Guarantees
//! * An answer is decoded with distrust: an unknown code, a provider id of another provider, an oversized text or a missing part is
//!   an error that says so, and each text is bounded.
//! * No `Debug` prints a secret.

#![cfg(not(feature = "generate"))]

mod info;
mod provider_requests;
mod request;
mod response;
mod secret;
pub mod server;

pub use self::{
    info::{Info, InvalidInfo},
    provider_requests::{decode_requests, encode_requests},
    request::{
        class, create_request, decode_class, decode_create, decode_machine, decode_orphan, decode_unowned,
        decode_volumes, machine_request, orphan_request, unowned_request, volumes_request,
    },
    response::{
        decode_deleted, decode_faults, decode_instance, decode_listed, decode_volume_ids, encode_deleted,
        encode_faults, encode_instance, encode_list, encode_volume_ids,
    },
};

/// The generated messages, the client and the server.
#[allow(clippy::pedantic, missing_docs, unreachable_pub, reason = "generated")]
pub mod v1 {
    include!("generated/nodewright.driver.v1.rs");
}

/// The value of `GetInfoResponse.protocol_version`.
pub const VERSION: &str = "v1";
/// Name of the service for `grpc.health.v1.Health`.
pub const SERVICE: &str = v1::driver_server::SERVICE_NAME;
/// The gRPC metadata that name the call in the manager's trace, in W3C's form.
pub const TRACEPARENT: &str = "traceparent";
/// The environment variable with the URL of the collector that a driver exports its spans to, as OpenTelemetry has it. The manager sets
/// it for a driver that it starts.
pub const OTLP_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The largest message, in bytes.
pub const MESSAGE_LIMIT: usize = 1 << 20;
