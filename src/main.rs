//! Registers a CSI driver with the kubelet: learns the driver's name, offers a socket in the
//! kubelet's plugin registry directory, and answers the kubelet there.

mod accept;
mod args;
mod authority;
mod driver;
mod goflag;
mod grpc;
mod http;
mod klog;
mod probe;
mod proto;
#[cfg(test)]
mod random;
mod registration;
mod socket;
mod status;
mod sys;

use std::convert::Infallible;
use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, ensure};
use tracing::{error, info, warn};

use args::{Config, Parsed};
use driver::Driver;
use probe::Unconfirmed;
use socket::{ListenError, Socket};
use status::Publisher;
use sys::{Hangups, HeldSignals};

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
        Err(error) => {
            fail(&error, &config);
            ExitCode::FAILURE
        }
    }
}

fn run(config: &Config, signals: &HeldSignals) -> anyhow::Result<()> {
    ensure!(
        !config.kubelet_registration_path.is_empty(),
        "kubelet-registration-path is a required parameter"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to start the runtime")?;
    if config.probe {
        // A probe that is given up must not answer 0, which says "registered".
        signals.release().context("Failed to let signals through")?;
        let (directory, endpoint) =
            (&config.plugin_registration_path, &config.kubelet_registration_path);
        return Ok(runtime.block_on(probe::run(directory, endpoint, config.timeout))?);
    }
    info!(version = VERSION, "Version");
    info!(mode = %config.mode, "Running node-driver-registrar");
    let endpoint = config.http_endpoint.as_ref().map_err(|reason| anyhow!("{reason}"))?;
    let http = endpoint.as_deref().map(http::bind).transpose()?;
    announce_what_has_no_effect(config);
    let ended = runtime.block_on(serve(config, signals, http));
    // Not waited for: the system's resolver may still be looking up the driver's host.
    runtime.shutdown_background();
    ended
}

/// Serves until the process is asked to end or cannot go on; then nothing of it is left behind.
async fn serve(
    config: &Config,
    signals: &HeldSignals,
    http: Option<http::Server>,
) -> anyhow::Result<()> {
    let (mut terminations, mut hangups) = signals.listen().context("Failed to handle signals")?;
    let status = Publisher::default();
    let answers = http::Context::new(&status, config.timeout, config.enable_pprof, VERSION);
    let mut socket = None;
    let ended = tokio::select! {
        Err(failed) = register(config, &status, &mut hangups, &mut socket) => Err(failed),
        Err(failed) = http::serve(http, answers) => Err(failed),
        () = terminations.next() => Ok(()),
    };
    ended.and(socket.map_or(Ok(()), Socket::remove))
}

/// From an absent driver to a registered one; ends when that is not possible.
async fn register(
    config: &Config,
    status: &Publisher,
    hangups: &mut Hangups,
    socket: &mut Option<Socket>,
) -> anyhow::Result<Infallible> {
    let endpoint = &config.kubelet_registration_path;
    let (address, startup) = (&config.csi_address, config.startup_timeout);
    let mut driver = Driver::at(address, config.timeout, startup, status)?;
    let mut name = driver.discover().await?;
    loop {
        socket::check_kubelets_view(endpoint, &name);
        let path = socket::path(&config.plugin_registration_path, &name)
            .context("The CSI driver's name cannot be registered")?;
        status.send_modify(|status| status.named(&name, &path));
        let bound = socket.insert(Socket::bind(path, status)?);
        let renamed = tokio::select! {
            reason = registration::serve(bound, &name, endpoint, hangups, status) => {
                return Err(anyhow!(reason).context(
                    "Registration process failed with error, restarting registration container",
                ));
            }
            renamed = driver.renamed(&name) => renamed,
        };
        warn!(was = %name, is = %renamed, "The CSI driver has come back under another name");
        socket.take().map_or(Ok(()), Socket::remove)?;
        name = renamed;
    }
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

/// Says why the process ends, in the log and in the termination message, which the kubelet shows as
/// the container's last state. A probe, which is not the container, says it in one plain line.
///
/// The outermost context of the error is the message, what it was caused by is `err`.
fn fail(error: &anyhow::Error, config: &Config) {
    if let Some(unconfirmed) = error.downcast_ref::<Unconfirmed>() {
        let _ = writeln!(io::stderr(), "{unconfirmed}");
        return;
    }
    let causes: Vec<_> = error.chain().skip(1).map(ToString::to_string).collect();
    let reason = causes.join(": ");
    match error.downcast_ref::<ListenError>() {
        Some(listen) => error!(err = %reason, socketPath = %listen.path, "{error}"),
        None if causes.is_empty() => error!("{error}"),
        None => error!(err = %reason, "{error}"),
    }
    if !config.probe {
        let line = format!("{error:#}").replace('\n', " ");
        let _ = leave_message(&config.termination_log_path, &line);
    }
}

/// Replaces what the file holds; a file that is not there is not made. The kubelet keeps the end of a
/// longer message, without the operation that failed.
fn leave_message(path: &Path, line: &str) -> io::Result<()> {
    const KUBELETS_LIMIT: usize = 4096;
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    writeln!(file, "{}", &line[..line.floor_char_boundary(KUBELETS_LIMIT - 1)])
}
