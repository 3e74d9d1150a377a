//! The CSI driver's side: reaches the driver's socket and asks for the driver's name.

mod address;

use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use tracing::{debug, info, warn};

use crate::grpc::{self, Channel, Fields};
use crate::klog;
use crate::proto::csi::GetPluginInfoResponse;
use crate::proto::csi::identity_client::IdentityClient;
use crate::status::Publisher;
use address::Address;

/// Pauses between attempts grow from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Waits for the driver, asks for its name and checks that the name can be registered.
///
/// `call` bounds one call, `startup` all of it; None is without limit. The connection is closed
/// again: nothing else is ever asked.
///
/// # Errors
/// The address or the name cannot be used, the driver gave a final error, or the time is over;
/// the outermost context is the message for the log.
pub(crate) async fn discover(
    address: &str,
    call: Duration,
    startup: Option<Duration>,
    status: &Publisher,
) -> anyhow::Result<String> {
    debug!(v = 1, csiAddress = %address, "Attempting to open a gRPC connection");
    let address = Address::parse(address).context("Error connecting to CSI driver")?;
    status.send_modify(|status| status.csi_address = address.to_string());
    debug!(v = 5, address = %address, "Connecting");
    let mut wait = Wait::default();
    let asked = ask(&address, call, &mut wait, status);
    let name = match startup {
        None => asked.await,
        Some(limit) => match timeout(limit, asked).await {
            Ok(result) => result,
            Err(_) => Err(anyhow!("{} (waited {limit:?})", wait.reason)),
        },
    }
    .context(match wait.reached {
        true => "Error retreiving CSI driver name",
        false => "Error connecting to CSI driver",
    })?;
    debug!(v = 2, csiDriverName = %name, "CSI driver name");
    check_name(&name).context("The CSI driver's name cannot be registered")?;
    Ok(name)
}

/// How far the wait for the driver has come, should it have to be given up.
#[derive(Debug, Default)]
struct Wait {
    reached: bool,
    /// Why there is no name yet.
    reason: String,
}

/// Calls GetPluginInfo until the driver has answered it.
async fn ask(
    address: &Address,
    limit: Duration,
    wait: &mut Wait,
    status: &Publisher,
) -> anyhow::Result<String> {
    let mut pause = FIRST_PAUSE;
    let mut attempt = 0;
    loop {
        let channel = reach(address, wait, status).await;
        wait.reached = true;
        wait.reason = "GetPluginInfo is not answered".into();
        attempt += 1;
        debug!(v = 1, "Calling CSI driver to discover driver name");
        let failed = match get_plugin_info(channel, address, limit).await {
            Ok(info) => {
                ensure!(!info.name.is_empty(), "driver name is empty");
                status.send_modify(|status| status.counts.driver_ok += 1);
                return Ok(info.name);
            }
            Err(failed) => failed,
        };
        status.send_modify(|status| status.counts.driver_error += 1);
        wait.reason = grpc::in_words(&failed);
        ensure!(may_pass(failed.code()), "{}", wait.reason);
        warn!(err = %wait.reason, attempt, "Error retrieving CSI driver name, retrying");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Connects until a server answers in HTTP/2.
async fn reach(address: &Address, wait: &mut Wait, status: &Publisher) -> Channel {
    let mut report = Instant::now() + REPORT_EVERY;
    let mut pause = FIRST_PAUSE;
    loop {
        match address.connect().await {
            Ok(channel) => return channel,
            Err(reason) => wait.reason = reason,
        }
        status.send_modify(|status| status.counts.driver_unreachable += 1);
        if Instant::now() >= report {
            info!(address = %address, err = %wait.reason, "Still connecting");
            report += REPORT_EVERY;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn get_plugin_info(
    channel: Channel,
    address: &Address,
    limit: Duration,
) -> Result<GetPluginInfoResponse, Status> {
    let mut client = IdentityClient::with_origin(channel, address.origin());
    let method = "/csi.v1.Identity/GetPluginInfo";
    let call = async |request| client.get_plugin_info(request).await;
    grpc::call(method, limit, call, fields).await
}

/// Whether a later attempt may do better, by the meaning that gRPC gives to the code.
fn may_pass(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    matches!(
        code,
        Aborted | Cancelled | DeadlineExceeded | ResourceExhausted | Unavailable
    )
}

fn fields(info: &GetPluginInfoResponse) -> Fields {
    let entries = info.manifest.iter();
    let entries = entries
        .map(|(key, value)| format!("{}:{}", klog::json_string(key), klog::json_string(value)));
    let manifest = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let name = klog::json_string(&info.name).to_string();
    let vendor_version = klog::json_string(&info.vendor_version).to_string();
    let mut fields = Vec::new();
    if !info.manifest.is_empty() {
        fields.push(("manifest", manifest));
    }
    if !info.name.is_empty() {
        fields.push(("name", name));
    }
    if !info.vendor_version.is_empty() {
        fields.push(("vendor_version", vendor_version));
    }
    fields
}

/// Refuses a name that would not make a socket in the registry directory which the kubelet looks
/// at; warns of one that CSI does not allow, as such drivers exist.
fn check_name(name: &str) -> anyhow::Result<()> {
    let quoted = klog::quote(name);
    ensure!(!name.contains('/'), "driver name {quoted} contains a slash");
    ensure!(
        !name.contains(char::is_control),
        "driver name {quoted} contains a control character"
    );
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
