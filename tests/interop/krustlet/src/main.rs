//! Proves a registrar binary (`REGISTRAR_BIN`) against Krustlet's own plugin watcher: one line a
//! scenario on stdout, and on stderr the whole story of each that fails.
//!
//! - `scenarios`: what is promised, one function each
//! - `world`: a home directory with `.krustlet/plugins`, and what is started in it
//! - `krustlet`: the watcher, from the crate `kubelet`
//! - `driver`: a CSI driver that only tells its name
//! - `registrar`: the process under test
//! - `wait`: polls until a fact holds

mod driver;
mod krustlet;
mod registrar;
mod scenarios;
mod wait;
mod world;

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use tokio::runtime::Runtime;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::scenarios::SCENARIOS;
use crate::world::World;

/// As pinned in Cargo.toml.
const PEER: &str = "Krustlet (kubelet 1.0.0-alpha.1)";
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    match registrar_bin() {
        Ok(binary) => match run(&binary) {
            Ok(0) => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => fail(&error, ExitCode::FAILURE),
        },
        Err(error) => fail(&error, ExitCode::from(USAGE_ERROR)),
    }
}

fn fail(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    let _ = writeln!(io::stderr(), "{error:#}");
    code
}

fn registrar_bin() -> anyhow::Result<PathBuf> {
    let binary = PathBuf::from(env::var_os("REGISTRAR_BIN").context("REGISTRAR_BIN is not set")?);
    let text = binary.display();
    ensure!(binary.is_absolute(), "REGISTRAR_BIN: {text} is not an absolute path");
    ensure!(binary.is_file(), "REGISTRAR_BIN: {text} is not a file");
    Ok(binary)
}

/// Runs all scenarios and returns how many have failed.
fn run(binary: &Path) -> anyhow::Result<usize> {
    // Why Krustlet has not registered a driver stands only in its log.
    let errors = Targets::new().with_target("kubelet::plugin_watcher", LevelFilter::ERROR);
    tracing_subscriber::registry().with(fmt::layer().with_writer(io::stderr)).with(errors).init();
    let runtime = Runtime::new()?;
    let mut failed = 0;
    for (name, scenario) in SCENARIOS {
        let world = World::new(runtime.handle(), binary)?;
        let start = Instant::now();
        let result = scenario(&world);
        let seconds = start.elapsed().as_secs_f64();
        let outcome = if result.is_ok() { "ok" } else { "FAILED" };
        writeln!(io::stdout(), "interop\t{PEER}\t{name}\t{outcome}\t{seconds:.2}")?;
        if let Err(error) = result {
            failed += 1;
            writeln!(io::stderr(), "{name}: {error:#}\n{}", world.stories())?;
        }
    }
    Ok(failed)
}
