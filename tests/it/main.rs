//! The registrar seen from outside, one module for each side of it.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken fails its test")]

// What runs out: descriptors, connections.
mod bounds;
// Little memory, and little of a CPU.
mod cgroup;
// Flags, and what is said about wrong ones.
mod command_line;
// The crates in the binary, and what the documents say of them.
mod crates;
// The manifests, and what the documents quote of them.
mod deploy;
// A driver that comes back, with its name or another.
mod driver_restarts;
// How the process ends: the code, the last words, what is left behind.
mod exits;
// docs/flags.md and the help text.
mod flags;
// The driver, the kubelet and the process that the tests put between them.
mod harness;
// A socket that is lost, and what else must not end the process.
mod healing;
// grpc.health.v1 on the registration socket.
mod health;
// The HTTP server: where it listens, what it answers to whom.
mod http;
// Several registrars of one driver.
mod instances;
// The lines on stderr: their form, and which of them are shown.
mod logging;
// The exec probe.
mod probe;
// The kubelet's calls, and those of worse clients.
mod registration;
// SIGTERM and its kin, in every state.
mod signals;
// The socket file: its mode, what it replaces, when it is removed.
mod socket;
// Reaching the driver and learning its name.
mod startup;
