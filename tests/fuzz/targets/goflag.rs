#![no_main]

#[path = "../checks/goflag.rs"]
mod check;
#[allow(dead_code, unused_imports, reason = "the command line needs a part of it")]
#[path = "../../../src"]
mod program {
    pub(crate) mod args;
    pub(crate) mod goflag;
    pub(crate) mod klog;
    pub(crate) mod sys;
}

use program::{args, goflag, klog, sys};

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
