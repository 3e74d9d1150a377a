//! The registrar seen from outside, one module for each side of it.
//!
//! `cfg(unix)` marks what leans on signals, inodes and modes, on `sh` and `/proc`, or on errno's words;
//! the rest also runs on Windows.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken fails its test")]
#![cfg_attr(windows, allow(dead_code, unused_imports, reason = "the tests for Unix need it"))]

// What runs out: descriptors, connections.
#[cfg(unix)]
mod bounds;
// Little memory, and little of a CPU.
#[cfg(unix)]
mod cgroup;
// Flags, and what is said about wrong ones.
mod command_line;
// The crates in the binary, and what the documents say of them.
#[cfg(unix)]
mod crates;
// The manifests, and what the documents quote of them.
mod deploy;
// A driver that comes back, with its name or another.
#[cfg(unix)]
mod driver_restarts;
// How the process ends: the code, the last words, what is left behind.
#[cfg(unix)]
mod exits;
// docs/flags.md and the help text.
mod flags;
// The driver, the kubelet and the process that the tests put between them.
mod harness;
// A socket that is lost, and what else must not end the process.
#[cfg(unix)]
mod healing;
// grpc.health.v1 on the registration socket.
mod health;
// The HTTP server: where it listens, what it answers to whom.
mod http;
// Several registrars of one driver.
#[cfg(unix)]
mod instances;
// The lines on stderr: their form, and which of them are shown.
#[cfg(unix)]
mod logging;
// The exec probe.
mod probe;
// The kubelet's calls, and those of worse clients.
mod registration;
// SIGTERM and its kin, in every state.
#[cfg(unix)]
mod signals;
// The socket file: its mode, what it replaces, when it is removed.
#[cfg(unix)]
mod socket;
// Reaching the driver and learning its name.
mod startup;
