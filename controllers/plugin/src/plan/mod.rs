//! What would be done, by the decisions of the manager.

mod drain;
mod pool;

pub(crate) use self::{drain::drain, pool::pool};
