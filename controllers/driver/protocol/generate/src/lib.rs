//! Generates the messages of the drivers' protocol: its test does. It is a crate of its own, as the crate of the messages does not
//! compile while they are those of an earlier protocol.
