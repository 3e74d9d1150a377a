//! The world around a registrar: a temporary directory with the driver's socket and the kubelet's
//! plugin registry, the process itself, a CSI driver and a kubelet.
//!
//! `REGISTRAR_BIN` names another build to be tested, `REGISTRAR_PATIENCE` the seconds after which
//! a fact that has not come true fails a test (10 by default).
//!
//! The suite also runs on the original, v2.17.0. What fails there differs on purpose:
//!
//! - `--help` goes to stdout, and a usage error names it instead of listing the flags: one sees
//!   the reason without scrolling.
//! - Flags that earlier releases knew are accepted: manifests still carry them.
//! - A `--timeout` of zero or less is a usage error: no call could succeed.
//! - The driver is waited for as long as `--startup-timeout` says, and the reason for the wait is
//!   in the log: 30 s are too short for a node that starts.
//! - GetPluginInfo is called again after an error that may pass: a restart of the container, with
//!   its growing pauses, takes longer.
//! - Names are refused that would leave the registry directory, that the kubelet passes over, or
//!   that make too long a path, in words that name the rule.
//! - Warnings carry `W`: they were errors or went unsaid.
//! - A refusal is answered before the process ends, and the socket is removed: the kubelet's log
//!   then shows its own reason, not a broken connection.
//! - The socket is removed only while it is the process's own: two instances overlap in an update.
//! - SIGTERM and SIGINT end the process with 0 from its first moment on: as PID 1 a process
//!   without a handler cannot be ended.
//! - A broken stderr does not kill: a log collector's fault must not unregister a driver.
//! - No message is empty, and none shows the structures of a runtime.
//! - The reason of a failure also goes to `--termination-log-path`.
//! - `--vmodule` goes by the names of other source files.
//! - HTTP is served before the driver is asked, with `/readyz`, `/metrics` and fewer profiles: a wait
//!   is visible, and a bad address fails before the kubelet sees a socket.
//! - `/healthz` is bounded by `--timeout` and names what stands in the socket's place: probes have
//!   less patience than 30 s.
//! - The probe tells whether the kubelet has confirmed; `grpc.health.v1` on the registration socket
//!   tells the probe.

// Explicit paths, as the demo includes this file from another directory.
#[path = "harness/driver.rs"]
mod driver;
#[path = "harness/hpack.rs"]
mod hpack;
#[path = "harness/http.rs"]
mod http;
#[path = "harness/kubelet.rs"]
mod kubelet;
#[path = "harness/net.rs"]
mod net;
#[path = "harness/registrar.rs"]
mod registrar;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{env, thread};

use tempfile::TempDir;

pub(crate) use driver::{Answer, Driver};
pub(crate) use http::{Connection, Http, Response, free_port, get, is_ipv6_on};
pub(crate) use kubelet::{Failure, Kubelet, PluginInfo, message};
pub(crate) use net::{UnixListener, UnixStream};
pub(crate) use registrar::Registrar;

pub(crate) const DRIVER: &str = "test.csi.example.com";
/// The driver's socket in the kubelet's view, which only the kubelet can check.
pub(crate) const ENDPOINT: &str = "/var/lib/kubelet/plugins/test.csi.example.com/csi.sock";

/// The binary under test.
pub(crate) static BINARY: LazyLock<String> = LazyLock::new(|| {
    env::var("REGISTRAR_BIN")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_csi-node-driver-registrar").into())
});

/// How long to wait for what must come true.
pub(crate) static PATIENCE: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = env::var("REGISTRAR_PATIENCE").map(|s| s.parse().expect("REGISTRAR_PATIENCE"));
    Duration::from_secs(seconds.unwrap_or(10))
});

