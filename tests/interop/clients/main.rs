//! Clients of the registration socket other than the kubelet, which write other authorities:
//! `cargo bench --bench interop-clients`. Linux only.
//!
//! `REGISTRAR_BIN` names another build to be tested. For each library and scenario there is a line
//! on stdout, its fields separated by tabs: `interop`, the library and its version, the scenario,
//! `ok`, `FAILED` or `skipped`, the seconds, and the reason where it is not ok. The libraries are
//! installed below `$XDG_CACHE_HOME`; one whose language is not there is skipped.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken ends the run")]
#![allow(clippy::print_stdout, reason = "it is for people to read")]

#[allow(dead_code, unused_imports, reason = "the clients need a part of it")]
#[path = "../../it/harness.rs"]
mod harness;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use nix::sys::signal::Signal;

use harness::{DRIVER, ENDPOINT, World};

/// What every client has to report on, by the same words.
const SCENARIOS: [&str; 24] = [
    "one channel",
    "fresh channels",
    "target unix:path",
    "target unix:///path",
    "authority of the raw path",
    "authority of the percent-encoded path",
    "authority empty",
    "authority localhost",
    "authority a b",
    "authority [::1",
    "authority %",
    "authority é",
    "authority of 200 characters",
    "metadata",
    "deadlines",
    "100 calls at once",
    "gzip",
    "unknown method",
    "unknown service",
    "malformed method",
    "not protobuf",
    "not UTF-8",
    "4 MiB",
    "4 MiB + 1",
];

/// A gRPC library with the client that uses it.
struct Peer {
    name: &'static str,
    /// The programs without which it is skipped.
    needs: &'static [&'static str],
    /// Its version, as its installer reads it. What is installed stays until this changes.
    pin: &'static str,
    /// Installs it in an empty directory.
    install: fn(&Path),
    /// The client, but for its arguments.
    client: fn(&Path) -> Command,
}

const GRPCURL: &str = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4";

const PEERS: [Peer; 3] = [
    Peer {
        name: "grpcio",
        needs: &["python3"],
        pin: include_str!("grpcio/requirements.txt"),
        install: |home| {
            run(Command::new("python3").args(["-m", "venv"]).arg(home));
            let requirements = source("grpcio/requirements.txt");
            run(Command::new(home.join("bin/pip"))
                .args(["install", "--quiet", "--disable-pip-version-check", "--requirement"])
                .arg(requirements));
        },
        client: |home| {
            let mut client = Command::new(home.join("bin/python"));
            client.arg("-B").arg(source("grpcio/client.py"));
            client
        },
    },
    Peer {
        name: "grpc-js",
        needs: &["node", "npm"],
        pin: include_str!("grpc-js/package.json"),
        install: |home| {
            fs::copy(source("grpc-js/package.json"), home.join("package.json")).unwrap();
            let quiet = ["--silent", "--no-audit", "--no-fund", "--no-package-lock"];
            let npm = ["install", "--ignore-scripts"];
            run(Command::new("npm").args(npm).args(quiet).current_dir(home));
        },
        client: |home| {
            let mut client = Command::new("node");
            client.arg(source("grpc-js/client.js")).env("NODE_PATH", home.join("node_modules"));
            client
        },
    },
    Peer {
        name: "grpcurl",
        needs: &["go", "bash"],
        pin: GRPCURL,
        install: |home| {
            let install = ["install", GRPCURL];
            run(Command::new("go").args(install).env("GOBIN", home).env("CGO_ENABLED", "0"));
        },
        client: |home| {
            let mut client = Command::new("bash");
            client.arg(source("grpcurl/client.sh")).arg(home.join("grpcurl"));
            client
        },
    },
];

fn main() -> ExitCode {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    registrar.logs("I \"Registration Server started\"");

    let failed = PEERS.iter().filter(|peer| !peer.calls(&world.socket())).count();

    assert!(registrar.is_running(), "the registrar outlives its clients");
    let complaints: Vec<_> =
        registrar.log().into_iter().filter(|line| !line.starts_with("I ")).collect();
    assert_eq!(complaints, [""; 0], "the registrar complains of no client");
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Peer {
    /// Runs all scenarios at the socket and shows what came of them. False if any failed.
    fn calls(&self, socket: &Path) -> bool {
        if let Some(program) = self.needs.iter().find(|program| !is_there(program)) {
            for scenario in SCENARIOS {
                self.show(scenario, "skipped", &format!("there is no {program}"));
            }
            return true;
        }
        let mut client = (self.client)(&self.installed());
        client.arg(socket).args([DRIVER, ENDPOINT]).arg(root().join("proto"));
        let mut client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut missing = SCENARIOS.to_vec();
        let mut well = true;
        for line in BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap) {
            println!("{line}");
            let fields: Vec<_> = line.split('\t').collect();
            let ["interop", _, scenario, outcome, _seconds, ..] = fields[..] else {
                panic!("{} printed what is no result: {line}", self.name)
            };
            well &= matches!(outcome, "ok" | "skipped");
            let place = missing.iter().position(|other| *other == scenario);
            missing.remove(place.unwrap_or_else(|| panic!("no such scenario is left: {line}")));
        }
        let status = client.wait().unwrap();
        for scenario in &missing {
            self.show(scenario, "FAILED", &format!("no result, {status}"));
        }
        well && missing.is_empty()
    }

    fn show(&self, scenario: &str, outcome: &str, reason: &str) {
        println!("interop\t{}\t{scenario}\t{outcome}\t0.000\t{reason}", self.name);
    }

    /// Where it is installed, after that was done unless it was done before.
    fn installed(&self) -> PathBuf {
        let cache = env::var_os("XDG_CACHE_HOME").map_or_else(
            || PathBuf::from(env::var_os("HOME").unwrap()).join(".cache"),
            PathBuf::from,
        );
        let home = cache.join("csi-node-driver-registrar-ci/clients").join(self.name);
        // Written last, so that what was broken off is done again.
        let done = home.join("pin");
        if fs::read_to_string(&done).ok().as_deref() != Some(self.pin) {
            let _ = fs::remove_dir_all(&home);
            fs::create_dir_all(&home).unwrap();
            (self.install)(&home);
            fs::write(done, self.pin).unwrap();
        }
        home
    }
}

/// Runs an installer, which may speak on stderr only.
fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{command:?}: {status:?}");
}

fn is_there(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok()
}

fn source(file: &str) -> PathBuf {
    root().join("tests/interop/clients").join(file)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
