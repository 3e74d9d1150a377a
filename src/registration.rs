//! The server's end of the registration socket: accepts the kubelet and whoever else comes, and
//! knows what to do when the kubelet refuses or keeps silent.

pub(crate) mod client;
mod service;

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::accept;
use crate::authority::Admit;
use crate::socket::Socket;
use crate::status::{self, Kubelet, Publisher};
use crate::sys::{Hangups, UnixStream};
use service::{Plugin, answer};

/// Header lists of up to 16 KiB are accepted; h2 refuses one of exactly its limit, and the
/// authority may have grown by a few bytes on the way to it.
const MAX_HEADER_LIST: u32 = 16 * 1024 + 64;
/// A registration is two calls, one after the other, on one connection.
const MAX_CONNECTIONS: usize = 128;
const MAX_STREAMS: u32 = 32;
const MAX_AGE: Duration = Duration::from_secs(600);
/// From so many connections on a further one may not stay as long: those that keep silent must not
/// shut out the kubelet, whose gRPC library dials again should its second call come too late.
const CROWD: usize = MAX_CONNECTIONS / 4;
const MAX_AGE_IN_A_CROWD: Duration = Duration::from_secs(5);
/// How long the kubelet may keep silent about a new socket.
const PATIENCE: [Duration; 4] = [
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(300),
];
const UNHEARD: &str = "the registry directory has to be plugins_registry below the kubelet's \
    --root-dir, mounted from the host; the kubelet has to run, and to have inotify watches left";
/// How long answers that are on their way may take once the kubelet has refused.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until the kubelet refuses the driver, and returns the kubelet's reason. The refusing
/// call has been answered by then.
pub(crate) async fn serve(
    socket: &mut Socket,
    driver_name: &str,
    endpoint: &str,
    hangups: &mut Hangups,
    status: &Publisher,
) -> String {
    let mut kubelet = Listening::to(status);
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let reason = loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            turn = kubelet.next() => match turn {
                Turn::Refused(reason) => break reason,
                Turn::Unheard(time) => {
                    warn!(
                        time = ?time, check = UNHEARD,
                        "The kubelet has not called, offering the registration socket again"
                    );
                    socket.offer_again();
                }
            },
            () = hangups.next() => {
                info!("SIGHUP, offering the registration socket again");
                socket.offer_again();
            }
            () = socket.disturbed() => socket.look(),
            stream = accept::next("registration socket", async || socket.accept().await), if room => {
                let plugin = Plugin::new(driver_name, endpoint, status);
                let max_age = match connections.len() < CROWD {
                    true => MAX_AGE,
                    false => MAX_AGE_IN_A_CROWD,
                };
                connections.spawn(connection(stream, plugin, max_age, stopped.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    };
    drop(stop);
    let _ = timeout(GRACE, connections.join_all()).await;
    reason
}

/// What the kubelet's silence or words lead to.
enum Turn {
    Refused(String),
    /// It has not called for so long.
    Unheard(Duration),
}

struct Listening {
    changes: watch::Receiver<status::Status>,
    /// How often the socket was offered again in vain.
    unheard: usize,
    /// When it was last told of.
    told: Instant,
}

impl Listening {
    fn to(status: &Publisher) -> Self {
        Self { changes: status.subscribe(), unheard: 0, told: Instant::now() }
    }

    async fn next(&mut self) -> Turn {
        loop {
            let since = {
                let status = self.changes.borrow_and_update();
                if let Kubelet::Refused(reason) = &status.kubelet {
                    return Turn::Refused(reason.clone());
                }
                if status.kubelet != Kubelet::Silent {
                    self.unheard = 0;
                }
                status.unheard_since()
            };
            let patience = PATIENCE[self.unheard.min(PATIENCE.len() - 1)];
            // What could not be offered again has waited since it was told of.
            let end = since.map(|since| since.max(self.told) + patience);
            tokio::select! {
                _ = self.changes.changed() => {}
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    self.unheard += 1;
                    self.told = Instant::now();
                    return Turn::Unheard(patience);
                }
            }
        }
    }
}

/// One client, until it leaves, is too old or `stopped`; then only to the end of its calls.
async fn connection(
    stream: UnixStream,
    plugin: Plugin,
    max_age: Duration,
    mut stopped: watch::Receiver<()>,
) {
    let service = service_fn(move |request| answer(plugin.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_STREAMS)
        .serve_connection(TokioIo::new(Admit::new(stream)), service);
    let mut connection = pin!(connection);
    // An error is the client's way to leave: the kubelet closes without waiting for our last word.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(max_age) => {}
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after which a silent kubelet is told of, five times.
    async fn pauses(status: &Publisher, offered_again: impl Fn()) -> Vec<u64> {
        let mut kubelet = Listening::to(status);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            let since = Instant::now();
            assert!(matches!(kubelet.next().await, Turn::Unheard(_)));
            pauses.push(since.elapsed().as_secs());
            offered_again();
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn waits_longer_each_time_whether_or_not_the_socket_could_be_offered_again() {
        let status = Publisher::default();
        status.send_modify(status::Status::bound);
        let again = || status.send_modify(status::Status::bound);
        assert_eq!(pauses(&status, again).await, [30, 60, 120, 300, 300]);
        assert_eq!(pauses(&status, || {}).await, [30, 60, 120, 300, 300]);
    }
}
