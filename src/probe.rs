//! The exec probe: asks the registrar, over its registration socket, whether the kubelet has
//! confirmed the registration.

use std::fmt;
use std::fs;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::grpc::Channel;
use crate::proto::pluginregistration::PluginInfo;
use crate::registration::client;
use crate::sys;

/// Connections that are open at a time: far more than a node has drivers, and fewer than the
/// descriptors that a process may have.
const AT_A_TIME: usize = 128;

/// Why the kubelet has not confirmed the registration, or why that is not known, in one line.
#[derive(Debug)]
pub(crate) struct Unconfirmed(String);

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not registered: {}", self.0)
    }
}

impl std::error::Error for Unconfirmed {}

/// Succeeds if a registrar in the registry directory tells the kubelet `endpoint`, and the kubelet
/// has confirmed the registration.
pub(crate) async fn run(
    directory: &str,
    endpoint: &str,
    limit: Duration,
) -> Result<(), Unconfirmed> {
    let asked = timeout(limit, ask(directory, endpoint, limit)).await;
    asked
        .unwrap_or_else(|_| {
            Err(format!("no answer from the registrar of {endpoint} within {limit:?}"))
        })
        .map_err(|reason| Unconfirmed(reason.replace('\n', " ")))
}

async fn ask(directory: &str, endpoint: &str, limit: Duration) -> Result<(), String> {
    // A foreign server that keeps silent must leave time for the registrar's second answer.
    let each = limit / 2;
    let mut paths = sockets_in(directory)?.into_iter();
    let mut asked = JoinSet::new();
    let (mut reason, mut mute) = (None, 0);
    loop {
        let room = AT_A_TIME - asked.len();
        asked.extend(paths.by_ref().take(room).map(|path| ask_one(path, each)));
        let Some(answer) = asked.join_next().await else {
            break;
        };
        // There may be several, as in an update; one that is registered is enough.
        match answer.ok().flatten() {
            Some((channel, info)) if info.endpoint == endpoint => {
                match client::is_registered(channel).await {
                    Ok(()) => return Ok(()),
                    Err(why_not) => reason = Some(why_not),
                }
            }
            Some(_) => {}
            None => mute += 1,
        }
    }
    Err(match (reason, mute) {
        (Some(reason), _) => reason,
        (None, 0) => format!(
            "no registrar in {directory} serves {endpoint}; none runs, or it waits for its CSI driver"
        ),
        (None, mute) => format!(
            "no registrar in {directory} serves {endpoint}, unless it is one of the {mute} that do not answer"
        ),
    })
}

/// What the server of a socket tells the kubelet, if it does, and the connection to ask on.
async fn ask_one(path: String, limit: Duration) -> Option<(Channel, PluginInfo)> {
    let channel = client::connect(&path, limit).await.ok()?;
    let info = client::get_info(channel.clone(), limit).await.ok()?;
    Some((channel, info))
}

/// The sockets that the kubelet would look at.
fn sockets_in(directory: &str) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(directory).map_err(|error| {
        let reason = sys::reason(&error);
        format!("cannot read the registry directory {directory}: {reason}")
    })?;
    let sockets = entries.flatten().filter_map(|entry| {
        let socket = sys::metadata(entry.path()).is_ok_and(|file| sys::is_socket(&file));
        let path = entry.path().into_os_string().into_string().ok()?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        (socket && !hidden).then_some(path)
    });
    Ok(sockets.collect())
}
