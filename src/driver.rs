//! The CSI driver's side: reaches the driver's socket and asks for the driver's name.

mod address;

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use crate::grpc::{self, Channel, Fields};
use crate::klog::{self, json_string};
use crate::proto::csi::GetPluginInfoResponse;
use crate::proto::csi::identity_client::IdentityClient;
use crate::status::Publisher;
use crate::sys;
use address::Address;

/// Pauses between attempts grow from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How long a driver that comes back is left alone to start.
const SETTLE: Duration = Duration::from_secs(1);

/// A CSI driver, by where it listens. No connection to it is kept: it would serve no call, and
/// tells nothing that the driver's socket does not.
#[derive(Debug)]
pub(crate) struct Driver<'a> {
    address: Address,
    /// The bound of one call.
    limit: Duration,
    /// The bound of the wait for its name; None is without limit.
    startup: Option<Duration>,
    status: &'a Publisher,
    /// The socket file that stood there when it was last dialled.
    dialled: Option<sys::Made>,
}

/// How far the wait for the driver has come, should it have to be given up.
#[derive(Debug, Default)]
struct Wait {
    reached: bool,
    /// Why there is no name yet.
    reason: String,
}

impl<'a> Driver<'a> {
    /// # Errors
    /// The address cannot be one.
    pub(crate) fn at(
        address: &str,
        limit: Duration,
        startup: Option<Duration>,
        status: &'a Publisher,
    ) -> anyhow::Result<Self> {
        let address = Address::parse(address).context("Error connecting to CSI driver")?;
        status.send_modify(|status| status.csi_address = address.to_string());
        Ok(Self { address, limit, startup, status, dialled: None })
    }

    /// Waits for the driver, asks for its name and checks that the name can be registered.
    ///
    /// # Errors
    /// The driver gave a final error or an unusable name, or the time is over; the outermost
    /// context is the message for the log.
    pub(crate) async fn discover(&mut self) -> anyhow::Result<String> {
        let mut wait = Wait::default();
        let startup = self.startup;
        let asked = self.ask(&mut wait);
        let name = match startup {
            None => asked.await,
            Some(limit) => match timeout(limit, asked).await {
                Ok(result) => result,
                Err(_) => {
                    let address = &self.address;
                    Err(anyhow!("{} (waited {limit:?} for {address})", wait.reason))
                }
            },
        }
        .context(match wait.reached {
            true => "Error retreiving CSI driver name",
            false => "Error connecting to CSI driver",
        })?;
        check_name(&name).context("The CSI driver's name cannot be registered")?;
        Ok(name)
    }

    /// Completes when the driver has made its socket anew and has another name, which it returns.
    pub(crate) async fn renamed(&mut self, name: &str) -> String {
        let mut watch = self.address.watch();
        loop {
            // Looks before it waits: the driver may have come back since it was asked.
            let made = self.address.made();
            if made.is_none() || made == self.dialled {
                self.address.changed(&mut watch).await;
                continue;
            }
            sleep(SETTLE).await;
            match self.discover().await {
                Ok(new) if new != name => return new,
                Ok(_) => {}
                Err(error) => {
                    warn!(
                        err = format!("{error:#}"),
                        "The CSI driver has come back, but not with a name"
                    );
                }
            }
        }
    }

    /// Calls GetPluginInfo until the driver has answered it.
    async fn ask(&mut self, wait: &mut Wait) -> anyhow::Result<String> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 0;
        loop {
            let channel = self.reach(wait).await;
            wait.reached = true;
            wait.reason = "GetPluginInfo is not answered".into();
            attempt += 1;
            debug!(v = 1, "Calling CSI driver to discover driver name");
            let failed = match self.get_plugin_info(channel).await {
                Ok(info) => {
                    ensure!(!info.name.is_empty(), "driver name is empty");
                    self.status.send_modify(|status| status.counts.driver_ok += 1);
                    debug!(v = 2, csiDriverName = %info.name, "CSI driver name");
                    return Ok(info.name);
                }
                Err(failed) => failed,
            };
            self.status.send_modify(|status| status.counts.driver_error += 1);
            wait.reason = grpc::in_words(&failed);
            ensure!(may_pass(failed.code()), "{}", wait.reason);
            warn!(err = %wait.reason, attempt, "Error retrieving CSI driver name, retrying");
            back_off(&mut pause).await;
        }
    }

    /// Connects until a server answers in HTTP/2.
    async fn reach(&mut self, wait: &mut Wait) -> Channel {
        let address = &self.address;
        debug!(v = 1, csiAddress = address.given(), "Attempting to open a gRPC connection");
        debug!(v = 5, address = %address, "Connecting");
        let mut report = Instant::now() + REPORT_EVERY;
        let mut pause = FIRST_PAUSE;
        loop {
            self.dialled = address.made();
            match address.connect().await {
                Ok(channel) => return channel,
                Err(reason) => wait.reason = reason,
            }
            self.status.send_modify(|status| status.counts.driver_unreachable += 1);
            if Instant::now() >= report {
                info!(address = %address, err = %wait.reason, "Still connecting");
                report += REPORT_EVERY;
            }
            back_off(&mut pause).await;
        }
    }

    async fn get_plugin_info(&self, channel: Channel) -> Result<GetPluginInfoResponse, Status> {
        let mut client = IdentityClient::with_origin(channel, self.address.origin());
        let method = "/csi.v1.Identity/GetPluginInfo";
        let call = async |request| client.get_plugin_info(request).await;
        grpc::call(method, self.limit, call, fields).await
    }
}

/// Rests before the next attempt.
async fn back_off(pause: &mut Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

/// Whether a later attempt may do better, by the meaning that gRPC gives to the code.
fn may_pass(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    matches!(code, Aborted | Cancelled | DeadlineExceeded | ResourceExhausted | Unavailable)
}

fn fields(info: &GetPluginInfoResponse) -> Fields {
    let entry =
        |(key, value): (&String, &String)| format!("{}:{}", json_string(key), json_string(value));
    let manifest: Vec<_> = info.manifest.iter().map(entry).collect();
    vec![
        ("manifest", format!("{{{}}}", manifest.join(","))),
        ("name", json_string(&info.name)),
        ("vendor_version", json_string(&info.vendor_version)),
    ]
}

/// Refuses a name that would not make a socket in the registry directory which the kubelet looks
/// at; warns of one that CSI does not allow, as such drivers exist.
fn check_name(name: &str) -> anyhow::Result<()> {
    let quoted = klog::quote(name);
    ensure!(!name.contains(sys::SEPARATORS), "driver name {quoted} contains a slash");
    ensure!(!name.contains(char::is_control), "driver name {quoted} contains a control character");
    ensure!(
        !name.starts_with('.'),
        "driver name {quoted} starts with a dot, and the kubelet passes over such sockets"
    );
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    if name.len() > 63 {
        warn!(csiDriverName = %name, "CSI driver name is longer than the 63 characters of the CSI specification");
    } else if !edge(name.chars().next()) || !edge(name.chars().last()) || !name.chars().all(inner) {
        warn!(csiDriverName = %name, "CSI driver name is not of the form that the CSI specification demands: letters, digits, '-' and '.', alphanumeric at both ends");
    }
    Ok(())
}
