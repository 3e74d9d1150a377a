//! Unix: signals, sockets by path, errno in words.

use std::fs::{self, Metadata, Permissions};
use std::future::{pending, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt as _};
use std::path::{Path, absolute};
use std::process;
use std::task::Poll;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use fs::metadata;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::UnixSocket;
use tokio::net::unix::pipe;
pub(crate) use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{self, SignalKind};

/// The longest path that fits a socket address, in bytes.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// What separates the names in a path.
pub(crate) const SEPARATORS: char = '/';

/// An address may be listened at again although connections of an earlier process linger.
pub(crate) const REUSE_ADDRESS: bool = true;

/// Connections that the kernel holds ready before they are accepted.
const BACKLOG: u32 = 128;

/// How long a socket keeps its hidden name alone. A kubelet looks at each new file, and logs an error
/// if it is gone by then.
const HIDDEN_FOR: Duration = Duration::from_micros(200);

/// SIGTERM, SIGINT and SIGHUP, held back until [`HeldSignals::listen`].
///
/// PID 1 of a container is not sent a signal that has its default action, but it is sent one that
/// it blocks: nothing is lost before the handlers stand.
#[derive(Debug)]
pub(crate) struct HeldSignals(SigSet);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct Terminations(Vec<unix::Signal>);

/// SIGHUP, unless it is ignored.
#[derive(Debug)]
pub(crate) struct Hangups(Option<unix::Signal>);

impl HeldSignals {
    /// To be called first, before there is another thread.
    ///
    /// Signals that mean nothing to this program and would end it are blocked for good.
    pub(crate) fn hold() -> io::Result<Self> {
        let ignored = ignored_signals();
        let wanted = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
        let held = wanted.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        let held = SigSet::from_iter(held);
        held.thread_block()?;
        let meaningless = [Signal::SIGALRM, Signal::SIGUSR1, Signal::SIGUSR2];
        SigSet::from_iter(meaningless).thread_block()?;
        Ok(Self(held))
    }

    /// Leaves the signals to their default actions.
    pub(crate) fn release(&self) -> io::Result<()> {
        Ok(self.0.thread_unblock()?)
    }

    /// Handles the signals from now on. To be called in the runtime.
    pub(crate) fn listen(&self) -> io::Result<(Terminations, Hangups)> {
        let handle = |signal| unix::signal(SignalKind::from_raw(signal as i32));
        let (hangups, ends): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|signal| *signal == Signal::SIGHUP);
        let ends = ends.into_iter().map(handle).collect::<io::Result<_>>()?;
        let hangup = hangups.into_iter().map(handle).next().transpose()?;
        self.0.thread_unblock()?;
        Ok((Terminations(ends), Hangups(hangup)))
    }
}

