//! Makes the program smaller when it is linked. A page of its file that is touched is memory of the manager.
//!
//! * Functions with the same code are one: many are, as the runtime is compiled once for each controller and kind.
//! * The addresses that the loader corrects are a bitmap. As a table of entries with 24 bytes each they are a tenth of the file, and
//!   the loader reads all of it.
//!
//! # Caveats
//! * Only of release builds for glibc on `x86_64`, made there, where rustc brings its linker. Others may not know these flags.
//! * Two functions may have the same address. Nothing of ours compares addresses of functions.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |variable: &str, wanted: &str| env::var(variable).is_ok_and(|value| value == wanted);
    let linux = "x86_64-unknown-linux-gnu";
    if is("PROFILE", "release") && is("TARGET", linux) && is("HOST", linux) {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
