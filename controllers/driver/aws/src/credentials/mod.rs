//! The identity that requests are made with: what a MachineClass's Secret says, and the temporary credentials that are got for it.
//!
//! ```text
//!   Secret ──▶ Source ──▶ an access key ───────────────────────────▶ a signature
//!                  └────▶ an issuer ──▶ STS, metadata service ──▶ temporary credentials ──▶ a signature
//! ```
//!
//! # Guarantees
//! * Nothing in a Secret, a token file or an answer with credentials is printed: not in an error, and not by `Debug`.
//! * Two Secrets share temporary credentials only if all that they say of credentials is the same, and so is the region.
//! * An instance's role is used only for a Secret that asks for it.

mod identities;
mod metadata;
mod secret;
mod sts;
mod sts_refusals;
mod temporary;
mod token_file;

#[cfg(test)]
pub(crate) use self::secret::tests;
pub(crate) use self::{
    identities::Identities,
    secret::{Issuer, Role, RoleCaller, Source, WebIdentity},
};

/// Where, and with which identity, requests are made.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub region: String,
    pub source: Source,
}
