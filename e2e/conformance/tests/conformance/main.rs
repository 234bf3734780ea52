//! What the runtime relies on, and whether the API server in process answers like the real one.

mod compared;
mod reliance;
mod time;
