//! What a registrar costs, beside another one: `cargo bench --bench footprint`. Linux only.
//!
//! `REGISTRAR_BIN` names another build to be measured, `REGISTRAR_REFERENCE` the binary to
//! compare with, `ROUNDS` how often all is repeated (10), `IDLE` the seconds of idle life (60).
//! In each round the two take turns, so that both see the same moods of the machine; the table
//! shows the medians of the rounds. What takes milliseconds is the best of several in its round,
//! as other load only ever adds to it. The times are this machine's, the ratios travel.

#![allow(clippy::unwrap_used, reason = "a figure that cannot be taken ends the run")]

// Requests, and how long their answers take.
mod client;
#[allow(dead_code, unused_imports, reason = "the table needs a part of it")]
#[path = "../../tests/it/harness.rs"]
mod harness;
// What the kernel knows of a process.
mod process;
// The samples of all figures, and how they are shown.
mod table;
// Figures that other programs take, where they are installed.
mod tools;

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use nix::sys::signal::Signal;

use harness::{BINARY, Registrar, World};
use process::Process;
use table::Table;

/// How often a round repeats what takes milliseconds, for the best of them.
const REPEAT: usize = 20;
/// GetInfo calls of a round: their answers fit the window of one HTTP/2 connection.
const CALLS: usize = 500;
const KEEP_ALIVE: usize = 18_000;
const FRESH: usize = 2_000;
/// After this a process is taken to be at rest.
const SETTLE: Duration = Duration::from_millis(500);
/// Processes of each binary that idle side by side.
const IDLERS: usize = 5;

/// A binary, and its column in the table.
struct Subject {
    binary: String,
    column: usize,
}

