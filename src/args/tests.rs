// The path is written as on Unix, and Windows has no bytes for arguments.
#[cfg(unix)]
#[path = "../../tests/fuzz/checks/goflag.rs"]
mod check;

use super::*;

fn parse(args: &[&str]) -> Result<Parsed, UsageError> {
    super::parse(["registrar"].iter().chain(args).map(OsString::from))
}

fn config(args: &[&str]) -> Config {
    match parse(args) {
        Ok(Parsed::Config(config)) => *config,
        other => panic!("{args:?}: {other:?}"),
    }
}

fn reason(args: &[&str]) -> String {
    parse(args).expect_err(&args.join(" ")).reason
}

#[test]
fn the_defaults_are_those_of_the_original() {
    let config = config(&[]);
    assert_eq!(config.argv0, "registrar");
    assert_eq!(config.csi_address, "/run/csi/socket");
    assert_eq!(config.kubelet_registration_path, "");
    assert_eq!(config.plugin_registration_path, "/registration");
    assert_eq!(config.timeout, Duration::from_secs(1));
    assert_eq!(config.startup_timeout, Some(Duration::from_secs(300)));
    assert_eq!(config.http_endpoint, Ok(None));
    assert_eq!(config.termination_log_path, PathBuf::from("/dev/termination-log"));
    assert_eq!(config.without_effect, [""; 0]);
    assert!(!config.version && !config.probe && !config.enable_pprof);
    assert!(!config.connection_timeout_given);
    let logging = config.logging.expect("valid");
    assert_eq!((logging.json, logging.verbosity, logging.vmodule), (false, 0, vec![]));
}

/// The forms in which published manifests write the flags.
#[test]
fn accepts_the_argument_lists_in_use() {
    for args in [
        &["--v=5", "--csi-address=/csi/csi.sock", "--kubelet-registration-path=/k/csi.sock"][..],
        &["-v=3", "-v=5", "-csi-address=/csi/csi.sock", "-kubelet-registration-path=/k/csi.sock"],
        &["-csi-address", "/csi/csi.sock", "-kubelet-registration-path", "/k/csi.sock"],
        &[
            "--logtostderr",
            "--csi-address",
            "/csi/csi.sock",
            "--kubelet-registration-path",
            "/k/csi.sock",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            "--driver-requires-attachment=true",
            "--pod-info-mount-version=\"v1\"",
            "--kubelet-registration-path=/k/csi.sock",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            "--kubelet-registration-path=/k/csi.sock",
            "--plugin-registration-path=/registration",
            "--http-endpoint=:9809",
            "--timeout=1m30s",
            "--connection-timeout=15s",
            "--logging-format=json",
            "--mode=node-register",
        ],
        &[
            "--csi-address=/csi/csi.sock",
            "--kubelet-registration-path=/k/csi.sock",
            "--health-port=9809",
        ],
    ] {
        let config = config(args);
        assert_eq!(config.csi_address, "/csi/csi.sock", "{args:?}");
        assert_eq!(config.kubelet_registration_path, "/k/csi.sock", "{args:?}");
        assert!(config.logging.is_ok(), "{args:?}");
    }
    // The program's name as an argument is an operand, after which nothing is read.
    assert_eq!(config(&["csi-node-driver-registrar", "--nope"]).csi_address, "/run/csi/socket");
}

