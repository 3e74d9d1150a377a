//! The process under test.

use std::fs::{self, File};
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
#[cfg(unix)]
use std::sync::Once;
use std::thread;

#[cfg(unix)]
use nix::sys::signal::{Signal, kill};
#[cfg(unix)]
use nix::unistd::Pid;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

use super::{eventually, text};

/// A running registrar. It is killed when the value is dropped; when that happens as its test
/// fails, all that it said is shown.
pub(crate) struct Registrar {
    argv: Vec<String>,
    child: Child,
    output: PathBuf,
    error: PathBuf,
}

impl Registrar {
    pub(super) fn spawn(argv: &[&str], files: &Path, adjust: impl FnOnce(&mut Command)) -> Self {
        #[cfg(unix)]
        hand_down_default_actions();
        let (output, error) = (files.with_extension("out"), files.with_extension("err"));
        let mut command = Command::new(argv[0]);
        command
            .args(&argv[1..])
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(&error).unwrap());
        adjust(&mut command);
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", argv[0]));
        Self { argv: argv.iter().map(ToString::to_string).collect(), child, output, error }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&self) -> String {
        text(&self.output)
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.error)
    }

    /// The text log, each line as severity, message and pairs: `I "Version" version="v1"`.
    /// A line that is not of the log is left as it is.
    pub(crate) fn log(&self) -> Vec<String> {
        let stderr = self.stderr();
        let without_head = |line: &str| match line.split_once("] ") {
            Some((head, rest)) => format!("{} {rest}", &head[..1]),
            None => line.to_owned(),
        };
        stderr.lines().map(without_head).collect()
    }

    /// Waits for a log line that begins so.
    pub(crate) fn logs(&self, start: &str) -> String {
        eventually(start, || self.log().into_iter().find(|line| line.starts_with(start)))
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end: the exit code, or the negative number of the signal.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let status = eventually("exit", || self.child.try_wait().unwrap());
        code(status)
    }

    /// A line of `/proc/PID/status`.
    #[cfg(unix)]
    pub(crate) fn status(&self, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
        lines.find(|(k, _)| *k == key).unwrap().1.to_owned()
    }
}

/// A process inherits what its parent ignores, and a shell's background jobs and nohup ignore signals
/// that are tested here. What the parent handles has its default action in the child, and tokio goes on
/// to handle a signal that nobody waits for.
#[cfg(unix)]
fn hand_down_default_actions() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        for wanted in [Signal::SIGHUP, Signal::SIGINT] {
            if ignored & 1 << (wanted as i32 - 1) != 0 {
                drop(signal(SignalKind::from_raw(wanted as i32)).unwrap());
            }
        }
    });
}

fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    let signal = status.signal().map(|signal| -signal);
    #[cfg(windows)]
    let signal = None;
    status.code().or(signal).expect("a process ends by code or by signal")
}

impl Drop for Registrar {
    #[allow(clippy::print_stderr, reason = "the report of a failed test")]
    fn drop(&mut self) {
        let status = self.child.try_wait().ok().flatten().map(code);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if thread::panicking() {
            let status = status.map_or("still running".into(), |code| format!("exit {code}"));
            eprintln!("--- {}\n{status}, stderr:\n{}", self.argv.join(" "), self.stderr());
        }
    }
}
