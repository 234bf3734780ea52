//! Field ownership: server-side apply and `managedFields`, by the rules of Kubernetes' structured-merge-diff.
//!
//! A [`Shape`] describes which maps and lists of a kind are merged, and how. [`walk`] compares and merges objects by it. A
//! [`Set`] is a set of fields, and [`managers`] records their owners.

pub(super) mod managers;
pub(super) mod scale;
mod set;
pub(super) mod shape;
mod walk;

pub(super) use self::set::Set;
pub(super) use self::shape::Shape;
