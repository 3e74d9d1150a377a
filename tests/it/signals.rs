use std::fs;
use std::io::Write as _;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use crate::harness::{Answer, DRIVER, Driver, PATIENCE, Registrar, World, eventually};

const ENDING: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// A state in which a process is asked to end: the registrar, and what else must live on.
type State = (Registrar, Option<Driver>, Option<UnixStream>);

fn waiting(world: &World, wrapper: &[&str]) -> State {
    let registrar = world.start_under(wrapper, &["-v=5"]);
    registrar.logs(r#"I "Connecting""#);
    (registrar, None, None)
}

fn asking(world: &World, wrapper: &[&str]) -> State {
    let driver = world.driver_that(&[Answer::Never]);
    let registrar = world.start_under(wrapper, &["--timeout=1h"]);
    eventually("a call", || driver.calls().pop());
    (registrar, Some(driver), None)
}

fn registered(world: &World, wrapper: &[&str]) -> State {
    let driver = world.driver();
    let registrar = world.start_under(wrapper, &[]);
    world.kubelet().register();
    (registrar, Some(driver), None)
}

fn with_a_silent_client(world: &World, wrapper: &[&str]) -> State {
    let (registrar, driver, _) = registered(world, wrapper);
    let mut client = UnixStream::connect(world.socket()).unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\n").unwrap();
    // connections are accepted in turn
    world.kubelet().get_info().unwrap();
    (registrar, driver, Some(client))
}

type Reach = fn(&World, &[&str]) -> State;

const STATES: [(&str, Reach); 4] = [
    ("waiting for the driver", waiting),
    ("asking the driver", asking),
    ("registered", registered),
    ("with a silent client", with_a_silent_client),
];

#[test]
fn end_the_process_at_once_and_leave_nothing_in_every_state() {
    for (state, reach) in STATES {
        for signal in ENDING {
            let world = World::new();
            let (mut registrar, _driver, _client) = reach(&world, &[]);
            let since = Instant::now();
            registrar.signal(signal);
            assert_eq!(registrar.exit_code(), 0, "{signal} while {state}");
            // milliseconds, on a machine that has nothing else to do
            assert!(since.elapsed() < Duration::from_secs(1), "{signal} while {state}");
            assert_eq!(world.listing(), [""; 0], "{signal} while {state}");
        }
    }
}

/// In a container the process is PID 1, which the kernel spares signals without a handler. Skipped
/// where namespaces are not permitted.
#[test]
fn end_it_as_pid_1_as_well() {
    let wrapper = ["unshare", "-pf", "--kill-child"];
    let permitted = Command::new("unshare").args(["-pf", "true"]).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return;
    }
    for (state, reach) in STATES {
        for signal in ENDING {
            let world = World::new();
            let (mut registrar, _driver, _client) = reach(&world, &wrapper);
            let children = format!("/proc/{0}/task/{0}/children", registrar.pid());
            let child = fs::read_to_string(children).unwrap().trim().parse().unwrap();
            kill(Pid::from_raw(child), signal).unwrap();
            assert_eq!(registrar.exit_code(), 0, "{signal} while {state}");
            assert_eq!(world.listing(), [""; 0], "{signal} while {state}");
        }
    }
}

#[test]
fn count_from_before_the_first_log_line() {
    for signal in ENDING {
        let world = World::new();
        let zone = world.path("zone");
        mkfifo(&zone, Mode::S_IRWXU).unwrap();
        // the first line now waits for a writer
        let mut registrar = world.start_as(&[], &[], |command| {
            command.env("TZ", format!(":{}", zone.display()));
        });
        eventually("the signal held back", || has(&registrar, "SigBlk", signal).then_some(()));
        registrar.signal(signal);
        assert_eq!(registrar.stderr(), "");
        fs::write(zone, "").unwrap();
        assert_eq!(registrar.exit_code(), 0, "{signal}");
    }
}

/// The look-up of a host goes on in the system's resolver, which nothing can interrupt. Skipped
/// where a name server that keeps silent cannot be put in the place of the host's.
#[test]
fn do_not_wait_for_a_name_server() {
    let world = World::new();
    let Ok(server) = UdpSocket::bind("127.0.0.77:53") else {
        return;
    };
    let configuration = world.path("resolv.conf");
    fs::write(&configuration, "nameserver 127.0.0.77\noptions timeout:5\n").unwrap();
    let script =
        format!(r#"mount --bind {} /etc/resolv.conf && exec "$0" "$@""#, configuration.display());
    let wrapper = ["unshare", "-m", "sh", "-c", &script];
    let argv = [&wrapper[..4], &[&script, "true"]].concat();
    let permitted = Command::new(argv[0]).args(&argv[1..]).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return;
    }
    let mut registrar = world.start_under(&wrapper, &["--csi-address=dns:///driver.example:1"]);
    server.set_read_timeout(Some(*PATIENCE)).unwrap();
    server.recv(&mut [0; 512]).expect("a query");
    let since = Instant::now();
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert!(since.elapsed() < Duration::from_secs(1));
}

fn has(registrar: &Registrar, mask: &str, signal: Signal) -> bool {
    let mask = u64::from_str_radix(&registrar.status(mask), 16).unwrap();
    mask >> (signal as u32 - 1) & 1 == 1
}

#[test]
fn that_were_ignored_at_the_start_stay_ignored() {
    let world = World::new();
    let _driver = world.driver();
    let wrapper = ["sh", "-c", r#"trap "" INT; exec "$0" "$@""#];
    let mut registrar = world.start_under(&wrapper, &[]);
    world.kubelet().register();
    assert!(has(&registrar, "SigIgn", Signal::SIGINT));
    registrar.signal(Signal::SIGINT);
    assert_eq!(world.kubelet().register().name, DRIVER);
    assert!(registrar.is_running());
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
}

#[test]
fn of_other_meaning_are_survived() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    world.kubelet().register();
    for signal in [
        Signal::SIGPIPE,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGALRM,
        Signal::SIGCHLD,
        Signal::SIGURG,
        Signal::SIGWINCH,
    ] {
        registrar.signal(signal);
        assert_eq!(world.kubelet().register().name, DRIVER, "{signal}");
        assert!(registrar.is_running(), "{signal}");
    }
}

#[test]
fn that_cannot_be_handled_leave_a_socket_which_the_next_process_replaces() {
    let world = World::new();
    let _driver = world.driver();
    let mut killed = world.start(&[]);
    world.kubelet().register();
    killed.signal(Signal::SIGKILL);
    assert_eq!(killed.exit_code(), -9);
    assert!(world.socket().exists());
    let mut next = world.start(&[]);
    next.logs(r#"I "Registration Server started""#);
    assert_eq!(world.kubelet().register().name, DRIVER);
    next.signal(Signal::SIGTERM);
    assert_eq!(next.exit_code(), 0);
    assert_eq!(world.listing(), [""; 0]);
}
