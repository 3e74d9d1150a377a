//! The registration socket as a value: made where the kubelet looks for it, made again when it is
//! lost, and removed only while it is ours.
//!
//! The path is watched, not polled: a change in the directory, or at most one timer, leads to a
//! look at what stands there, and only the outcome of such a look changes anything.

use std::fmt;
use std::fs;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::status::{Place, Publisher};
use crate::sys::{self, DirectoryWatch, Identity, UnixListener, UnixStream};

/// Instances that start at the same moment replace each other's sockets; one that finds the path
/// taken this often finds something that it may not remove.
const ATTEMPTS: usize = 10;
/// How long a path stays empty before it counts as lost: who replaces a socket removes it first.
const SETTLE: Duration = Duration::from_millis(250);
/// The time between looks where nothing tells of changes, and between attempts to bind.
const SLOW: Duration = Duration::from_secs(1);

/// A listening registration socket.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
    identity: Identity,
    /// Missing where the directory is, or cannot be watched.
    watch: Option<DirectoryWatch>,
    /// When to look at the path without being told.
    look_at: Option<Instant>,
    /// It has been said that the socket cannot be made again.
    said: bool,
    status: Publisher,
}

/// The path of the registration socket, by the kubelet's convention `<driver name>-reg.sock`.
///
/// # Errors
/// The path does not fit a socket address.
pub(crate) fn path(directory: &str, driver_name: &str) -> anyhow::Result<String> {
    let path = format!("{directory}/{driver_name}-reg.sock");
    ensure!(
        path.len() <= sys::SOCKET_PATH_MAX,
        "driver name {driver_name} makes a socket path of {} bytes, {path}, and {} is the limit",
        path.len(),
        sys::SOCKET_PATH_MAX
    );
    Ok(path)
}

/// Warns of paths that the kubelet cannot dial: in its view, which need not be ours, they do not
/// fit a socket address. Its registry directory is a neighbour of the `plugins` directory in which
/// the driver's socket lies by convention.
pub(crate) fn check_kubelets_view(endpoint: &str, driver_name: &str) {
    let root = endpoint.split_once("/plugins/").map(|(root, _)| root);
    let socket = root.map(|root| format!("{root}/plugins_registry/{driver_name}-reg.sock"));
    for path in [Some(endpoint), socket.as_deref()].into_iter().flatten() {
        if path.len() > sys::SOCKET_PATH_MAX {
            let (length, limit) = (path.len(), sys::SOCKET_PATH_MAX);
            warn!(path = %path, length, limit, "The kubelet cannot dial a socket path that is so long");
        }
    }
}