/// Polls until there is a value.
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + *PATIENCE;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The directories in which one registrar, or several, live. All paths are short, as a socket's
/// must not exceed 107 bytes.
pub(crate) struct World {
    dir: TempDir,
    started: Cell<u32>,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("ndr").tempdir().unwrap();
        let world = Self { dir, started: Cell::new(0) };
        fs::create_dir(world.registry()).unwrap();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the CSI driver listens.
    pub(crate) fn driver_socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    /// The same as an address in the log.
    pub(crate) fn driver_address(&self) -> String {
        let path = self.driver_socket().display().to_string();
        format!("unix://{}", path.replace('\\', r"\\"))
    }

    /// The kubelet's plugin registry directory.
    pub(crate) fn registry(&self) -> PathBuf {
        self.path("reg")
    }

    /// Where a registrar offers [`DRIVER`].
    pub(crate) fn socket(&self) -> PathBuf {
        self.registry().join(format!("{DRIVER}-reg.sock"))
    }

    /// The names in the registry directory.
    pub(crate) fn listing(&self) -> Vec<String> {
        let entries = fs::read_dir(self.registry()).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A driver that answers every call with [`DRIVER`].
    pub(crate) fn driver(&self) -> Driver {
        self.driver_that(&[Answer::Name(DRIVER)])
    }

    pub(crate) fn driver_that(&self, answers: &[Answer]) -> Driver {
        Driver::start(&self.driver_socket(), answers)
    }

    /// A registrar of this world's paths; further flags follow and may override.
    pub(crate) fn start(&self, flags: &[&str]) -> Registrar {
        self.start_under(&[], flags)
    }

    /// A registrar that serves HTTP at this port of 127.0.0.1.
    pub(crate) fn start_with_http(&self, flags: &[&str]) -> (Registrar, u16) {
        let port = free_port();
        let endpoint = format!("--http-endpoint=127.0.0.1:{port}");
        (self.start(&[&[&*endpoint], flags].concat()), port)
    }

    /// Puts what is made at a path in the place of the registration socket, in one step.
    pub(crate) fn replace_socket<T>(&self, make: impl FnOnce(&Path) -> T) -> T {
        let aside = self.path("aside");
        let made = make(&aside);
        fs::rename(aside, self.socket()).unwrap();
        made
    }

    /// The wrapper is a command that runs the rest of its arguments as a program.
    pub(crate) fn start_under(&self, wrapper: &[&str], flags: &[&str]) -> Registrar {
        self.start_as(wrapper, flags, |_| {})
    }

    pub(crate) fn start_as(
        &self,
        wrapper: &[&str],
        flags: &[&str],
        adjust: impl FnOnce(&mut Command),
    ) -> Registrar {
        let path = |path: PathBuf| path.into_os_string().into_string().unwrap();
        let paths = [
            format!("--csi-address={}", path(self.driver_socket())),
            format!("--kubelet-registration-path={ENDPOINT}"),
            format!("--plugin-registration-path={}", path(self.registry())),
        ];
        let argv = [wrapper, &[&**BINARY]].concat();
        let argv = argv.into_iter().chain(paths.iter().map(String::as_str));
        let argv: Vec<_> = argv.chain(flags.iter().copied()).collect();
        self.run(&argv, adjust)
    }

    /// Any command line, of which nothing is assumed.
    pub(crate) fn run(&self, argv: &[&str], adjust: impl FnOnce(&mut Command)) -> Registrar {
        let number = self.started.replace(self.started.get() + 1);
        Registrar::spawn(argv, &self.path(&number.to_string()), adjust)
    }

    /// A kubelet's connection, with its `:authority`.
    pub(crate) fn kubelet(&self) -> Kubelet {
        Kubelet::dial(&self.socket())
    }
}

/// The modules and their services as generated for the binary.
#[allow(dead_code, unreachable_pub, clippy::all, reason = "it is generated")]
mod proto {
    pub(super) mod csi {
        include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    }
    pub(super) mod health {
        include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
    }
    pub(super) mod pluginregistration {
        include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    }
}

pub(crate) fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
