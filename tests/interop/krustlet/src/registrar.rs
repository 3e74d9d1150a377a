use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::driver::Driver;
use crate::krustlet::Krustlet;
use crate::wait::eventually;

/// A process of the registrar, which is killed when dropped. It then adds its story.
pub(crate) struct Registrar<'a> {
    driver: &'a Driver,
    argv: Vec<OsString>,
    process: Child,
    log: PathBuf,
    socket: PathBuf,
    stories: &'a RefCell<Vec<String>>,
}

impl<'a> Registrar<'a> {
    /// Starts it as Krustlet's end-to-end tests do.
    pub(crate) fn start(
        binary: &Path,
        driver: &'a Driver,
        home: &Path,
        plugins: &Path,
        log: PathBuf,
        stories: &'a RefCell<Vec<String>>,
    ) -> anyhow::Result<Self> {
        let argv: Vec<OsString> = vec![
            binary.into(),
            "--logtostderr".into(),
            "--csi-address".into(),
            (&driver.socket).into(),
            "--kubelet-registration-path".into(),
            (&driver.socket).into(),
            "--plugin-registration-path".into(),
            plugins.into(),
        ];
        let output = File::create(&log).context("failed to make a log file")?;
        let process = Command::new(&argv[0])
            .args(&argv[1..])
            .env("HOME", home)
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("failed to start {}", binary.display()))?;
        let socket = plugins.join(format!("{}-reg.sock", driver.name));
        Ok(Self { driver, argv, process, log, socket, stories })
    }

    /// Waits until Krustlet knows the driver and has said so to this process, the given number of
    /// times since its start.
    pub(crate) fn is_registered(
        &mut self,
        krustlet: &Krustlet<'_>,
        times: usize,
    ) -> anyhow::Result<()> {
        let fact = format!("registration {times} of {}", self.driver.name);
        eventually(fact, || {
            self.still_runs()?;
            Ok(krustlet.knows(self.driver) && self.confirmations()? == times)
        })
    }

    /// Waits until its socket stands in the plugins directory.
    pub(crate) fn has_a_socket(&mut self) -> anyhow::Result<()> {
        eventually(format!("there is {}", self.socket.display()), || {
            self.still_runs()?;
            Ok(self.socket_exists())
        })
    }

    pub(crate) fn socket_exists(&self) -> bool {
        fs::symlink_metadata(&self.socket).is_ok_and(|found| found.file_type().is_socket())
    }

    pub(crate) fn delete_socket(&self) -> anyhow::Result<()> {
        fs::remove_file(&self.socket)
            .with_context(|| format!("failed to delete {}", self.socket.display()))
    }

    /// Sends the signal and waits for the end.
    pub(crate) fn end(&mut self, signal: Signal) -> anyhow::Result<ExitStatus> {
        let pid = i32::try_from(self.process.id()).context("no process id")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("failed to send {signal}"))?;
        let mut ended = None;
        eventually(format!("it ends at {signal}"), || {
            ended = self.process.try_wait()?;
            Ok(ended.is_some())
        })?;
        ended.context("no exit status")
    }

    fn still_runs(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the registrar has ended: {status}");
        }
        Ok(())
    }

    /// How often Krustlet has told this process that the driver is registered.
    fn confirmations(&self) -> anyhow::Result<usize> {
        let log = fs::read_to_string(&self.log).context("failed to read the log")?;
        let notices = log.lines().filter(|line| line.contains("NotifyRegistrationStatus"));
        Ok(notices.filter(|line| line.contains("plugin_registered:true")).count())
    }
}

impl Drop for Registrar<'_> {
    fn drop(&mut self) {
        let status = match self.process.try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "still running".to_owned(),
            Err(error) => error.to_string(),
        };
        let _ = self.process.kill();
        let _ = self.process.wait();
        let argv: Vec<_> = self.argv.iter().map(|word| word.to_string_lossy()).collect();
        let log = fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        self.stories.borrow_mut().push(format!("$ {}\n{status}\n{log}", argv.join(" ")));
    }
}

/// Asks the exec probe; an error holds its words.
pub(crate) fn probe(binary: &Path, driver: &Driver, plugins: &Path) -> anyhow::Result<()> {
    let mut process = Command::new(binary)
        .arg("kubelet-registration-probe")
        .arg("--kubelet-registration-path")
        .arg(&driver.socket)
        .arg("--plugin-registration-path")
        .arg(plugins)
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to start {}", binary.display()))?;
    let ended = eventually("the probe ends", || Ok(process.try_wait()?.is_some()));
    let _ = process.kill();
    let output = process.wait_with_output().context("failed to read the probe's words")?;
    ended?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the probe: {}, {words}", output.status);
    Ok(())
}
