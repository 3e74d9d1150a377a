//! The registration socket as a value: made where the kubelet looks for it, removed only while it
//! is ours.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use tracing::{info, warn};

use crate::status::Publisher;
use crate::sys::{self, Identity, UnixListener};

/// Instances that start at the same moment replace each other's sockets; one that finds the path
/// taken this often finds something that it may not remove.
const ATTEMPTS: usize = 10;

/// A listening registration socket.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
    identity: Identity,
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
    pub(crate) fn bind(
        path: String,
        driver_name: &str,
        status: &Publisher,
    ) -> anyhow::Result<Self> {
        let at = Path::new(&path);
        make_room(at).context("Failed to clean up the registration socket")?;
        info!(socketPath = %path, "Starting Registration Server");
        let mut attempt = 1;
        let listener = loop {
            match sys::listen_privately(at) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempt < ATTEMPTS => {
                    make_room(at).context("Failed to clean up the registration socket")?;
                    attempt += 1;
                }
                Err(source) => {
                    return Err(ListenError { path, source }).context("Failed to listen on socket");
                }
                Ok(listener) => break listener,
            }
        };
        let identity = Identity::of(at).with_context(|| format!("stat {path}"))?;
        info!(socketPath = %path, "Registration Server started");
        status.send_modify(|status| status.bound(driver_name, &path));
        Ok(Self {
            identity,
            listener,
            path: path.into(),
        })
    }

    /// What the kubelet connects to.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Removes the file from the registry directory unless another one has taken its place.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        match Identity::of(&self.path) {
            Ok(identity) if identity == self.identity => fs::remove_file(&self.path)
                .map_err(|error| describe("remove", &self.path, &error))
                .context("Failed to remove socket with error"),
            _ => Ok(()),
        }
    }
}

/// Removes a socket that stands at the path; refuses to remove anything else.
fn make_room(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let file = match fs::metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(describe("stat", path, &error))
                .with_context(|| format!("failed to stat the socket {shown} with error"));
        }
    };
    if !sys::is_socket(&file) {
        let kind = sys::a_kind_of_file(file.file_type());
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
