//! Accepts the clients of both servers, the kubelet's and HTTP's.

use std::io;
use std::time::Duration;

use tokio::time::sleep;
use tracing::error;

use crate::sys;

/// The pause after a failure, as when descriptors have run out: only time brings them back.
const PAUSE: Duration = Duration::from_secs(1);

/// The next client of `place`. A failure to accept one is told, and does not end the server.
pub(crate) async fn next<S>(place: &str, accept: impl AsyncFn() -> io::Result<S>) -> S {
    loop {
        match accept().await {
            Ok(client) => return client,
            Err(error) => {
                let reason = sys::reason(&error);
                error!(err = %reason, "Failed to accept a connection to the {place}");
            }
        }
        sleep(PAUSE).await;
    }
}