/// A backslash is no escape, whether or not a manifest has doubled it.
#[test]
fn keeps_the_paths_of_windows_manifests_as_they_are() {
    const MOUNTED: &str = "/registration";
    for (address, endpoint, directory) in [
        (
            r"unix:///csi/csi.sock",
            r"C:\var\lib\kubelet\plugins\csi.trident.netapp.io\csi.sock",
            MOUNTED,
        ),
        (r"unix:/csi/csi.sock", r"C:\var\lib\kubelet\plugins\ebs.csi.aws.com\csi.sock", MOUNTED),
        (r"unix://C:\csi\csi.sock", r"C:\kubelet\plugins\plugin.csi\csi.sock", MOUNTED),
        (
            r"unix://C:\\csi\\csi.sock",
            r"C:\\var\\lib\\kubelet\\plugins\\smb.csi.k8s.io\\csi.sock",
            MOUNTED,
        ),
        (
            r"unix://C:\\csi\\csi.sock",
            r"\\var\\lib\\kubelet\\plugins\\csi.vsphere.vmware.com\\csi.sock",
            MOUNTED,
        ),
        (
            r"unix://C:\var\lib\kubelet\plugins\smb.csi.k8s.io\csi.sock",
            r"C:\\var\\lib\\kubelet\\plugins\\smb.csi.k8s.io\\csi.sock",
            r"C:\\var\\lib\\kubelet\\plugins_registry\\",
        ),
        (
            r"unix://C:\var\lib\kubelet\plugins\org.democratic-csi.iscsi\csi.sock",
            "/var/lib/kubelet/plugins/example.csi.io/csi.sock",
            "/var/lib/kubelet/plugins_registry",
        ),
        (
            r"unix://C:\var\lib\kubelet\plugins\disk.csi.azure.com\csi.sock",
            r"C:\var\lib\kubelet\plugins\disk.csi.azure.com\csi.sock",
            r"C:\var\lib\kubelet\plugins_registry\",
        ),
    ] {
        let address_flag = format!("--csi-address={address}");
        let endpoint_flag = format!("--kubelet-registration-path={endpoint}");
        let directory_flag = format!("--plugin-registration-path={directory}");
        let mut args = vec!["--v=2", &address_flag, &endpoint_flag];
        if directory != MOUNTED {
            args.push(&directory_flag);
        }
        let config = config(&args);
        let paths =
            [config.csi_address, config.kubelet_registration_path, config.plugin_registration_path];
        assert_eq!(paths, [address, endpoint, directory]);
    }
}

#[test]
fn the_last_of_repeated_flags_wins_and_vmodule_adds_up() {
    let config = config(&[
        "--timeout=1s",
        "--version",
        "--vmodule=a=1",
        "--timeout=2500ms",
        "--version=false",
        "--vmodule=b=2,c=3",
    ]);
    assert_eq!((config.timeout, config.version), (Duration::from_millis(2500), false));
    let vmodule = config.logging.expect("valid").vmodule;
    assert_eq!(vmodule, [("a", 1), ("b", 2), ("c", 3)].map(|(p, n)| (p.to_owned(), n)));
}

#[test]
fn the_first_error_counts() {
    let timeout = r#"invalid value "bad" for flag -timeout: parse error"#;
    assert_eq!(reason(&["--timeout=bad", "--timeout=1s"]), timeout);
    assert_eq!(reason(&["--timeout=bad", "--help"]), timeout);
    assert_eq!(reason(&["--timeout=bad", "--nope"]), timeout);
    assert_eq!(reason(&["--nope", "--timeout=bad"]), "flag provided but not defined: -nope");
    assert!(matches!(parse(&["--timeout=1s", "--help", "--nope"]), Ok(Parsed::Help(_))));
}

#[test]
fn a_usage_error_is_three_lines() {
    let error = parse(&["--nope"]).expect_err("unknown").to_string();
    let lines: Vec<_> = error.lines().collect();
    assert_eq!(lines[..2], ["flag provided but not defined: -nope", "Usage of registrar:"]);
    assert!(lines.len() == 3 && lines[2].contains("--help"), "{error}");
}

#[test]
fn a_timeout_is_above_zero() {
    for value in ["0", "0s", "-1s", "-1ns"] {
        let want = format!("invalid value {value:?} for flag -timeout: must be greater than zero");
        assert_eq!(reason(&["--timeout", value]), want);
    }
}

#[test]
fn the_startup_timeout_may_be_unlimited() {
    assert_eq!(config(&["--startup-timeout=0"]).startup_timeout, None);
    assert_eq!(config(&["--startup-timeout=1h"]).startup_timeout, Some(Duration::from_secs(3600)));
    let want = r#"invalid value "-1s" for flag -startup-timeout: must not be negative"#;
    assert_eq!(reason(&["--startup-timeout=-1s"]), want);
}

