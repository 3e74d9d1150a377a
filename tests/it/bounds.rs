use std::fs;
use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{DRIVER, Http, Kubelet, Registrar, World, eventually};

const REFUSED: &str =
    r#"E "Failed to accept a connection to the registration socket" err="Too many open files"#;
/// Connections that are served at a time.
const CONNECTIONS: usize = 128;

fn refusals(registrar: &Registrar) -> usize {
    let log = registrar.log();
    log.iter().filter(|line| line.starts_with(REFUSED)).count()
}

#[test]
fn of_descriptors_are_survived_and_told_of_once_a_second() {
    let world = World::new();
    let _driver = world.driver();
    let script = r#"ulimit -n 24; exec "$0" "$@""#;
    let mut registrar = world.start_under(&["sh", "-c", script], &[]);
    world.kubelet().register();
    let mut early = world.kubelet();
    let held: Vec<_> = (0..40).map(|_| UnixStream::connect(world.socket()).unwrap()).collect();
    registrar.logs(REFUSED);
    let since = Instant::now();
    while refusals(&registrar) < 3 {
        assert_eq!(early.get_info().unwrap().name, DRIVER);
        assert!(since.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(50));
    }
    let seconds = since.elapsed().as_secs_f64();
    assert!(refusals(&registrar) as f64 <= seconds + 2.0, "{seconds}");
    // no descriptor is left for a new socket
    fs::remove_file(world.socket()).unwrap();
    registrar.logs(r#"W "The registration socket is gone and cannot be made again yet" err="Too many open files""#);
    drop(held);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert_eq!(early.get_info().unwrap().name, DRIVER);
    assert_eq!(world.listing(), [format!("{DRIVER}-reg.sock")]);
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}

#[test]
fn of_descriptors_do_not_keep_the_process_from_ending() {
    let world = World::new();
    let _driver = world.driver();
    let script = r#"ulimit -n 24; exec "$0" "$@""#;
    let mut registrar = world.start_under(&["sh", "-c", script], &[]);
    world.kubelet().register();
    let _held: Vec<_> = (0..40).map(|_| UnixStream::connect(world.socket()).unwrap()).collect();
    registrar.logs(REFUSED);
    let since = Instant::now();
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert!(since.elapsed() < Duration::from_secs(1));
    assert_eq!(world.listing(), [""; 0]);
}

/// What a server pings has to be answered, and what is to be written keeps a connection open.
#[test]
fn of_descriptors_do_not_run_out_on_a_server_that_does_not_read() {
    const CHECKS: usize = 5;
    let world = World::new();
    let _driver = world.driver();
    let http = Http::at_a_free_port();
    let registrar = world.start(&[&http.flag(), "--timeout=200ms"]);
    world.kubelet().register();
    let descriptors = || {
        let directory = format!("/proc/{}/fd", registrar.pid());
        fs::read_dir(directory).unwrap().count()
    };
    let before = descriptors();
    let foreign = world.replace_socket(|path| UnixListener::bind(path).unwrap());
    thread::spawn(move || {
        for client in foreign.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                client.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
                while client.write_all(b"\0\0\x08\x06\0\0\0\0\0unheard.").is_ok() {}
            });
        }
    });
    for _ in 0..CHECKS {
        assert_eq!(http.get("/healthz").0, 500);
    }
    eventually("the descriptors closed", || (descriptors() <= before).then_some(()));
}

#[test]
fn of_connections_harm_nobody_and_the_next_is_served_when_one_leaves() {
    let world = World::new();
    let _driver = world.driver();
    let registrar = world.start(&[]);
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| world.kubelet()).collect();
    let descriptors = || {
        let directory = format!("/proc/{}/fd", registrar.pid());
        fs::read_dir(directory).unwrap().count()
    };
    let full = descriptors();
    let waiting: Vec<_> = (0..20).map(|_| UnixStream::connect(world.socket()).unwrap()).collect();
    for client in &mut clients {
        assert_eq!(client.get_info().unwrap().name, DRIVER);
    }
    assert_eq!(descriptors(), full);
    drop(waiting);
    let socket = world.socket();
    thread::scope(|scope| {
        let next = scope.spawn(|| Kubelet::dial(&socket).register());
        assert_eq!(clients[0].get_info().unwrap().name, DRIVER);
        clients.pop().unwrap().leave();
        assert_eq!(next.join().unwrap().name, DRIVER);
    });
    clients.clear();
    eventually("the descriptors closed", || (descriptors() <= full - CONNECTIONS).then_some(()));
}

/// Connections that somebody has forgotten to close.
#[test]
fn of_connections_are_not_held_for_long_by_clients_that_keep_silent() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    world.kubelet().register();
    let _silent: Vec<_> =
        (0..CONNECTIONS + 20).map(|_| UnixStream::connect(world.socket()).unwrap()).collect();
    let since = Instant::now();
    // its patience is 10 s
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert!(since.elapsed() < Duration::from_secs(8));
}
