//! The caches of the clusters: one store per kind, filled by one watch, read by every controller.

mod barrier;
mod index;
mod store;
mod stores;
mod unreadable;

pub(crate) use self::{barrier::Until, store::AnyStore, stores::StoreKey};
pub use self::{
    index::Index,
    store::{Change, Store},
    stores::{Lookup, Stores},
    unreadable::Unreadable,
};