fn main() {
    let reference = env::var("REGISTRAR_REFERENCE").ok();
    let binaries = [Some(BINARY.clone()), reference].into_iter().flatten();
    let subjects: Vec<_> =
        binaries.enumerate().map(|(column, binary)| Subject { binary, column }).collect();
    let mut table = Table::new(subjects.len());

    let measures = [starts, commands, service];
    for _ in 0..number("ROUNDS", 10) {
        for measure in measures {
            for subject in &subjects {
                measure(subject, &mut table);
            }
        }
    }
    idle(&subjects, &mut table);
    for subject in &subjects {
        constants(subject, &mut table);
    }
    table.print();
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

impl Subject {
    fn argv(&self, world: &World, flags: &[String]) -> Vec<String> {
        let paths = [
            format!("--csi-address={}", world.driver_socket().display()),
            format!("--kubelet-registration-path={}", harness::ENDPOINT),
            format!("--plugin-registration-path={}", world.registry().display()),
        ];
        let binary = [self.binary.clone()];
        binary.iter().chain(&paths).chain(flags).cloned().collect()
    }

    /// Starts a registrar under the wrapper and waits for its socket; says how long that took.
    fn start(&self, world: &World, wrapper: &[&str], flags: &[String]) -> (Registrar, Duration) {
        let argv = self.argv(world, flags);
        let argv: Vec<_> = wrapper.iter().copied().chain(argv.iter().map(String::as_str)).collect();
        let mut since = Instant::now();
        let registrar = world.run(&argv, |command| {
            command.env_remove(tools::DIAGNOSTIC);
            since = Instant::now();
        });
        while UnixStream::connect(world.socket()).is_err() {
            assert!(since.elapsed() < *harness::PATIENCE, "{argv:?} offers no socket");
            thread::sleep(Duration::from_micros(50));
        }
        (registrar, since.elapsed())
    }

    /// As [`Self::start`], with an HTTP endpoint, whose port comes with the registrar.
    fn start_with_http(&self, world: &World) -> (Registrar, u16) {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let endpoint = format!("--http-endpoint=127.0.0.1:{port}");
        (self.start(world, &[], &[endpoint]).0, port)
    }

    fn probe(&self, world: &World) -> Vec<String> {
        self.argv(world, &["--mode=kubelet-registration-probe".into()])
    }
}

fn starts(subject: &Subject, table: &mut Table) {
    let (mut ready, mut ended) = (Duration::MAX, Duration::MAX);
    for _ in 0..REPEAT {
        let world = World::new();
        let _driver = world.driver();
        let (registrar, time) = subject.start(&world, &[], &[]);
        ready = ready.min(time);
        world.kubelet().register();
        let since = Instant::now();
        registrar.signal(Signal::SIGTERM);
        process::wait(registrar.pid());
        ended = ended.min(since.elapsed());
    }
    table.add(subject.column, "exec to socket ready, ms", millis(ready));
    table.add(subject.column, "SIGTERM to exit, ms", millis(ended));
}

/// Those that do a thing and end.
fn commands(subject: &Subject, table: &mut Table) {
    let world = World::new();
    let _driver = world.driver();
    let mut add = |figure: &str, value| table.add(subject.column, figure, value);
    add("`true` as a yardstick, ms", millis(run(&["true".into()]).0));
    let version = [subject.binary.clone(), "--version".into()];
    add("--version, ms", millis(run(&version).0));

    let mut probe = |state| {
        let (time, code) = run(&subject.probe(&world));
        add(&format!("probe, {state}, ms"), millis(time));
        add(&format!("probe, {state}, exit code"), code.into());
    };
    probe("no registrar");
    let (_registrar, _) = subject.start(&world, &[], &[]);
    probe("not registered");
    world.kubelet().register();
    probe("registered");
}

/// The shortest time of several from exec to exit, and the exit code.
fn run(argv: &[String]) -> (Duration, i32) {
    let once = |_| {
        let mut command = tools::command(&argv[0]);
        command.args(&argv[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        let since = Instant::now();
        let status = command.status().unwrap();
        (since.elapsed(), status.code().expect("nobody kills it"))
    };
    (0..REPEAT).map(once).min().expect("it runs")
}

/// A registered process, before and after it has been asked a lot.
fn service(subject: &Subject, table: &mut Table) {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, port) = subject.start_with_http(&world);
    let process = Process(registrar.pid());
    world.kubelet().register();
    thread::sleep(SETTLE);
    let before = holdings(subject, table, &process, "idle");

    let mut kubelet = world.kubelet();
    let mut latency = client::latency(CALLS, || drop(kubelet.get_info().unwrap()));
    percentiles(subject, table, "GetInfo", &mut latency);
    kubelet.leave();

    let cpu = process.cpu();
    let mut latency = client::keep_alive(port, "/healthz", KEEP_ALIVE);
    percentiles(subject, table, "/healthz, keep-alive", &mut latency);
    let cpu = micros(process.cpu() - cpu) / KEEP_ALIVE as f64;
    table.add(subject.column, "/healthz, CPU a request, us", cpu);
    let mut latency = client::fresh(port, "/healthz", FRESH);
    percentiles(subject, table, "/healthz, new connection", &mut latency);

    thread::sleep(SETTLE);
    let after = holdings(subject, table, &process, "after 20,000 /healthz");
    table.add(subject.column, "RSS growth, kB", after - before);
}

/// What the process keeps; returns its RSS in kB.
fn holdings(subject: &Subject, table: &mut Table, process: &Process, when: &str) -> f64 {
    let mut add = |figure, value| {
        table.add(subject.column, &format!("{figure} {when}"), value);
    };
    let rss = process.memory("Rss");
    add("RSS, kB,", rss);
    add("PSS, kB,", process.memory("Pss"));
    add("private dirty, kB,", process.memory("Private_Dirty"));
    add("threads", process.threads() as f64);
    add("descriptors", process.descriptors() as f64);
    rss
}

fn percentiles(subject: &Subject, table: &mut Table, figure: &str, latency: &mut [Duration]) {
    latency.sort_unstable();
    for percent in [50, 99] {
        let value = latency[(latency.len() - 1) * percent / 100];
        let figure = format!("{figure} p{percent}, us");
        table.add(subject.column, &figure, micros(value));
    }
}

/// All processes side by side: what they do when nobody asks.
fn idle(subjects: &[Subject], table: &mut Table) {
    let worlds: Vec<_> = subjects.iter().flat_map(|s| [s; IDLERS]).collect();
    let worlds: Vec<_> = worlds.into_iter().map(|s| (s, World::new())).collect();
    let lives: Vec<_> = worlds
        .iter()
        .map(|(subject, world)| {
            let driver = world.driver();
            let (registrar, _) = subject.start_with_http(world);
            world.kubelet().register();
            (subject, registrar, driver)
        })
        .collect();
    thread::sleep(4 * SETTLE);
    let look = |registrar: &Registrar| {
        let process = Process(registrar.pid());
        (process.switches(), process.cpu())
    };
    let before: Vec<_> = lives.iter().map(|(_, r, _)| look(r)).collect();
    let seconds = number("IDLE", 60);
    thread::sleep(Duration::from_secs(seconds));
    for ((subject, registrar, _), (switches, cpu)) in lives.iter().zip(before) {
        let (switches_now, cpu_now) = look(registrar);
        let figure = format!("voluntary switches in {seconds} s");
        table.add(subject.column, &figure, (switches_now - switches) as f64);
        let figure = format!("CPU in {seconds} s, us");
        table.add(subject.column, &figure, micros(cpu_now - cpu));
    }
}

/// What does not change from round to round.
fn constants(subject: &Subject, table: &mut Table) {
    let mut add = |figure, value| {
        if let Some(value) = value {
            table.add(subject.column, figure, value);
        }
    };
    let world = World::new();
    let _driver = world.driver();
    let size = fs::metadata(&subject.binary).unwrap().len();
    add("file, bytes", Some(size as f64));
    add("file stripped, bytes", tools::stripped_size(&subject.binary, &world));
    let version = [subject.binary.clone(), "--version".into()];
    add("--version, instructions", tools::instructions(&version));
    add("probe, no registrar, instructions", tools::instructions(&subject.probe(&world)));
    let calls = tools::system_calls(&world, |wrapper| subject.start(&world, wrapper, &[]).0);
    add("exec to socket ready, system calls", calls);
    let (_registrar, _) = subject.start(&world, &[], &[]);
    world.kubelet().register();
    add("probe, registered, instructions", tools::instructions(&subject.probe(&world)));
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
