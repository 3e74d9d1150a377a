//! The server's end of the registration socket: accepts the kubelet and whoever else comes, and
//! knows what to do when the kubelet refuses or keeps silent.

pub(crate) mod client;
mod service;
mod watchdog;

use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::accept;
use crate::authority::Admit;
use crate::socket::Socket;
use crate::status::Publisher;
use crate::sys::{Hangups, UnixStream};
use service::{Plugin, answer};
use watchdog::{Event, Watchdog};

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
    let mut watchdog = Watchdog::of(status);
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let reason = loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            event = watchdog.next() => match event {
                Event::Refused(reason) => break reason,
                Event::Unheard(time) => {
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