impl Socket {
    /// Listens at the path. A socket that stands there already, dead or alive, is replaced; it is
    /// an earlier instance's. A file of any other type is an error.
    pub(crate) fn bind(path: String, status: &Publisher) -> anyhow::Result<Self> {
        let at = PathBuf::from(&path);
        make_room(&at).context("Failed to clean up the registration socket")?;
        info!(socketPath = %path, "Starting Registration Server");
        let mut attempt = 1;
        let (listener, identity) = loop {
            match sys::publish(&at) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < ATTEMPTS => {
                    make_room(&at).context("Failed to clean up the registration socket")?;
                    attempt += 1;
                }
                Err(source) => {
                    return Err(ListenError { path, source }).context("Failed to listen on socket");
                }
                Ok(published) => break published,
            }
        };
        info!(socketPath = %path, "Registration Server started");
        status.send_modify(|status| status.bound());
        Ok(Self {
            path: at,
            listener,
            identity,
            watch: None,
            look_at: Some(Instant::now()),
            said: false,
            status: status.clone(),
        })
    }

    /// The next client.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Completes when it is time to [`look`](Self::look).
    pub(crate) async fn disturbed(&self) {
        let changed = async {
            match &self.watch {
                Some(watch) => watch.changed().await,
                None => pending().await,
            }
        };
        let due = async {
            match self.look_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = due => {}
        }
    }

    /// Looks at what stands at the path and makes the socket again if nothing does.
    pub(crate) fn look(&mut self) {
        // First the watch, so that no change falls between it and the look.
        let directory = directory(&self.path);
        if self.watch.as_ref().is_none_or(|watch| !watch.is_of(directory)) {
            self.watch = DirectoryWatch::new(directory).ok();
        }
        let now = Instant::now();
        let due = self.look_at.take_if(|at| *at <= now).is_some();
        let before = self.status.borrow().place;
        let place = self.place();
        self.status.send_if_modified(|status| status.stands(place));
        let path = self.path.display();
        match place {
            Place::Empty if before == Place::Empty && due => self.bind_again(),
            _ if place == before => {}
            // Anew each time: a look that is still due may be about an earlier loss.
            Place::Empty => self.look_at = Some(now + SETTLE),
            Place::Ours => info!(socketPath = %path, "The registration socket is back"),
            Place::Foreign => warn!(
                socketPath = %path,
                "Another process's socket stands in place of the registration socket, waiting for it to go"
            ),
            Place::Taken(kind) => warn!(
                socketPath = %path, file = kind,
                "A file stands in place of the registration socket, waiting for it to go"
            ),
        }
        if self.watch.is_none() {
            self.look_at.get_or_insert(now + SLOW);
        }
    }

    /// Makes the kubelet see a new socket, unless the path is not ours.
    pub(crate) fn offer_again(&mut self) {
        if self.place() != Place::Ours {
            return;
        }
        match fs::remove_file(&self.path) {
            Ok(()) => self.bind_again(),
            Err(error) => {
                let (reason, path) = (sys::reason(&error), self.path.display());
                warn!(err = %reason, socketPath = %path, "The registration socket cannot be removed");
            }
        }
    }

    fn bind_again(&mut self) {
        let path = self.path.display();
        match sys::publish(&self.path) {
            Ok((listener, identity)) => {
                warn!(socketPath = %path, "Listening on a new registration socket");
                (self.listener, self.identity) = (listener, identity);
                self.said = false;
                self.status.send_modify(|status| status.bound());
            }
            Err(error) => {
                // Whoever was faster is seen at the next look.
                if !self.said && error.kind() != io::ErrorKind::AddrInUse {
                    let reason = sys::reason(&error);
                    warn!(err = %reason, socketPath = %path, "The registration socket is gone and cannot be made again yet");
                    self.said = true;
                }
                self.look_at = Some(Instant::now() + SLOW);
            }
        }
    }

    fn place(&self) -> Place {
        if Identity::of(&self.path).is_ok_and(|identity| identity == self.identity) {
            return Place::Ours;
        }
        match sys::metadata(&self.path).or_else(|_| fs::symlink_metadata(&self.path)) {
            Err(_) => Place::Empty,
            Ok(file) if sys::is_socket(&file) => Place::Foreign,
            Ok(file) => Place::Taken(sys::a_kind_of_file(&file)),
        }
    }

    /// Removes the file from the registry directory unless another one has taken its place.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        if self.place() != Place::Ours {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            // A newer instance was just making room for its own.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed
                .map_err(|error| describe("remove", &self.path, &error))
                .context("Failed to remove socket with error"),
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Removes a socket that stands at the path; refuses to remove anything else.
fn make_room(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let file = match sys::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(describe("stat", path, &error))
                .with_context(|| format!("failed to stat the socket {shown} with error"));
        }
    };
    if !sys::is_socket(&file) {
        let kind = sys::a_kind_of_file(&file);
        bail!("file exists in socketPath {shown} but it's not a socket, it is {kind}");
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(describe("remove", path, &error))
                .with_context(|| format!("failed to remove stale socket {shown} with error"))
        }
        _ => Ok(()),
    }
}

/// `operation path: reason`, in the lower case of the original's lines.
fn describe(operation: &str, path: &Path, error: &io::Error) -> anyhow::Error {
    let reason = sys::reason(error).to_lowercase();
    anyhow::anyhow!("{operation} {}: {reason}", path.display())
}

/// The path could not be listened at; its line in the log names the path in a key of its own.
#[derive(Debug)]
pub(crate) struct ListenError {
    /// Of the registration socket.
    pub(crate) path: String,
    source: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = sys::reason(&self.source).to_lowercase();
        write!(f, "listen unix {}: bind: {reason}", self.path)
    }
}

impl std::error::Error for ListenError {}
