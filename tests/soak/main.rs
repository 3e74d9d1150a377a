//! The load of years in minutes, on the release build: `cargo bench --bench soak`. Afterwards the
//! process must hold no more than before; the result goes to stdout and to `docs/soak.md`.

#![allow(clippy::unwrap_used, reason = "a step that cannot be taken ends the soak")]
#![allow(clippy::print_stdout, reason = "it is for people to read")]

#[allow(dead_code, unused_imports, reason = "the soak needs a part of it")]
#[path = "../it/harness.rs"]
mod harness;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use harness::{DRIVER, Registrar, World, eventually};

/// How often each thing is done.
#[derive(Clone, Copy)]
struct Load {
    get_info: usize,
    hangups: usize,
    deletions: usize,
    healthz: usize,
}

const WARM_UP: Load = Load { get_info: 2_000, hangups: 200, deletions: 20, healthz: 2_000 };
/// A tenth of the whole. A deletion takes a quarter of a second, since a path has to stay empty for
/// so long, so most sockets are made anew by SIGHUP, which does the same without the wait.
const ROUND: Load = Load { get_info: 10_000, hangups: 960, deletions: 40, healthz: 10_000 };
const ROUNDS: usize = 10;
/// Calls and checks over one connection.
const PER_CONNECTION: usize = 10;

/// What may be more at the end than after the warm-up: pages that an allocator keeps, nothing else.
const RSS_GROWTH: u64 = 256;

fn main() -> ExitCode {
    let site = Site::new();
    let since = Instant::now();
    site.register();
    let start = site.sample();
    site.bear(WARM_UP);
    let warm = site.sample();
    let mut rows = vec![("start", start), ("after the warm-up", warm)];
    for round in 1..=ROUNDS {
        site.bear(ROUND);
        let sample = site.sample();
        println!("round {round} of {ROUNDS}: {sample:?}");
        match round {
            _ if round == ROUNDS => rows.push(("at the end", sample)),
            _ if round == ROUNDS / 2 => rows.push(("halfway", sample)),
            _ => {}
        }
    }
    let (_, end) = rows[rows.len() - 1];
    let flat = end.rss <= warm.rss + RSS_GROWTH
        && end.descriptors <= warm.descriptors
        && end.watches <= warm.watches;
    let report = report(&rows, flat, since.elapsed());
    println!("\n{report}");
    fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/soak.md"), report).unwrap();
    match flat {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn report(rows: &[(&str, Sample)], flat: bool, time: Duration) -> String {
    let sum = |count: fn(&Load) -> usize| count(&ROUND) * ROUNDS;
    let (hangups, deletions) = (sum(|load| load.hangups), sum(|load| load.deletions));
    let rebinds = hangups + deletions;
    let mut text = format!(
        "# Soak\n\n\
         The last result of `just soak`, written by it. One process of the release build bore, in \
         {} s:\n\n\
         - {} GetInfo, a new connection each {PER_CONNECTION}th\n\
         - {rebinds} re-binds of the registration socket, each registered anew: {hangups} by \
         SIGHUP, {deletions} by deletion, after which the path has to stay empty for 250 ms\n\
         - {} `/healthz`, a new connection each {PER_CONNECTION}th; each is a gRPC call on the \
         registration socket\n\n\
         | | RSS, KiB | descriptors | inotify watches |\n|---|--:|--:|--:|\n",
        time.as_secs(),
        sum(|load| load.get_info),
        sum(|load| load.healthz),
    );
    for (when, it) in rows {
        let Sample { rss, descriptors, watches } = it;
        text += &format!("| {when} | {rss} | {descriptors} | {watches} |\n");
    }
    text + &format!(
        "\nVerdict: **{}**. From the warm-up to the end the RSS may grow by {RSS_GROWTH} KiB, \
         descriptors and watches not at all.\n",
        if flat { "flat" } else { "NOT FLAT" }
    )
}

/// What the process holds while nobody is connected.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// In KiB.
    rss: u64,
    descriptors: usize,
    watches: usize,
}

struct Site {
    world: World,
    _driver: harness::Driver,
    registrar: Registrar,
    endpoint: String,
}

impl Site {
    fn new() -> Self {
        let world = World::new();
        let driver = world.driver();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = free.local_addr().unwrap().to_string();
        drop(free);
        let registrar = world.start(&["--http-endpoint", &endpoint]);
        Self { world, _driver: driver, registrar, endpoint }
    }

    fn register(&self) {
        assert_eq!(self.world.kubelet().register().name, DRIVER);
    }

    fn bear(&self, load: Load) {
        for _ in 0..load.get_info / PER_CONNECTION {
            let mut kubelet = self.world.kubelet();
            for _ in 0..PER_CONNECTION {
                assert_eq!(kubelet.get_info().unwrap().name, DRIVER);
            }
            kubelet.leave();
        }
        for _ in 0..load.hangups {
            self.rebinds(|| self.registrar.signal(Signal::SIGHUP));
        }
        for _ in 0..load.deletions {
            self.rebinds(|| fs::remove_file(self.world.socket()).unwrap());
        }
        for _ in 0..load.healthz / PER_CONNECTION {
            self.is_healthy(PER_CONNECTION);
        }
    }

    /// There is another socket after this, and the kubelet registers by it.
    fn rebinds(&self, by: impl FnOnce()) {
        let inode = || fs::metadata(self.world.socket()).ok().map(|file| file.ino());
        let before = inode();
        by();
        eventually("another socket", || inode().filter(|it| Some(*it) != before));
        self.register();
    }

    fn is_healthy(&self, times: usize) {
        let mut stream = TcpStream::connect(&self.endpoint).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(*harness::PATIENCE)).unwrap();
        for _ in 0..times {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: soak\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nok") {
                let mut buffer = [0; 1024];
                let length = stream.read(&mut buffer).unwrap();
                answer.extend(&buffer[..length]);
                assert!(length > 0, "{}", answer.escape_ascii());
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
    }

    fn sample(&self) -> Sample {
        let process = format!("/proc/{}", self.registrar.pid());
        let count = || fs::read_dir(format!("{process}/fd")).unwrap().count();
        // The last connections are still being closed.
        let counts = (0..100).map(|_| {
            thread::sleep(Duration::from_millis(2));
            count()
        });
        let descriptors = counts.min().unwrap();
        let rss = self.registrar.status("VmRSS");
        let rss = rss.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        let infos = fs::read_dir(format!("{process}/fdinfo")).unwrap();
        let watches = infos.map(|info| {
            let info = harness::text(&info.unwrap().path());
            let lines = info.lines();
            lines.filter(|line| line.starts_with("inotify wd:")).count()
        });
        Sample { rss, descriptors, watches: watches.sum() }
    }
}
