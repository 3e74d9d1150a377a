use std::fs;
use std::io::{Read as _, Write as _};
use std::time::Duration;

use tonic::Code;

use crate::harness::{Answer, DRIVER, UnixListener, World, eventually};

#[test]
fn waits_for_a_driver_that_comes_late() {
    let world = World::new();
    let mut registrar = world.start(&["-v=5"]);
    registrar.logs(r#"I "Connecting" address="unix://"#);
    assert!(registrar.is_running());
    let _driver = world.driver();
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
}

#[test]
fn waits_on_while_another_file_or_a_dead_socket_stands_in_the_drivers_place() {
    let world = World::new();
    drop(UnixListener::bind(world.driver_socket()).unwrap());
    let registrar = world.start(&["-v=5"]);
    registrar.logs(r#"I "Connecting""#);
    let _driver = world.driver();
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
}

/// The one test that lasts: a wait is reported every 10 s.
#[test]
fn says_why_it_still_waits_and_takes_the_driver_that_comes_then() {
    let world = World::new();
    let silent = UnixListener::bind(world.driver_socket()).unwrap();
    let registrar = world.start(&[]);
    let reason = r#"err="no HTTP/2 answer within 2s""#;
    let address = world.driver_address();
    let lost = format!(r#"E "Lost connection" address="{address}" {reason}"#);
    // one by one, so that no wait is longer than the patience
    for losses in 1..=4 {
        eventually("another loss", || {
            let log = registrar.log();
            (log.iter().filter(|line| **line == lost).count() == losses).then_some(())
        });
    }
    registrar.logs(&format!(r#"I "Still connecting" address="{address}" {reason}"#));
    drop(silent);
    let _driver = world.driver();
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
}

#[cfg(unix)]
#[test]
fn gives_up_when_the_time_is_over_and_says_what_kept_it() {
    let not_made = "No such file or directory: the driver has not made its socket yet, or its directory is not mounted here";
    let dead = "Connection refused: the driver does not listen yet, or has left its socket behind";
    type Put = fn(&World);
    for (put, reason) in [
        ((|_| {}) as Put, not_made.to_owned()),
        (|world| drop(UnixListener::bind(world.driver_socket()).unwrap()), dead.to_owned()),
        (
            |world| fs::write(world.driver_socket(), "").unwrap(),
            "PATH is a regular file, not a socket".to_owned(),
        ),
        (
            |world| fs::create_dir(world.driver_socket()).unwrap(),
            "PATH is a directory, not a socket".to_owned(),
        ),
    ] {
        let world = World::new();
        put(&world);
        let mut registrar = world.start(&["--startup-timeout=200ms"]);
        assert_eq!(registrar.exit_code(), 1);
        let path = world.driver_socket().display().to_string();
        let reason = reason.replace("PATH", &path);
        let reason = format!("{reason} (waited 200ms for unix://{path})");
        let line = format!(r#"E "Error connecting to CSI driver" err="{reason}""#);
        assert_eq!(registrar.log().pop(), Some(line));
    }
}

#[test]
fn bounds_the_calls_by_the_same_time() {
    let world = World::new();
    let driver = world.driver_that(&[Answer::Error(Code::Unavailable, "busy")]);
    let mut registrar = world.start(&["--startup-timeout=200ms"]);
    assert_eq!(registrar.exit_code(), 1);
    let address = world.driver_address();
    let reason = "rpc error: code = Unavailable desc = busy";
    let reason = format!("{reason} (waited 200ms for {address})");
    let line = format!(r#"E "Error retreiving CSI driver name" err="{reason}""#);
    assert_eq!(registrar.log().pop().unwrap(), line);
    assert!(driver.calls().len() > 1);
}

#[test]
fn calls_again_after_an_error_that_may_pass() {
    let world = World::new();
    let errors = [
        (Code::Unavailable, "Unavailable"),
        (Code::Aborted, "Aborted"),
        (Code::ResourceExhausted, "ResourceExhausted"),
        (Code::Cancelled, "Canceled"),
        (Code::DeadlineExceeded, "DeadlineExceeded"),
    ];
    let mut script = errors.map(|(code, _)| Answer::Error(code, "not yet")).to_vec();
    script.extend([Answer::Never, Answer::Name(DRIVER)]);
    let driver = world.driver_that(&script);
    let registrar = world.start(&["--timeout=100ms"]);
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
    let mut reasons: Vec<_> =
        errors.map(|(_, code)| format!("rpc error: code = {code} desc = not yet")).to_vec();
    reasons.push("rpc error: code = DeadlineExceeded desc = context deadline exceeded".into());
    for (reason, attempt) in reasons.iter().zip(1..) {
        registrar.logs(&format!(
            r#"W "Error retrieving CSI driver name, retrying" err="{reason}" attempt={attempt}"#
        ));
    }
    assert_eq!(driver.calls().len(), script.len());
}

#[test]
fn calls_again_after_a_connection_that_broke_amid_the_answer() {
    let world = World::new();
    let dying = UnixListener::bind(world.driver_socket()).unwrap();
    let registrar = world.start(&[]);
    let (mut client, _) = dying.accept().unwrap();
    client.write_all(b"\0\0\0\x04\0\0\0\0\0").unwrap();
    client.read_exact(&mut [0; 24]).unwrap();
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).unwrap();
        let length = u16::from_be_bytes([head[1], head[2]]);
        client.read_exact(&mut vec![0; length.into()]).unwrap();
        if head[3] == 1 {
            break;
        }
    }
    // :status 200 and a content-type, of an answer that does not end
    let headers = b"\0\0\x14\x01\x04\0\0\0\x01\x88\x0f\x10\x10application/grpc";
    client.write_all(headers).unwrap();
    drop((client, dying));
    registrar.logs(
        r#"W "Error retrieving CSI driver name, retrying" err="rpc error: code = Unavailable"#,
    );
    fs::remove_file(world.driver_socket()).unwrap();
    let _driver = world.driver();
    assert_eq!(world.kubelet().register().name, DRIVER);
}

#[test]
fn takes_any_other_error_as_final() {
    for (code, name) in [
        (Code::Unknown, "Unknown"),
        (Code::InvalidArgument, "InvalidArgument"),
        (Code::NotFound, "NotFound"),
        (Code::PermissionDenied, "PermissionDenied"),
        (Code::FailedPrecondition, "FailedPrecondition"),
        (Code::Unimplemented, "Unimplemented"),
        (Code::Internal, "Internal"),
        (Code::Unauthenticated, "Unauthenticated"),
    ] {
        let world = World::new();
        let driver = world.driver_that(&[Answer::Error(code, "boom happened")]);
        let mut registrar = world.start(&[]);
        assert_eq!(registrar.exit_code(), 1);
        let reason = format!("rpc error: code = {name} desc = boom happened");
        let line = format!(r#"E "Error retreiving CSI driver name" err="{reason}""#);
        assert_eq!(registrar.log().pop(), Some(line));
        assert_eq!(driver.calls().len(), 1, "{name}");
    }
}

#[test]
fn refuses_names_that_cannot_be_registered() {
    let too_long: &str = Box::leak("n".repeat(120).into());
    for (name, rule) in [
        ("a/b", r#"driver name \"a/b\" contains a slash"#),
        ("../x", r#"driver name \"../x\" contains a slash"#),
        ("a\0b", r#"driver name \"a\\x00b\" contains a control character"#),
        ("a\nb", r#"driver name \"a\\nb\" contains a control character"#),
        (
            ".hidden",
            r#"driver name \".hidden\" starts with a dot, and the kubelet passes over such sockets"#,
        ),
        (too_long, "driver name nnnnn"),
    ] {
        let world = World::new();
        let _driver = world.driver_that(&[Answer::Name(name)]);
        let mut registrar = world.start(&[]);
        assert_eq!(registrar.exit_code(), 1);
        let line = r#"E "The CSI driver's name cannot be registered" err=""#;
        let last = registrar.log().pop().unwrap();
        assert!(last.starts_with(&format!("{line}{rule}")), "{last}");
        assert_eq!(world.listing(), [""; 0]);
    }
}

#[test]
fn serves_a_name_that_csi_does_not_allow_with_one_warning() {
    let long: &str = Box::leak("n".repeat(64).into());
    let too_long = "CSI driver name is longer than the 63 characters of the CSI specification";
    let form = "CSI driver name is not of the form that the CSI specification demands: letters, digits, '-' and '.', alphanumeric at both ends";
    for (name, warning) in [
        ("org.Example-1.csi", None),
        (&long[1..], None),
        (long, Some(too_long)),
        ("under_score", Some(form)),
        ("-dash", Some(form)),
        ("treiber für café", Some(form)),
    ] {
        let world = World::new();
        let _driver = world.driver_that(&[Answer::Name(name)]);
        let registrar = world.start(&[]);
        registrar.logs(r#"I "Registration Server started""#);
        assert_eq!(world.listing(), [format!("{name}-reg.sock")]);
        let warnings = registrar.log().into_iter().filter(|line| line.starts_with("W "));
        let expected = warning.map(|text| format!(r#"W "{text}" csiDriverName="{name}""#));
        assert_eq!(warnings.collect::<Vec<_>>(), Vec::from_iter(expected));
    }
}

#[test]
fn asks_the_driver_once_with_the_deadline_of_the_flag() {
    for (flag, deadline) in
        [("--timeout=1s", Duration::from_secs(1)), ("--timeout=250ms", Duration::from_millis(250))]
    {
        let world = World::new();
        let driver = world.driver();
        let _registrar = world.start(&[flag]);
        world.kubelet().register();
        let [(path, given)] = &driver.calls()[..] else {
            panic!("{:?}", driver.calls());
        };
        assert_eq!(path, "/csi.v1.Identity/GetPluginInfo");
        let given = given.strip_suffix('u').expect("microseconds").parse().unwrap();
        let given = Duration::from_micros(given);
        // Go sends what is left of it
        assert!(given <= deadline && given > deadline / 2, "{given:?}");
    }
}
