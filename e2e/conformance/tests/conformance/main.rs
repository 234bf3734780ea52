//! The API behavior that the runtime relies on, and the comparison of the in-process API server with the real one.

mod compared;
mod openshift;
mod reliance;
mod time;
