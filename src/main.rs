//! Registers a CSI driver with the kubelet: learns the driver's name, offers a socket in the
//! kubelet's plugin registry directory, and answers the kubelet there.

mod args;
mod authority;
mod driver;
mod goflag;
mod klog;
mod proto;
mod registration;
mod socket;
mod sys;

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use tracing::{error, info, warn};

use args::{Config, Parsed};
use socket::{ListenError, Socket};
use sys::{HeldSignals, Signals};

const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));
/// Go's exit status for flags that cannot be parsed.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    let signals = HeldSignals::hold();
    let config = match args::parse(env::args_os()) {
        Ok(Parsed::Config(config)) => config,
        Ok(Parsed::Help(text)) => return print(&text),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            return ExitCode::from(USAGE_ERROR);
        }
    };
    let ended = match &config.logging {
        Err(reason) => {
            klog::init(&klog::Options::default());
            Err(anyhow!("{reason}").context("LoggingConfiguration is invalid"))
        }
        Ok(_) if config.version => return print(&format!("{} {VERSION}\n", config.argv0)),
        Ok(logging) => {
            klog::init(logging);
            signals
                .context("Failed to hold signals back")
                .and_then(|signals| run(&config, &signals))
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, &config.termination_log_path),
    }
}

fn run(config: &Config, signals: &HeldSignals) -> anyhow::Result<()> {
    ensure!(
        !config.kubelet_registration_path.is_empty(),
        "kubelet-registration-path is a required parameter"
    );
    if config.probe {
        return Ok(());
    }
    info!(version = VERSION, "Version");
    info!(mode = %config.mode, "Running node-driver-registrar");
    let endpoint = config.http_endpoint.as_ref();
    if endpoint.map_err(|reason| anyhow!("{reason}"))?.is_some() || config.enable_pprof {
        warn!("HTTP is not served by this version");
    }
    announce_what_has_no_effect(config);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to start the runtime")?
        .block_on(register(config, signals))
}

/// From an absent driver to a registered one, until the process is asked to end or the kubelet
/// refuses.
async fn register(config: &Config, signals: &HeldSignals) -> anyhow::Result<()> {
    let mut signals = Signals::listen(signals).context("Failed to handle signals")?;
    let driver_name = tokio::select! {
        name = driver::discover(&config.csi_address, config.timeout, config.startup_timeout) => name?,
        () = signals.terminated() => return Ok(()),
    };
    let path = socket::path(&config.plugin_registration_path, &driver_name)
        .context("The CSI driver's name cannot be registered")?;
    socket::check_kubelets_view(&config.kubelet_registration_path, &driver_name);
    let socket = Socket::bind(path)?;
    info!("Skipping HTTP server");
    let plugin = registration::plugin(driver_name, config.kubelet_registration_path.clone());
    let ended = tokio::select! {
        reason = registration::serve(socket.listener(), plugin) => Err(anyhow!(reason)
            .context("Registration process failed with error, restarting registration container")),
        () = signals.terminated() => Ok(()),
    };
    socket.remove()?;
    ended
}

/// One line for each kind of flag that is accepted and changes nothing.
fn announce_what_has_no_effect(config: &Config) {
    if config.connection_timeout_given {
        info!("--connection-timeout is deprecated and will have no effect");
    }
    if !config.without_effect.is_empty() {
        warn!(flags = %config.without_effect.join(" "), "Flags of earlier versions have no effect");
    }
}

fn print(text: &str) -> ExitCode {
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Says why the process ends, in the log and in the termination log, which the kubelet shows as
/// the container's last state.
///
/// The outermost context of the error is the message, what it was caused by is `err`.
fn fail(error: &anyhow::Error, termination_log: &Path) -> ExitCode {
    let causes: Vec<_> = error.chain().skip(1).map(ToString::to_string).collect();
    let reason = causes.join(": ");
    match error.downcast_ref::<ListenError>() {
        Some(listen) => error!(err = %reason, socketPath = %listen.path, "{error}"),
        None if causes.is_empty() => error!("{error}"),
        None => error!(err = %reason, "{error}"),
    }
    let line = [vec![error.to_string()], causes].concat().join(": ");
    let _ = leave_message(termination_log, &line.replace('\n', " "));
    ExitCode::FAILURE
}

/// Replaces what the file holds; a file that is not there is not made.
fn leave_message(path: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    writeln!(file, "{line}")
}
