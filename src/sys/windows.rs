//! Windows: Ctrl events, sockets by path through Winsock, the system's words.

use std::fs::{self, Metadata};
use std::future::pending;
use std::io;
use std::os::windows::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

/// Of the file itself: a socket is a reparse point, and one that cannot be followed.
pub(crate) use fs::symlink_metadata as metadata;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::io::Interest;
pub(crate) use tokio::net::TcpStream as UnixStream;
use tokio::signal::windows::{self, CtrlBreak, CtrlC, CtrlClose, CtrlLogoff, CtrlShutdown};
use tokio::task::spawn_blocking;

/// The longest path that fits a socket address, in bytes.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// What separates the names in a path.
pub(crate) const SEPARATORS: [char; 2] = ['/', '\\'];

/// Here an address of an earlier process is free at once, and this option would let two processes
/// listen at the same one.
pub(crate) const REUSE_ADDRESS: bool = false;

/// Connections that the system holds ready before they are accepted.
const BACKLOG: i32 = 128;

/// Nothing is held back: until [`HeldSignals::listen`] a Ctrl event ends the process, which has
/// made nothing yet.
#[derive(Debug)]
pub(crate) struct HeldSignals;

/// The Ctrl events, by which containers are stopped.
#[derive(Debug)]
pub(crate) struct Terminations(CtrlC, CtrlBreak, CtrlClose, CtrlLogoff, CtrlShutdown);

/// There is no SIGHUP.
#[derive(Debug)]
pub(crate) struct Hangups;

impl HeldSignals {
    /// To be called first.
    pub(crate) fn hold() -> io::Result<Self> {
        Ok(Self)
    }

    /// Leaves the events to their default actions.
    pub(crate) fn release(&self) -> io::Result<()> {
        Ok(())
    }

    /// Handles the events from now on.
    pub(crate) fn listen(&self) -> io::Result<(Terminations, Hangups)> {
        let terminations = Terminations(
            windows::ctrl_c()?,
            windows::ctrl_break()?,
            windows::ctrl_close()?,
            windows::ctrl_logoff()?,
            windows::ctrl_shutdown()?,
        );
        Ok((terminations, Hangups))
    }
}

impl Terminations {
    /// Completes at the first of them.
    pub(crate) async fn next(&mut self) {
        let Self(c, r#break, close, logoff, shutdown) = self;
        tokio::select! {
            _ = c.recv() => {}
            _ = r#break.recv() => {}
            _ = close.recv() => {}
            _ = logoff.recv() => {}
            _ = shutdown.recv() => {}
        }
    }
}

impl Hangups {
    /// Never completes.
    pub(crate) async fn next(&mut self) {
        pending().await
    }
}

/// A listening socket in the guise of a TCP stream, since tokio has no type for it. It is only
/// asked whether a client waits.
#[derive(Debug)]
pub(crate) struct UnixListener(UnixStream);

impl UnixListener {
    /// The next client.
    pub(crate) async fn accept(&self) -> io::Result<(UnixStream, SockAddr)> {
        let socket = SockRef::from(&self.0);
        let (client, address) = self.0.async_io(Interest::READABLE, || socket.accept()).await?;
        Ok((into_async(client)?, address))
    }
}

/// Listens at a path that is free; one that is taken is [`io::ErrorKind::AddrInUse`].
///
/// It is bound in place: that a link to a socket or a renamed one can be dialled is not documented.
/// Who dials between bind and listen is refused, and kubelets try again since 1.24.
pub(crate) fn publish(path: &Path) -> io::Result<(UnixListener, Identity)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    // If it is gone already, an instance that starts at the same moment has made room for its own.
    let identity = Identity::of(path).map_err(|_| io::ErrorKind::AddrInUse)?;
    Ok((UnixListener(into_async(socket)?), identity))
}

/// Connects to the socket at a path.
pub(crate) async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    // Winsock's word for a file that is missing is an unreachable network.
    metadata(path.as_ref())?;
    let address = SockAddr::unix(path)?;
    let connected = spawn_blocking(move || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.connect(&address).map(|()| socket)
    });
    into_async(connected.await??)
}

fn into_async(socket: Socket) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket.into())
}

/// What tells a file from another that comes to stand at the same path: when it was last written,
/// which for a socket is when it was bound. Only two that are bound within one tick of the clock are
/// taken for the same. The time of creation would not do: NTFS gives a file that of its namesake
/// which was removed a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64);

/// The same, for the socket of another process.
pub(crate) type Made = Identity;

impl Identity {
    /// Of the file itself where the path is a symbolic link.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        metadata(path).map(|file| Self(file.last_write_time()))
    }
}

/// `None` where no file is.
pub(crate) fn made(path: &Path) -> Option<Made> {
    Identity::of(path).ok()
}

/// Nothing tells of changes in a directory.
#[derive(Debug)]
pub(crate) enum DirectoryWatch {}

impl DirectoryWatch {
    /// # Errors
    /// Always.
    pub(crate) fn new(_: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Is never called.
    pub(crate) async fn changed(&self) {
        match *self {}
    }

    /// Is never called.
    pub(crate) fn is_of(&self, _: &Path) -> bool {
        match *self {}
    }
}

/// Whether a file can be written to within the time, which nothing tells here.
pub(crate) fn has_room<F>(_: &F, _: Duration) -> bool {
    true
}

/// Whether it may be a socket. One looks like a regular file here, in a mounted directory of
/// Windows Server 2019 to the last bit.
pub(crate) fn is_socket(file: &Metadata) -> bool {
    file.is_file()
}

/// The type of a file as a noun with its article.
pub(crate) fn a_kind_of_file(file: &Metadata) -> &'static str {
    match file {
        _ if file.is_dir() => "a directory",
        _ if file.is_symlink() => "a symbolic link",
        _ => "a regular file",
    }
}

/// The system's words for an error, without a number and a full stop.
pub(crate) fn reason(error: &io::Error) -> String {
    let words = error.to_string();
    let words = words.rsplit_once(" (os error ").map_or(&*words, |(words, _)| words);
    words.trim_end_matches('.').to_owned()
}
