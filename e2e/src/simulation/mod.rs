//! A cluster in one process and one thread, on invented time.

pub mod control_plane;
