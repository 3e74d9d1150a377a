//! What holds of the command line for any input, whose lines are the arguments; also replayed over
//! the corpus by `cargo test`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::args;
use crate::goflag::{self, End};

pub(crate) fn check(input: &[u8]) {
    let argv: Vec<_> = input.split(|byte| *byte == b'\n').collect();
    let argv = argv.into_iter().map(OsStr::from_bytes);
    let Ok(parsed) = args::parse(argv.clone().map(Into::into)) else {
        return;
    };
    let mut rest = argv.map(|arg| arg.to_string_lossy().into_owned()).peekable();
    let program = rest.next();
    let subcommand = rest.next_if(|arg| arg == "kubelet-registration-probe");
    let (flags, end) = goflag::walk(&args::command(), rest);
    let help = (end == End::Help).then(|| "--help".to_owned());
    let normal = program.into_iter().chain(subcommand).chain(flags).chain(help);
    let again = args::parse(normal.map(Into::into)).expect("the normal form can be read");
    assert_eq!(format!("{again:?}"), format!("{parsed:?}"));
}
