#![no_main]

#[path = "../checks/authority.rs"]
mod check;
#[path = "../../../src"]
mod program {
    pub(crate) mod authority;
}

use program::authority;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