impl Terminations {
    /// Completes at the first of them.
    pub(crate) async fn next(&mut self) {
        poll_fn(|cx| {
            let mut signals = self.0.iter_mut();
            match signals.any(|signal| signal.poll_recv(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

impl Hangups {
    /// Completes at the next one; never if they are ignored.
    pub(crate) async fn next(&mut self) {
        match &mut self.0 {
            Some(hangup) => hangup.recv().await.unwrap_or_default(),
            None => pending().await,
        }
    }
}

/// The signals that were ignored when the process was started, as under nohup. Blocking one would
/// bring it back. Without /proc there are none.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as u32 - 1)
}

/// Listens at a path that is free; one that is taken is [`io::ErrorKind::AddrInUse`].
///
/// The socket is made under a hidden name, which kubelets pass over, and linked to its own when it
/// listens. Who dials at the event that shows the socket is then never refused, while of one that
/// is bound in place nearly all such dials are; a rename would be another event than that of a new
/// file, and could take another's place. `docs/registration-socket.md` has the figures. The
/// identity, too, is known before anyone can replace the file.
pub(crate) fn publish(path: &Path) -> io::Result<(UnixListener, Identity)> {
    let clock = UNIX_EPOCH.elapsed().unwrap_or_default().subsec_nanos();
    let hidden = path.with_file_name(format!(".{:08x}", clock ^ process::id()));
    let listener = listen_privately(&hidden)?;
    let linked = Identity::of(&hidden).and_then(|identity| {
        thread::sleep(HIDDEN_FOR);
        fs::hard_link(&hidden, path)?;
        Ok((listener, identity))
    });
    // Should someone have removed it already, what was published is no worse.
    let _ = fs::remove_file(&hidden);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Errno::EADDRINUSE.into()),
        // Links may be unknown or forbidden, or take the last inode; in place is better than not at
        // all.
        Err(_) => {
            let listener = listen_privately(path)?;
            Ok((listener, Identity::of(path)?))
        }
        linked => linked,
    }
}

/// Connects to the socket at a path.
pub(crate) async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// The socket file never has a wider mode than 0700: on Linux it takes the mode of the unbound
/// socket, so that the umask, which is the whole process's, need not be touched. What the umask
/// has taken from the owner is given back.
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    fchmod(&socket, Mode::S_IRWXU)?;
    socket.bind(path)?;
    let owners = Permissions::from_mode(Mode::S_IRWXU.bits());
    let listener = fs::set_permissions(path, owners).and_then(|()| socket.listen(BACKLOG));
    if listener.is_err() {
        let _ = fs::remove_file(path);
    }
    listener
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
        fs::symlink_metadata(path).map(Self::from)
    }
}

impl From<Metadata> for Identity {
    fn from(file: Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }
}

/// What tells the socket file of a process from one that another process has made at the same
/// path: the number of an inode may be given again, but not at the same time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Made(Identity, i64, i64);

/// Of the file that a symbolic link leads to; `None` where no file is.
pub(crate) fn made(path: &Path) -> Option<Made> {
    let file = fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (file.ctime(), file.ctime_nsec());
    Some(Made(file.into(), seconds, nanoseconds))
}

/// Tells that something has changed in a directory, or with it.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    directory: Directory,
    events: pipe::Receiver,
}

/// What tells a directory from another at the same path: its inode, the number of which may be given
/// again, and when it was made, where the file system knows. It is not held open: only then is its
/// removal told at once.
#[derive(Debug, PartialEq, Eq)]
struct Directory(Identity, Option<SystemTime>);

impl Directory {
    fn at(path: &Path) -> io::Result<Self> {
        let file = fs::symlink_metadata(path)?;
        let made = file.created().ok();
        Ok(Self(file.into(), made))
    }
}

impl DirectoryWatch {
    /// # Errors
    /// The directory is missing, its path leads over symbolic links, whose changes would not be
    /// told, or the system has no watch to spare.
    pub(crate) fn new(directory: &Path) -> io::Result<Self> {
        if fs::canonicalize(directory)?.components().ne(absolute(directory)?.components()) {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        // Should another directory take its place now, the watch is not of the one that is known.
        let known = Directory::at(directory)?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        inotify.add_watch(directory, changes | AddWatchFlags::IN_ONLYDIR)?;
        // It is gone from its path, too, when a directory above it is moved.
        for above in absolute(directory)?.ancestors().skip(1) {
            let _ = inotify.add_watch(above, AddWatchFlags::IN_MOVE_SELF);
        }
        // It is read like a pipe.
        let events = inotify.as_fd().try_clone_to_owned()?;
        Ok(Self { directory: known, events: pipe::Receiver::from_owned_fd_unchecked(events)? })
    }

    /// Completes at the next change. What changed is not told: look.
    pub(crate) async fn changed(&self) {
        // At least one event with the longest name.
        let mut events = [0; 1024];
        while self.events.readable().await.is_ok() {
            match self.events.try_read(&mut events) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }

    /// Whether it is this directory, not one that has stood there before, that is watched.
    pub(crate) fn is_of(&self, directory: &Path) -> bool {
        Directory::at(directory).is_ok_and(|directory| directory == self.directory)
    }
}

/// Whether a file can be written to within the time, or is broken, which only writing tells.
pub(crate) fn has_room(file: &impl AsFd, limit: Duration) -> bool {
    let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut files, limit) {
            Err(Errno::EINTR) => {}
            ready => return ready != Ok(0),
        }
    }
}

/// Whether it is a socket, which is all that can be seen without dialling it.
pub(crate) fn is_socket(file: &Metadata) -> bool {
    file.file_type().is_socket()
}

/// The type of a file as a noun with its article.
pub(crate) fn a_kind_of_file(file: &Metadata) -> &'static str {
    let kind = file.file_type();
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
