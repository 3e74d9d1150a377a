use std::fs;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// A process by its number.
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// A line of `smaps_rollup`, in kB.
    pub(crate) fn memory(&self, key: &str) -> f64 {
        let text = self.read("smaps_rollup");
        let value = field(&text, key).and_then(|value| value.strip_suffix(" kB"));
        value.unwrap().parse().unwrap()
    }

    pub(crate) fn threads(&self) -> usize {
        self.entries("task").len()
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.entries("fd").len()
    }

    /// How often its present threads went to sleep.
    pub(crate) fn switches(&self) -> u64 {
        self.sum_of_threads("status", |status| {
            let count = field(status, "voluntary_ctxt_switches");
            count.unwrap().parse().unwrap()
        })
    }

    /// What its present threads have used, finer than the clock's ticks.
    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.sum_of_threads("schedstat", |schedstat| {
            let nanoseconds = schedstat.split(' ').next();
            nanoseconds.unwrap().parse().unwrap()
        }))
    }

    fn sum_of_threads(&self, file: &str, value: impl Fn(&str) -> u64) -> u64 {
        let threads = self.entries("task").into_iter();
        threads.map(|thread| value(&self.read(&format!("task/{thread}/{file}")))).sum()
    }

    fn entries(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{}/{directory}", self.0)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).unwrap()
    }
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(k, _)| *k == key).map(|(_, value)| value.trim())
}

/// Blocks until the child has ended, without taking its status from the one who started it.
pub(crate) fn wait(child: u32) {
    let child = Id::Pid(Pid::from_raw(child.try_into().unwrap()));
    waitid(child, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
}
