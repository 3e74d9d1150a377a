//! The registrar among peers that are not ours, as one table: `cargo bench --bench interop`.
//!
//! `REGISTRAR_BIN` names another build to be proven, `REGISTRAR_REFERENCE` a second registrar to
//! stand beside it. With `full`, all peers take part and the table in `docs/interop.md` is replaced;
//! without, those that need neither long builds nor root. A peer's whole output goes to a file,
//! and what stands there before a failure to stdout as well.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken ends the run")]
#![allow(clippy::print_stdout, reason = "it is for people to read")]

mod table;

use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use table::{Outcome, Table};

/// What runs the scenarios of one peer, and prints a line for each: `interop`, the peer with its
/// version, the scenario, the outcome and the seconds, parted by tabs.
struct Harness {
    name: &'static str,
    folder: &'static str,
    argv: &'static [&'static str],
    /// Takes long to build, or more than a user's rights.
    only_in_full: bool,
}

const HARNESSES: [Harness; 5] = [
    Harness {
        name: "kubelet-1.37",
        folder: "tests/interop/kubelet",
        argv: &["go", "test", "-count=1", "-parallel=4", "-v", "."],
        only_in_full: false,
    },
    Harness {
        name: "kubelet-1.34",
        folder: "tests/interop/kubelet",
        argv: &[
            "go",
            "test",
            "-count=1",
            "-parallel=4",
            "-v",
            "-modfile=kubernetes-1.34.mod",
            "-tags=kubelet_1_34",
            ".",
        ],
        only_in_full: false,
    },
    Harness {
        name: "clients",
        folder: ".",
        argv: &[
            "cargo",
            "bench",
            "--locked",
            "--quiet",
            "--profile=dev",
            "--bench=interop-clients",
        ],
        only_in_full: false,
    },
    Harness {
        name: "krustlet",
        folder: "tests/interop/krustlet",
        argv: &["cargo", "run", "--locked", "--quiet"],
        only_in_full: true,
    },
    Harness {
        name: "node",
        folder: "tests/interop/node",
        argv: &["go", "test", "-count=1", "-timeout=1h", "-v", "."],
        only_in_full: true,
    },
];

fn main() -> ExitCode {
    let full = env::args().any(|argument| argument == "full");
    let ours = env::var("REGISTRAR_BIN")
        .unwrap_or_else(|_| env!("CARGO_BIN_EXE_csi-node-driver-registrar").into());
    let registrars: Vec<_> =
        [Ok(ours), env::var("REGISTRAR_REFERENCE")].into_iter().flatten().collect();
    let mut table = Table::of(registrars.len());
    let mut well = true;
    for harness in HARNESSES.iter().filter(|harness| full || !harness.only_in_full) {
        for (number, registrar) in registrars.iter().enumerate() {
            let passed = harness.run(registrar, |outcome| table.add(number, outcome));
            well &= passed || number > 0;
        }
    }
    println!("\n{table}");
    if full && well {
        let path = root().join("docs/interop.md");
        let page = fs::read_to_string(&path).unwrap();
        let (head, _) = page.split_once("\n| scenario |").unwrap();
        fs::write(path, format!("{head}\n{table}")).unwrap();
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Harness {
    /// False if a scenario has failed, or the harness itself.
    fn run(&self, registrar: &str, mut take: impl FnMut(Outcome)) -> bool {
        let log = logs().join(self.name);
        let mut file = File::create(&log).unwrap();
        println!("\n{} with {registrar}, all in {}", self.name, log.display());
        let since = Instant::now();
        let child = Command::new(self.argv[0])
            .args(&self.argv[1..])
            .current_dir(root().join(self.folder))
            .env("REGISTRAR_BIN", registrar)
            .env("CGO_ENABLED", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.try_clone().unwrap())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                println!("{}: {error}", self.argv[0]);
                return false;
            }
        };
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
            match Outcome::read(&line) {
                Some(outcome) => {
                    println!("{line}");
                    if outcome.failed() {
                        print_end(&log);
                    }
                    take(outcome);
                }
                None => writeln!(file, "{line}").unwrap(),
            }
        }
        let status = child.wait().unwrap();
        if !status.success() {
            print_end(&log);
        }
        println!("{}: {status} after {} s", self.name, since.elapsed().as_secs());
        status.success()
    }
}

fn print_end(log: &Path) {
    let bytes = fs::read(log).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(30)..] {
        println!("    {line}");
    }
}

fn logs() -> PathBuf {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop");
    fs::create_dir_all(&logs).unwrap();
    logs
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
