use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use kubelet::plugin_watcher::PluginRegistry;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::driver::Driver;
use crate::wait::eventually;

/// Krustlet's plugin watcher, until it is stopped or dropped.
pub(crate) struct Krustlet<'a> {
    runtime: &'a Handle,
    registry: Arc<PluginRegistry>,
    watcher: JoinHandle<anyhow::Result<()>>,
    plugins: PathBuf,
}

impl<'a> Krustlet<'a> {
    /// Returns once it has walked the directory and watches it: a socket that is made between the
    /// two is lost to it.
    pub(crate) fn start(runtime: &'a Handle, plugins: &Path) -> anyhow::Result<Self> {
        let registry = Arc::new(PluginRegistry::new(plugins));
        let run = Arc::clone(&registry);
        let watcher = runtime.spawn(async move { run.run().await });
        let krustlet = Self { runtime, registry, watcher, plugins: plugins.to_owned() };
        eventually("Krustlet watches the plugins directory", || {
            ensure!(!krustlet.watcher.is_finished(), "Krustlet's watcher has ended");
            is_watched(&krustlet.plugins)
        })?;
        Ok(krustlet)
    }

    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.watcher.abort();
        eventually("Krustlet has stopped", || Ok(!is_watched(&self.plugins)?))
    }

    /// Whether it would mount this driver's volumes, and by its own socket.
    pub(crate) fn knows(&self, driver: &Driver) -> bool {
        let endpoint = self.runtime.block_on(self.registry.get_endpoint(&driver.name));
        endpoint.as_deref() == Some(&driver.socket)
    }

    pub(crate) fn does_not_know(&self, driver: &Driver) -> bool {
        self.runtime.block_on(self.registry.get_endpoint(&driver.name)).is_none()
    }
}

impl Drop for Krustlet<'_> {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// Whether this process has an inotify watch on the directory, by proc_pid_fdinfo(5).
fn is_watched(directory: &Path) -> anyhow::Result<bool> {
    let inode = match fs::metadata(directory) {
        Ok(found) => found.ino(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).context("failed to look at the plugins directory"),
    };
    let watch = format!(" ino:{inode:x} ");
    let descriptors = fs::read_dir("/proc/self/fdinfo").context("failed to read fdinfo")?;
    Ok(descriptors
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
        .flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>())
        .any(|line| line.starts_with("inotify ") && line.contains(&watch)))
}
