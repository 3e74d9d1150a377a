use std::fs;
use std::process::Command;

use crate::harness::{Registrar, World, eventually, text};

/// Makes a failing Rust program walk its stack, which no manifest asks for.
pub(crate) const DIAGNOSTIC: &str = "RUST_BACKTRACE";

pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_remove(DIAGNOSTIC);
    command
}

pub(crate) fn stripped_size(binary: &str, world: &World) -> Option<f64> {
    let stripped = world.path("stripped");
    let mut strip = command("strip");
    strip.arg("-o").arg(&stripped).arg(binary);
    let status = strip.status().ok()?;
    assert!(status.success(), "strip {binary}: {status}");
    Some(fs::metadata(stripped).unwrap().len() as f64)
}

/// The instructions of a whole run in user space, which hardly vary.
pub(crate) fn instructions(argv: &[String]) -> Option<f64> {
    let mut valgrind = command("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    let output = valgrind.args(argv).output().ok()?;
    let report = String::from_utf8_lossy(&output.stderr);
    let count = report.lines().find_map(|line| line.split_once("Collected : "));
    count?.1.trim().parse().ok()
}

/// What a registrar asks of the kernel until it listens, by a function that starts it under a
/// wrapper.
pub(crate) fn system_calls(world: &World, start: impl FnOnce(&[&str]) -> Registrar) -> Option<f64> {
    command("strace").arg("--version").output().ok()?;
    let trace = world.path("trace");
    let path = trace.to_str().unwrap();
    // By -D the child, which is killed here, is the registrar, not strace.
    drop(start(&["strace", "-D", "-f", "-o", path]));
    let until_ready = eventually("listen() in the trace", || {
        Some(text(&trace).split_once(" listen(")?.0.to_owned())
    });
    // Each line but these begins a call.
    let others = [" resumed>", " +++ ", " --- "];
    let calls = until_ready.lines().filter(|line| !others.iter().any(|other| line.contains(other)));
    Some(calls.count() as f64)
}