#[test]
fn both_spellings_of_the_probe_are_understood() {
    assert!(config(&["--mode=kubelet-registration-probe"]).probe);
    let probe = config(&["kubelet-registration-probe", "--timeout=1s", "--timeout", "2s"]);
    assert!(probe.probe);
    assert_eq!((probe.timeout, probe.mode.as_str()), (Duration::from_secs(2), ""));
    assert!(matches!(parse(&["kubelet-registration-probe", "--help"]), Ok(Parsed::Help(_))));
    assert!(parse(&["--v=1", "kubelet-registration-probe"]).is_err());
    assert!(!config(&["--mode=Kubelet-Registration-Probe"]).probe);
}

#[test]
fn health_port_is_another_http_endpoint() {
    let endpoint = |args| config(args).http_endpoint;
    assert_eq!(endpoint(&["--http-endpoint=localhost:1"]), Ok(Some("localhost:1".to_owned())));
    assert_eq!(endpoint(&["--health-port=0x10"]), Ok(Some(":16".to_owned())));
    assert_eq!(endpoint(&["--health-port=-1"]), Ok(None));
    assert_eq!(endpoint(&["--health-port=0", "--http-endpoint=:1"]), Ok(Some(":1".to_owned())));
    let conflict = endpoint(&["--health-port=1", "--http-endpoint=:1"]);
    assert_eq!(conflict, Err("Only one of `--health-port` and `--http-endpoint` can be set"));
}

#[test]
fn flags_of_the_past_are_remembered() {
    let given = config(&["--logtostderr=false", "-log_dir", "/nowhere", "--one_output"]);
    assert_eq!(given.without_effect, ["logtostderr", "log_dir", "one_output"]);
    assert!(config(&["--connection-timeout=-1s"]).connection_timeout_given);
    assert!(!config(&["--connection-timeout=0"]).connection_timeout_given);
    assert_eq!(config(&["--automaxprocs="]).without_effect, [""; 0]);
}

#[test]
fn wrong_logging_flags_are_told_in_one_line() {
    let wrong = |args| config(args).logging.expect_err("invalid");
    let unsupported = r#"format: Invalid value: "xml": Unsupported log format"#;
    assert_eq!(wrong(&["--logging-format=xml"]), unsupported);
    let flush = r#"flushFrequency: Invalid value: "-1m30s": Must be greater than zero"#;
    assert_eq!(wrong(&["--log-flush-frequency=-90s"]), flush);
    assert_eq!(
        wrong(&["--logging-format=json", "--vmodule=a=1"]),
        "vmodule: Forbidden: Only supported for text log format"
    );
    let empty = r#"format: Invalid value: "": Unsupported log format"#;
    assert_eq!(wrong(&["--logging-format=", "--vmodule=a=1"]), empty);
    let disabled = "Forbidden: Feature LoggingAlphaOptions is disabled";
    assert_eq!(
        wrong(&[
            "--log-json-info-buffer-size=2Ki",
            "--log-json-split-stream",
            "--log-text-info-buffer-size=1",
            "--log-text-split-stream",
            "--logging-format=xml",
            "--log-flush-frequency=-90s",
        ]),
        format!(
            "[{flush}, {unsupported}, options.text.splitStream: {disabled}, \
             options.text.infoBufferSize: {disabled}, options.json.splitStream: {disabled}, \
             options.json.infoBufferSize: {disabled}]"
        )
    );
}

#[test]
fn help_shows_every_flag_and_its_default() {
    let Ok(Parsed::Help(help)) = parse(&["--help"]) else { panic!("no help") };
    for flag in command().get_arguments() {
        assert!(help.contains(&format!("--{}", flag.get_id())), "{}", flag.get_id());
        let defaults = flag.get_default_values().iter().map(|value| value.to_string_lossy());
        for default in defaults {
            assert!(help.contains(&format!("[default: {default}]")), "{default}");
        }
    }
    assert!(help.contains(PROBE));
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_not_unicode_is_read() {
    use std::os::unix::ffi::OsStringExt;
    let path = OsString::from_vec(b"--csi-address=/\xff".to_vec());
    let parsed = super::parse([OsString::from("registrar"), path]);
    let Ok(Parsed::Config(config)) = parsed else { panic!("{parsed:?}") };
    assert_eq!(config.csi_address, "/\u{fffd}");
}

#[cfg(unix)]
#[test]
fn the_fuzzers_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/goflag");
    for file in std::fs::read_dir(corpus).unwrap() {
        check::check(&std::fs::read(file.unwrap().path()).unwrap());
    }
}
