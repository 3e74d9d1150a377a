//! Unix: signals, sockets by path, errno in words.

use std::fs::{self, FileType, Metadata};
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::task::Poll;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::UnixSocket;
pub(crate) use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{self, SignalKind};

/// The longest path that fits a socket address, in bytes.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// Connections that the kernel holds ready before they are accepted.
const BACKLOG: u32 = 128;

/// The signals that ask the process to end, held back until [`Signals::listen`].
///
/// PID 1 of a container is not sent a signal that has its default action, but it is sent one that
/// it blocks: nothing is lost before the handlers stand.
#[derive(Debug)]
pub(crate) struct HeldSignals(SigSet);

impl HeldSignals {
    /// To be called first, before there is another thread.
    ///
    /// Signals that mean nothing to this program and would end it are blocked for good.
    pub(crate) fn hold() -> io::Result<Self> {
        let meaningless = [Signal::SIGALRM, Signal::SIGUSR1, Signal::SIGUSR2];
        SigSet::from_iter(meaningless).thread_block()?;
        let mut held = SigSet::from(Signal::SIGTERM);
        if !ignored(Signal::SIGINT) {
            held.add(Signal::SIGINT);
        }
        held.thread_block()?;
        Ok(Self(held))
    }
}

/// The signals that ask the process to end.
#[derive(Debug)]
pub(crate) struct Signals(Vec<unix::Signal>);

impl Signals {
    /// To be called in the runtime.
    pub(crate) fn listen(HeldSignals(held): &HeldSignals) -> io::Result<Self> {
        let handlers = held
            .iter()
            .map(|signal| unix::signal(SignalKind::from_raw(signal as i32)))
            .collect::<io::Result<_>>()?;
        held.thread_unblock()?;
        Ok(Self(handlers))
    }

    /// Completes at the first of them.
    pub(crate) async fn terminated(&mut self) {
        poll_fn(|cx| {
            match self
                .0
                .iter_mut()
                .any(|signal| signal.poll_recv(cx).is_ready())
            {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Whether the signal was ignored when the process was started, as under nohup. Blocking such a
/// signal would bring it back. Without /proc it counts as not ignored.
fn ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

/// Listens at a path that is free, on a socket file of mode 0700 from its first moment on.
///
/// On Linux the file takes the mode of the unbound socket, so that the umask, which is the whole
/// process's, need not be touched.
pub(crate) fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    fchmod(&socket, Mode::S_IRWXU)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

/// What tells a file from another that comes to stand at the same path.
///
/// The number of a socket's inode is not given to another file while the socket listens, even
/// when its path is removed: the listener keeps the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Of the file itself where the path is a symbolic link.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = fs::symlink_metadata(path)?;
        Ok(Self {
            device: file.dev(),
            inode: file.ino(),
        })
    }
}

pub(crate) fn is_socket(file: &Metadata) -> bool {
    file.file_type().is_socket()
}

/// The type of a file as a noun with its article.
pub(crate) fn a_kind_of_file(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a fifo",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_symlink() => "a symbolic link",
        _ => "a device",
    }
}

/// The system's words for an error, without a number.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}
