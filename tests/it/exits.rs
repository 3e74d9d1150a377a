use std::fs;
use std::os::unix::net::UnixListener;

use nix::sys::signal::Signal;
use tonic::Code;

use crate::harness::{Answer, BINARY, DRIVER, Registrar, World, text};

/// One way to the end. SOCKET stands for the path of the registration socket.
struct Exit {
    /// Beside the paths, and after them.
    flags: &'static [&'static str],
    /// What the driver answers, where there is one.
    driver: Option<Answer>,
    before: fn(&World),
    then: fn(&World, &Registrar),
    code: i32,
    /// The last line of the log.
    last: &'static str,
    /// The line in the termination log, where the end leaves one.
    told: Option<&'static str>,
    /// The names in the registry directory.
    left: &'static [&'static str],
}

const FAILURE: Exit = Exit {
    flags: &[],
    driver: Some(Answer::Name(DRIVER)),
    before: |_| {},
    then: |_, _| {},
    code: 1,
    last: "",
    told: None,
    left: &[],
};

const EXITS: [Exit; 14] = [
    Exit { flags: &["--nope"], code: 2, last: "  BINARY --help lists the flags", ..FAILURE },
    Exit {
        flags: &["--log-flush-frequency=0"],
        last: r#"E "LoggingConfiguration is invalid" err="flushFrequency: Invalid value: \"0s\": Must be greater than zero""#,
        told: Some(
            r#"LoggingConfiguration is invalid: flushFrequency: Invalid value: "0s": Must be greater than zero"#,
        ),
        ..FAILURE
    },
    Exit {
        flags: &["--kubelet-registration-path="],
        last: r#"E "kubelet-registration-path is a required parameter""#,
        told: Some("kubelet-registration-path is a required parameter"),
        ..FAILURE
    },
    Exit {
        flags: &["--health-port=9809", "--http-endpoint=:9809"],
        last: r#"E "Only one of `--health-port` and `--http-endpoint` can be set""#,
        told: Some("Only one of `--health-port` and `--http-endpoint` can be set"),
        ..FAILURE
    },
    Exit {
        flags: &["--csi-address="],
        last: r#"E "Error connecting to CSI driver" err="the address is empty""#,
        told: Some("Error connecting to CSI driver: the address is empty"),
        ..FAILURE
    },
    Exit {
        flags: &["--startup-timeout=50ms"],
        driver: None,
        before: |world| drop(UnixListener::bind(world.driver_socket()).unwrap()),
        last: r#"E "Error connecting to CSI driver" err="Connection refused: the driver does not listen yet, or has left its socket behind (waited 50ms for ADDRESS)""#,
        told: Some(
            "Error connecting to CSI driver: Connection refused: the driver does not listen yet, or has left its socket behind (waited 50ms for ADDRESS)",
        ),
        ..FAILURE
    },
    Exit {
        driver: Some(Answer::Error(Code::Internal, "boom")),
        last: r#"E "Error retreiving CSI driver name" err="rpc error: code = Internal desc = boom""#,
        told: Some("Error retreiving CSI driver name: rpc error: code = Internal desc = boom"),
        ..FAILURE
    },
    Exit {
        driver: Some(Answer::Name("")),
        last: r#"E "Error retreiving CSI driver name" err="driver name is empty""#,
        told: Some("Error retreiving CSI driver name: driver name is empty"),
        ..FAILURE
    },
    Exit {
        driver: Some(Answer::Name("a/b")),
        last: r#"E "The CSI driver's name cannot be registered" err="driver name \"a/b\" contains a slash""#,
        told: Some(
            r#"The CSI driver's name cannot be registered: driver name "a/b" contains a slash"#,
        ),
        ..FAILURE
    },
    Exit {
        before: |world| fs::write(world.socket(), "").unwrap(),
        last: r#"E "Failed to clean up the registration socket" err="file exists in socketPath SOCKET but it's not a socket, it is a regular file""#,
        told: Some(
            "Failed to clean up the registration socket: file exists in socketPath SOCKET but it's not a socket, it is a regular file",
        ),
        left: &["test.csi.example.com-reg.sock"],
        ..FAILURE
    },
    Exit {
        before: |world| fs::remove_dir(world.registry()).unwrap(),
        last: r#"E "Failed to listen on socket" err="listen unix SOCKET: bind: no such file or directory" socketPath="SOCKET""#,
        told: Some(
            "Failed to listen on socket: listen unix SOCKET: bind: no such file or directory",
        ),
        ..FAILURE
    },
    Exit {
        then: |world, _| world.kubelet().notify(false, "why not").unwrap(),
        last: r#"E "Registration process failed with error, restarting registration container" err="why not""#,
        told: Some(
            "Registration process failed with error, restarting registration container: why not",
        ),
        ..FAILURE
    },
    Exit {
        then: |world, _| world.kubelet().notify(false, "two\nlines").unwrap(),
        last: " >",
        told: Some(
            "Registration process failed with error, restarting registration container: two lines",
        ),
        ..FAILURE
    },
    Exit {
        then: |world, registrar| {
            world.kubelet().register();
            registrar.signal(Signal::SIGTERM);
        },
        code: 0,
        last: r#"I "Received NotifyRegistrationStatus call" status="plugin_registered:true""#,
        ..FAILURE
    },
];

#[test]
fn say_why_by_code_log_and_termination_log_and_leave_no_socket() {
    const OLD: &str =
        "what an earlier container left, and this is longer than any line that follows\n";
    for exit in EXITS {
        let world = World::new();
        let _driver = exit.driver.map(|answer| world.driver_that(&[answer]));
        (exit.before)(&world);
        let termination_log = world.path("termination-log");
        fs::write(&termination_log, OLD).unwrap();
        let flag = format!("--termination-log-path={}", termination_log.display());
        let mut registrar = world.start(&[&[&*flag], exit.flags].concat());
        (exit.then)(&world, &registrar);
        assert_eq!(registrar.exit_code(), exit.code, "instead of {}", exit.last);
        let socket = world.socket().display().to_string();
        let address = format!("unix://{}", world.driver_socket().display());
        let fill_in = |text: &str| {
            let text = text.replace("SOCKET", &socket).replace("BINARY", &BINARY);
            text.replace("ADDRESS", &address)
        };
        assert_eq!(registrar.log().pop(), Some(fill_in(exit.last)));
        let told = exit.told.map_or(OLD.into(), |line| fill_in(line) + "\n");
        assert_eq!(text(&termination_log), told);
        assert_eq!(world.listing(), exit.left, "{}", exit.last);
    }
}

#[test]
fn do_not_wait_for_a_silent_client() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    let _silent = world.kubelet();
    world.kubelet().notify(false, "why not").unwrap();
    assert_eq!(registrar.exit_code(), 1);
    assert_eq!(world.listing(), [""; 0]);
}

#[test]
fn make_no_termination_log_and_need_none() {
    let world = World::new();
    let termination_log = world.path("termination-log");
    let flag = format!("--termination-log-path={}", termination_log.display());
    let mut registrar = world.start(&[&flag, "--csi-address="]);
    assert_eq!(registrar.exit_code(), 1);
    assert!(!termination_log.exists());
}
