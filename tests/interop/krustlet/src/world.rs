use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::driver::Driver;
use crate::krustlet::Krustlet;
use crate::registrar::{self, Registrar};

/// A home directory of its own, and what a scenario starts in it.
pub(crate) struct World<'a> {
    runtime: &'a Handle,
    binary: &'a Path,
    home: TempDir,
    /// Krustlet's default, below `home`.
    plugins: PathBuf,
    started: Cell<usize>,
    /// Of the registrars that have been dropped.
    stories: RefCell<Vec<String>>,
}

impl<'a> World<'a> {
    pub(crate) fn new(runtime: &'a Handle, binary: &'a Path) -> anyhow::Result<Self> {
        let home = TempDir::new()?;
        let plugins = home.path().join(".krustlet/plugins");
        fs::create_dir_all(&plugins)?;
        let (started, stories) = Default::default();
        Ok(Self { runtime, binary, home, plugins, started, stories })
    }

    pub(crate) fn krustlet(&self) -> anyhow::Result<Krustlet<'a>> {
        Krustlet::start(self.runtime, &self.plugins)
    }

    pub(crate) fn driver(&self, name: &str) -> anyhow::Result<Driver> {
        Driver::start(self.runtime, name, self.home.path())
    }

    pub(crate) fn registrar<'b>(&'b self, driver: &'b Driver) -> anyhow::Result<Registrar<'b>> {
        let number = self.started.replace(self.started.get() + 1);
        let log = self.home.path().join(format!("registrar-{number}.log"));
        let home = self.home.path();
        Registrar::start(self.binary, driver, home, &self.plugins, log, &self.stories)
    }

    pub(crate) fn probe(&self, driver: &Driver) -> anyhow::Result<()> {
        registrar::probe(self.binary, driver, &self.plugins)
    }

    /// Argv, exit status and log of each registrar.
    pub(crate) fn stories(&self) -> String {
        self.stories.borrow().join("\n")
    }
}
