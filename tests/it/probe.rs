use std::fs;
use std::time::{Duration, Instant};

#[cfg(unix)]
use nix::sys::signal::Signal;

use crate::harness::{Answer, BINARY, DRIVER, Driver, ENDPOINT, UnixListener, World, get};

const SPELLINGS: [&str; 3] = [
    "kubelet-registration-probe",
    "--mode=kubelet-registration-probe",
    "-mode=kubelet-registration-probe",
];

/// The exit code and all that was said.
fn probe(world: &World, spelling: &str, flags: &[&str]) -> (i32, String) {
    let registry = format!("--plugin-registration-path={}", world.registry().display());
    let endpoint = format!("--kubelet-registration-path={ENDPOINT}");
    let argv = [&[&**BINARY, spelling, &registry, &endpoint], flags].concat();
    let mut probe = world.run(&argv, |_| {});
    let code = probe.exit_code();
    (code, probe.stdout() + &probe.stderr())
}

#[cfg(unix)]
#[test]
fn tells_in_one_line_why_the_registration_does_not_stand() {
    type Reach = fn(&World);
    let none =
        format!("no registrar in DIR serves {ENDPOINT}; none runs, or it waits for its CSI driver");
    let mute = format!(
        "no registrar in DIR serves {ENDPOINT}, unless it is one of the 1 that do not answer"
    );
    let gone = "cannot read the registry directory DIR: No such file or directory";
    for (reach, reason) in [
        ((|world| fs::remove_dir(world.registry()).unwrap()) as Reach, gone),
        (|_| {}, &none),
        (|world| fs::write(world.socket(), "").unwrap(), &none),
        (|world| drop(UnixListener::bind(world.socket()).unwrap()), &mute),
    ] {
        let world = World::new();
        reach(&world);
        let reason = reason.replace("DIR", world.registry().to_str().unwrap());
        let line = format!("not registered: {reason}\n");
        for spelling in SPELLINGS {
            assert_eq!(probe(&world, spelling, &[]), (1, line.clone()), "{spelling}");
        }
    }
}

/// With 0 it would say "registered".
#[cfg(unix)]
#[test]
fn ends_by_a_signal_at_once_and_not_with_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let world = World::new();
        let silent = UnixListener::bind(world.socket()).unwrap();
        let mut probe = world.start(&["--mode=kubelet-registration-probe", "--timeout=1h"]);
        let _client = silent.accept().unwrap();
        let since = Instant::now();
        probe.signal(signal);
        assert_eq!(probe.exit_code(), -(signal as i32));
        assert!(since.elapsed() < Duration::from_secs(1));
    }
}

#[test]
fn follows_the_registration_from_the_wait_for_the_driver_to_the_kubelets_word() {
    let world = World::new();
    let failed = |reason: &str| (1, format!("not registered: {reason}\n"));
    let registrar = world.start(&["-v=5"]);
    registrar.logs(r#"I "Connecting""#);
    let none = format!(
        "no registrar in {} serves {ENDPOINT}; none runs, or it waits for its CSI driver",
        world.registry().display()
    );
    for spelling in SPELLINGS {
        assert_eq!(probe(&world, spelling, &[]), failed(&none));
    }
    let _driver = world.driver();
    registrar.logs(r#"I "Registration Server started""#);
    for spelling in SPELLINGS {
        let reason = "the kubelet has not called yet";
        assert_eq!(probe(&world, spelling, &[]), failed(reason));
    }
    world.kubelet().get_info().unwrap();
    for spelling in SPELLINGS {
        let reason = "the kubelet has called, no status yet";
        assert_eq!(probe(&world, spelling, &[]), failed(reason));
    }
    world.kubelet().notify(true, "").unwrap();
    for spelling in SPELLINGS {
        assert_eq!(probe(&world, spelling, &[]), (0, String::new()));
        let other = "--kubelet-registration-path=/other/csi.sock";
        let none = none.replace(ENDPOINT, "/other/csi.sock");
        assert_eq!(probe(&world, spelling, &[other]), failed(&none));
    }
}

#[test]
fn is_bounded_by_the_timeout_where_nobody_answers() {
    let world = World::new();
    let _silent = UnixListener::bind(world.registry().join("silent-reg.sock")).unwrap();
    for spelling in SPELLINGS {
        let since = Instant::now();
        let (code, reason) = probe(&world, spelling, &["--timeout=400ms"]);
        assert!(since.elapsed() < Duration::from_millis(1400));
        assert_eq!(code, 1);
        assert!(reason.ends_with(", unless it is one of the 1 that do not answer\n"), "{reason}");
    }
}

#[test]
fn finds_its_registrar_among_others_that_are_dead_silent_foreign_or_no_sockets() {
    let world = World::new();
    let path = |name: String| world.registry().join(name);
    let mut silent = Vec::new();
    for n in 0..20 {
        drop(UnixListener::bind(path(format!("dead{n}-reg.sock"))).unwrap());
        silent.push(UnixListener::bind(path(format!("silent{n}-reg.sock"))).unwrap());
    }
    fs::write(path("file-reg.sock".into()), "").unwrap();
    fs::create_dir(path("directory".into())).unwrap();
    let foreign = path("foreign-reg.sock".into());
    let foreign = Driver::start(&foreign, &[Answer::Name("foreign")]);
    let hanging = Driver::start(&path("hanging-reg.sock".into()), &[Answer::Never]);
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    world.kubelet().register();
    for spelling in SPELLINGS {
        assert_eq!(probe(&world, spelling, &[]), (0, String::new()));
    }
    assert!(!foreign.calls().is_empty() && !hanging.calls().is_empty());
}

#[test]
fn changes_nothing_and_is_not_taken_for_the_kubelet() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let termination_log = world.path("termination-log");
    fs::write(&termination_log, "mine").unwrap();
    let flag = format!("--termination-log-path={}", termination_log.display());
    let made = || fs::symlink_metadata(world.socket()).unwrap().modified().unwrap();
    let (before, log) = (made(), registrar.log());
    for spelling in SPELLINGS {
        assert_eq!(probe(&world, spelling, &[&flag]).0, 1);
    }
    assert_eq!((made(), registrar.log()), (before, log));
    assert_eq!(world.listing(), [format!("{DRIVER}-reg.sock")]);
    assert_eq!(fs::read_to_string(termination_log).unwrap(), "mine");
    assert_eq!(get(port, "/readyz").text(), "the kubelet has not called yet");
    let metrics = get(port, "/metrics");
    let count = "\ncsi_node_driver_registrar_get_info_total 0\n";
    assert!(metrics.text().contains(count), "{}", metrics.text());
}

#[test]
fn needs_the_endpoint_and_takes_the_flags_of_a_registrar() {
    let world = World::new();
    for spelling in SPELLINGS {
        let mut probe = world.run(&[&BINARY, spelling], |_| {});
        assert_eq!(probe.exit_code(), 1);
        let line = r#"E "kubelet-registration-path is a required parameter""#;
        assert_eq!(probe.log(), [line]);
    }
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    world.kubelet().register();
    for spelling in SPELLINGS {
        let flags = ["--csi-address=/nowhere", "--health-port=1", "--http-endpoint=:1", "-v=5"];
        assert_eq!(probe(&world, spelling, &flags).0, 0);
    }
}
