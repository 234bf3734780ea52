//! Makes the program smaller when it is linked. A page of its file that is touched is memory of the manager.
//!
//! * Functions with the same code are one: many are, as the runtime is compiled once for each controller and kind.
//! * The addresses that the loader corrects are a bitmap. As a table of entries with 24 bytes each they are a tenth of the file, and
//!   the loader reads all of it.
//! * Functions that a manager of a fleet runs are side by side, as `hot-functions.txt` lists them: where one is needed, Linux reads
//!   64 KiB. See docs/decisions/0043-order-of-functions.md.
//!
//! # Caveats
//! * Only of release builds for glibc on `x86_64`, made there, where rustc brings its linker. Others may not know these flags.
//! * Two functions may have the same address. Nothing of ours compares addresses of functions.
//! * A function that the list does not name, or that has another name by now, is elsewhere, which costs some memory and nothing else.

use std::{env, fmt::Write as _, fs, path::PathBuf};

const HOT_FUNCTIONS: &str = "hot-functions.txt";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={HOT_FUNCTIONS}");
    let is = |variable: &str, wanted: &str| env::var(variable).is_ok_and(|value| value == wanted);
    let linux = "x86_64-unknown-linux-gnu";
    if is("PROFILE", "release") && is("TARGET", linux) && is("HOST", linux) {
        let script = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("hot-functions.ld");
        let list = fs::read_to_string(HOT_FUNCTIONS).expect("the list is beside this file");
        fs::write(&script, linker_script(&list)).expect("cargo makes the directory");
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Puts the functions of the list first into the section of all functions, after machine code that is written by hand, which has no names.
fn linker_script(list: &str) -> String {
    let mut script = "SECTIONS { .text : { *(.text\n".to_owned();
    for begin in list.lines().filter(|line| line.starts_with("_R")) {
        // The hash of the first crate, of either length, so that the rest of the pattern is where it should be.
        for hash in ["??????????", "???????????"] {
            let pattern = begin.replacen("Cs_", &format!("Cs{hash}_"), 1).replace("Cs_", "Cs*_");
            for section in [".text", ".text.unlikely"] {
                writeln!(script, "{section}.{pattern}*").expect("a String takes all");
            }
        }
    }
    script + ") *(.text .text.*) } } INSERT AFTER .eh_frame;\n"
}
