//! The caches of the clusters: one store per kind, filled by one watch, read by every controller.

mod barrier;
mod index;
mod lookup;
mod store;
mod stores;
mod unreadable;

pub(crate) use self::{barrier::Until, store::AnyStore, stores::StoreKey};
pub use self::{
    index::Index,
    lookup::Lookup,
    store::{Change, Store},
    stores::Stores,
    unreadable::Unreadable,
};
