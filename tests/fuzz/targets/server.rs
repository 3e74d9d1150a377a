//! Any octets on one connection to the registration socket: the connection ends when the client
//! does, and another client is served meanwhile and afterwards.
//!
//! `corpus/*/kubelet` is what the plugin manager of Kubernetes 1.37 sends in a registration.

#![no_main]

#[allow(dead_code, reason = "the server needs a part of it")]
#[path = "../../../src"]
mod program {
    pub(crate) mod accept;
    pub(crate) mod authority;
    pub(crate) mod grpc;
    pub(crate) mod klog;
    pub(crate) mod proto;
    pub(crate) mod registration;
    pub(crate) mod socket;
    pub(crate) mod status;
    pub(crate) mod sys;
}

use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;
use tokio::time::timeout;

use program::{accept, authority, grpc, klog, proto, registration, socket, status, sys};
use registration::client;
use socket::Socket;
use status::{Kubelet, Place, Publisher, Status};
use sys::{Hangups, UnixStream};

const DRIVER: &str = "test.csi.example.com";
const LIMIT: Duration = Duration::from_secs(10);

libfuzzer_sys::fuzz_target!(
    // A main function in Rust would have seen to that.
    init: SigSet::from(Signal::SIGPIPE).thread_block().expect("a mask"),
    |input: &[u8]| SITE.with(|site| site.tasks.block_on(&site.runtime, site.check(input)))
);

thread_local! {
    static SITE: Site = Site::new();
}

/// One server for all inputs, on the runtime of its clients.
struct Site {
    runtime: Runtime,
    tasks: LocalSet,
    _directory: TempDir,
    path: String,
    status: Publisher,
}

impl Site {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let parent = directory.path().to_str().expect("a path in UTF-8");
        let path = socket::path(parent, DRIVER).expect("a short path");
        let status = Publisher::default();
        let tasks = LocalSet::new();
        tasks.spawn_local(serve(path.clone(), status.clone()));
        Self { runtime, tasks, _directory: directory, path, status }
    }

    async fn check(&self, input: &[u8]) {
        let mut changes = self.status.subscribe();
        let is_bound = |status: &Status| status.place == Place::Ours;
        let _ = changes.wait_for(is_bound).await;
        let mut stream = self.connect().await;
        // The server may have closed the connection at the first octets.
        let written = timeout(LIMIT, stream.write_all(input)).await;
        let _ = written.expect("the octets are taken");
        let meanwhile = self.name().await;
        let _ = stream.shutdown().await;
        let end = timeout(LIMIT, stream.read_to_end(&mut Vec::new())).await;
        let _ = end.expect("the connection ends");
        let afterwards = self.name().await;
        if self.status.borrow().counts.refused > 0 {
            // That ends the server, and others with it.
            self.status.send_modify(|status| status.counts.refused = 0);
            let is_next = |status: &Status| !matches!(status.kubelet, Kubelet::Refused(_));
            let _ = changes.wait_for(is_next).await;
            return;
        }
        assert_eq!((&*meanwhile, &*afterwards), (DRIVER, DRIVER));
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.expect("a connection")
    }

    /// The driver's name, or why it is not told.
    async fn name(&self) -> String {
        let name = async {
            let channel = client::connect(&self.path, LIMIT).await?;
            let info = client::get_info(channel, LIMIT).await;
            info.map(|info| info.name).map_err(|status| status.to_string())
        };
        name.await.unwrap_or_else(|reason| reason)
    }
}

/// Starts again when the driver was refused.
async fn serve(path: String, status: Publisher) {
    let mut hangups = Hangups::default();
    loop {
        let mut socket = Socket::bind(path.clone(), &status).expect("a socket");
        let bind = status.borrow().counts.socket_binds;
        // An unregistered driver would be offered again in between.
        status.send_modify(|status| status.notified(bind, Ok(())));
        registration::serve(&mut socket, DRIVER, "/csi.sock", &mut hangups, &status).await;
        socket.remove().expect("the socket is removed");
    }
}
