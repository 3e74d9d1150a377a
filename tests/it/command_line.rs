use crate::harness::{BINARY, ENDPOINT, Registrar, World};

/// Runs the binary with these arguments alone.
fn run(world: &World, arguments: &[&str]) -> Registrar {
    world.run(&[&[&**BINARY], arguments].concat(), |_| {})
}

#[test]
fn names_the_fault_of_a_command_line_in_three_lines() {
    let world = World::new();
    for case in [
        "-nope => flag provided but not defined: -nope",
        "--Timeout=1s => flag provided but not defined: -Timeout",
        "---x => bad flag syntax: ---x",
        "--=x => bad flag syntax: --=x",
        "-timeout => flag needs an argument: -timeout",
        r#"--version=yes => invalid boolean value "yes" for -version: parse error"#,
        r#"--timeout 5 => invalid value "5" for flag -timeout: parse error"#,
        r#"--timeout=5 --timeout=1s => invalid value "5" for flag -timeout: parse error"#,
        r#"--timeout=0 => invalid value "0" for flag -timeout: must be greater than zero"#,
        r#"--timeout=-1s => invalid value "-1s" for flag -timeout: must be greater than zero"#,
        r#"--startup-timeout=-1s => invalid value "-1s" for flag -startup-timeout: must not be negative"#,
        r#"--health-port=9223372036854775808 => invalid value "9223372036854775808" for flag -health-port: value out of range"#,
        r#"-v=-1 => invalid value "-1" for flag -v: strconv.ParseUint: parsing "-1": invalid syntax"#,
        r#"--vmodule=main => invalid value "main" for flag -vmodule: "main" does not have the pattern=N format"#,
    ] {
        let (arguments, reason) = case.split_once(" => ").unwrap();
        let mut registrar = run(&world, &arguments.split(' ').collect::<Vec<_>>());
        assert_eq!(registrar.exit_code(), 2, "{arguments}");
        let argv0 = &**BINARY;
        let lines = format!("{reason}\nUsage of {argv0}:\n  {argv0} --help lists the flags\n");
        assert_eq!(registrar.stderr(), lines);
        assert_eq!(registrar.stdout(), "");
    }
}

#[test]
fn helps_on_stdout() {
    let world = World::new();
    for flag in ["--help", "-help", "-h", "--h", "--help=false"] {
        let mut registrar = run(&world, &["--version", flag]);
        assert_eq!(registrar.exit_code(), 0, "{flag}");
        for flag in ["--csi-address", "--kubelet-registration-path", "--startup-timeout"] {
            assert!(registrar.stdout().contains(flag), "{}", registrar.stdout());
        }
        assert_eq!(registrar.stderr(), "");
    }
}

#[test]
fn prints_its_version_on_stdout() {
    let world = World::new();
    for flag in ["--version", "-version", "--version=T"] {
        let mut registrar = run(&world, &[flag]);
        assert_eq!(registrar.exit_code(), 0);
        let version = registrar.stdout();
        let version = version.strip_prefix(&format!("{} v", *BINARY)).unwrap();
        assert_eq!(version.trim_end().split('.').count(), 3, "{version}");
        assert_eq!(registrar.stderr(), "");
    }
}

#[test]
fn requires_the_registration_path_once_the_other_flags_are_right() {
    let world = World::new();
    let missing = r#"E "kubelet-registration-path is a required parameter""#;
    let invalid = r#"E "LoggingConfiguration is invalid" err="format: Invalid value: \"xml\": Unsupported log format""#;
    for (arguments, line) in [
        (&[][..], missing),
        (&["--kubelet-registration-path="], missing),
        (&["rest", "--kubelet-registration-path=/x"], missing),
        (&["--logging-format=xml"], invalid),
        (&["--logging-format=xml", "--version"], invalid),
    ] {
        let mut registrar = run(&world, arguments);
        assert_eq!(registrar.exit_code(), 1, "{arguments:?}");
        assert_eq!(registrar.log(), [line]);
        assert_eq!(registrar.stdout(), "");
    }
}

#[test]
fn takes_a_flag_in_each_of_gos_spellings() {
    let world = World::new();
    let _driver = world.driver();
    let registry = world.registry().display().to_string();
    for path in [
        &["-plugin-registration-path", &registry][..],
        &["--plugin-registration-path", &registry],
        &[&format!("-plugin-registration-path={registry}")],
        &[&format!("--plugin-registration-path={registry}")],
    ] {
        // the last one counts, and nothing behind the flags
        let flags = [&["--plugin-registration-path=/x"], path, &["--", "--nope"]].concat();
        let _registrar = world.start(&flags);
        assert_eq!(world.kubelet().get_info().unwrap().endpoint, ENDPOINT, "{flags:?}");
    }
}

#[test]
fn names_the_flags_of_the_past_once_and_goes_on() {
    let world = World::new();
    let _driver = world.driver();
    let registrar = world.start(&[
        "--logtostderr",
        "--stderrthreshold=INFO",
        "--stderrthreshold=0",
        "--driver-requires-attachment=true",
        "--pod-info-mount-version",
        "v1",
        "--connection-timeout=10s",
        "--automaxprocs",
    ]);
    world.kubelet().get_info().unwrap();
    let flags = "logtostderr stderrthreshold driver-requires-attachment pod-info-mount-version";
    let line = format!(r#"W "Flags of earlier versions have no effect" flags="{flags}""#);
    let deprecated = r#"I "--connection-timeout is deprecated and will have no effect""#;
    let log = registrar.log();
    assert_eq!(log.iter().filter(|other| **other == line).count(), 1, "{log:?}");
    assert_eq!(log.iter().filter(|line| *line == deprecated).count(), 1, "{log:?}");
}
