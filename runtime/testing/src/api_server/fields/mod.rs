//! Who owns which field: server-side apply and `managedFields`, by the rules of Kubernetes' structured-merge-diff.
//!
//! A [`Shape`] says of a kind which maps and lists are merged, and how. By it objects are compared and merged
//! ([`walk`]), sets of fields are kept ([`Set`]), and their owners ([`managers`]).

pub(super) mod managers;
pub(super) mod scale;
mod set;
pub(super) mod shape;
mod walk;

pub(super) use self::set::Set;
pub(super) use self::shape::Shape;
