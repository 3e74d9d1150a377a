//! The exec probe: asks the registrar, over its registration socket, whether the kubelet has
//! confirmed the registration.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::registration::client;
use crate::sys;

/// Succeeds if a registrar in the registry directory serves `endpoint`, which is told to the
/// kubelet, and the kubelet has confirmed it.
///
/// # Errors
/// Why not, in one line.
pub(crate) async fn run(directory: &str, endpoint: &str, limit: Duration) -> anyhow::Result<()> {
    match timeout(limit, ask(directory, endpoint, limit)).await {
        Ok(result) => result,
        Err(_) => Err(anyhow!(
            "no answer from the registrar of {endpoint} within {limit:?}"
        )),
    }
}

async fn ask(directory: &str, endpoint: &str, limit: Duration) -> anyhow::Result<()> {
    // A foreign server that keeps silent must leave time for the registrar's second answer.
    let each = limit / 2;
    let mut sockets = JoinSet::new();
    for path in sockets_in(directory)? {
        sockets.spawn(async move {
            let channel = client::connect(&path, each).await.ok()?;
            let info = client::get_info(channel.clone(), each).await.ok()?;
            Some((channel, info))
        });
    }
    while let Some(answer) = sockets.join_next().await {
        if let Ok(Some((channel, info))) = answer
            && info.endpoint == endpoint
        {
            return client::is_registered(channel)
                .await
                .map_err(|reason| anyhow!(reason));
        }
    }
    bail!(
        "no registrar in {directory} serves {endpoint}: none runs, or it waits for its CSI driver"
    )
}

/// The sockets that the kubelet would look at.
fn sockets_in(directory: &str) -> anyhow::Result<Vec<String>> {
    let unreadable = || format!("cannot read the registry directory {directory}");
    let entries = fs::read_dir(Path::new(directory))
        .map_err(|error| anyhow!(sys::reason(&error)))
        .with_context(unreadable)?;
    let sockets = entries.flatten().filter_map(|entry| {
        let socket = fs::metadata(entry.path()).is_ok_and(|file| sys::is_socket(&file));
        let path = entry.path().into_os_string().into_string().ok()?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        (socket && !hidden).then_some(path)
    });
    Ok(sockets.collect())
}
