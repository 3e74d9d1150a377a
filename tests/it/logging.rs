use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{ENDPOINT, Registrar, World, eventually};

/// The log of one whole life, from the start over a registration to SIGTERM.
fn life(world: &World, flags: &[&str]) -> (u32, String) {
    let _driver = world.driver();
    let mut registrar = world.start(flags);
    world.kubelet().register();
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert_eq!(registrar.stdout(), "");
    (registrar.pid(), registrar.stderr())
}

/// The first quoted text of each line.
fn messages(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.split('"').nth(1)).collect()
}

/// All messages of a life with their verbosity.
const LINES: [(u32, &str); 13] = [
    (0, "Version"),
    (0, "Running node-driver-registrar"),
    (1, "Attempting to open a gRPC connection"),
    (5, "Connecting"),
    (1, "Calling CSI driver to discover driver name"),
    (5, "GRPC call"),
    (5, "GRPC response"),
    (2, "CSI driver name"),
    (0, "Starting Registration Server"),
    (0, "Registration Server started"),
    (0, "Skipping HTTP server"),
    (4, "Received GetInfo call"),
    (0, "Received NotifyRegistrationStatus call"),
];

#[test]
fn shows_the_lines_of_a_verbosity_and_nothing_of_the_libraries() {
    for v in [0, 1, 2, 3, 4, 5, 9] {
        let (_, log) = life(&World::new(), &[&format!("-v={v}")]);
        let expected = LINES.iter().filter(|(needed, _)| *needed <= v);
        let expected: Vec<_> = expected.map(|(_, message)| *message).collect();
        assert_eq!(messages(&log), expected, "-v={v}");
    }
}

#[test]
fn raises_the_verbosity_by_source_file() {
    let level_0 = LINES.iter().filter(|(v, _)| *v == 0).count();
    let of_driver = 4;
    let of_grpc = 2;
    let of_service = 1;
    for (flags, shown) in [
        (&["--vmodule=driver=5"][..], level_0 + of_driver),
        (&["--vmodule=driver=1"], level_0 + 2),
        (&["--vmodule=grpc=5"], level_0 + of_grpc),
        (&["--vmodule=ser*=4"], level_0 + of_service),
        (&["--vmodule=driver=5,grpc=5,s?rvice=9"], level_0 + of_driver + of_grpc + of_service),
        (&["--vmodule=driver.rs=5"], level_0),
        (&["-v=5", "--vmodule=driver=0"], LINES.len()),
    ] {
        let (_, log) = life(&World::new(), flags);
        assert_eq!(messages(&log).len(), shown, "{flags:?}:\n{log}");
    }
}

#[test]
fn begins_a_text_line_as_klog_does() {
    let (pid, log) = life(&World::new(), &["-v=5"]);
    for line in log.lines() {
        // I1201 12:27:42.288881   19718 main.rs:177] "message"
        let (head, rest) = line.split_once("] ").expect(line);
        let form: String =
            head[..21].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(form, "I0000 00:00:00.000000", "{line}");
        let tail = head[21..].strip_prefix(&format!(" {pid:>7} ")).expect(line);
        let (file, number) = tail.split_once(':').expect(line);
        assert!(file.ends_with(".rs") || file.ends_with(".go"), "{line}");
        assert!(number.bytes().all(|b| b.is_ascii_digit()), "{line}");
        assert!(rest.starts_with('"'), "{line}");
    }
}

#[test]
fn carries_the_pairs_of_the_original() {
    let world = World::new();
    let (_, log) = life(&world, &["-v=5"]);
    let driver = world.driver_socket();
    let socket = world.socket();
    for line in [
        r#"] "Running node-driver-registrar" mode="""#,
        &format!(r#"] "Attempting to open a gRPC connection" csiAddress="{}""#, driver.display()),
        &format!(r#"] "Connecting" address="unix://{}""#, driver.display()),
        r#"] "GRPC call" method="/csi.v1.Identity/GetPluginInfo" request="{}""#,
        r#"] "GRPC response" response="{\"name\":\"test.csi.example.com\",\"vendor_version\":\"v1.2.3\"}" err=null"#,
        r#"] "CSI driver name" csiDriverName="test.csi.example.com""#,
        &format!(r#"] "Starting Registration Server" socketPath="{}""#, socket.display()),
        r#"] "Received GetInfo call" request="""#,
        r#"] "Received NotifyRegistrationStatus call" status="plugin_registered:true""#,
    ] {
        assert!(log.lines().any(|other| other.ends_with(line)), "{line}\n{log}");
    }
}

/// The keys of a flat JSON object, in order.
fn keys(line: &str) -> Vec<&str> {
    let mut keys = Vec::new();
    let mut rest = line;
    while let Some((_, tail)) = rest.split_once('"') {
        let mut escaped = false;
        let end = tail.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (string, tail) = tail.split_at(end.expect("a string ends"));
        rest = &tail[1..];
        if rest.starts_with(':') {
            keys.push(string);
        }
    }
    keys
}

#[test]
fn writes_json_with_a_fixed_order_of_keys() {
    let (_, log) = life(&World::new(), &["-v=5", "--logging-format=json"]);
    for (line, (v, message)) in log.lines().zip(LINES) {
        let pairs: &[&str] = match message {
            "Version" => &["version"],
            "Running node-driver-registrar" => &["mode"],
            "Attempting to open a gRPC connection" => &["csiAddress"],
            "Connecting" => &["address"],
            "GRPC call" => &["method", "request"],
            "GRPC response" => &["response", "err"],
            "CSI driver name" => &["csiDriverName"],
            "Starting Registration Server" | "Registration Server started" => &["socketPath"],
            "Received GetInfo call" => &["request"],
            "Received NotifyRegistrationStatus call" => &["status"],
            _ => &[],
        };
        assert_eq!(keys(line), [&["ts", "caller", "msg", "v"], pairs].concat(), "{line}");
        assert!(line.contains(&format!(r#","msg":"{message}","v":{v}"#)), "{line}");
        assert!(line.starts_with(r#"{"ts":1"#) && line.ends_with('}'), "{line}");
    }
    assert_eq!(log.lines().count(), LINES.len());
}

#[test]
fn writes_an_error_in_json_without_a_verbosity() {
    let world = World::new();
    let flags = ["--logging-format=json", "--csi-address="];
    let mut registrar = world.start(&flags);
    assert_eq!(registrar.exit_code(), 1);
    let log = registrar.stderr();
    let last = log.lines().last().unwrap();
    assert_eq!(keys(last), ["ts", "caller", "msg", "err"]);
    assert!(last.contains(r#""msg":"Error connecting to CSI driver""#), "{last}");
}

#[test]
fn may_have_nowhere_to_go() {
    let closed =
        |world: &World| world.start_under(&["sh", "-c", r#"exec "$0" "$@" 2>&-"#], &["-v=5"]);
    let broken = |world: &World| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        world.start_as(&[], &["-v=5"], |command| {
            command.stderr(Stdio::from(writer));
        })
    };
    for start in [&closed as &dyn Fn(&World) -> Registrar, &broken] {
        let world = World::new();
        let _driver = world.driver();
        let mut registrar = start(&world);
        assert_eq!(world.kubelet().register().endpoint, ENDPOINT);
        registrar.signal(Signal::SIGTERM);
        assert_eq!(registrar.exit_code(), 0);
    }
}

#[test]
fn keeps_nobody_waiting_while_it_is_not_read() {
    let world = World::new();
    let _driver = world.driver();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut registrar = world.start_as(&[], &["-v=5"], |command| {
        command.stderr(Stdio::from(writer));
    });
    let mut kubelet = world.kubelet();
    // more than a pipe holds
    let text = "x".repeat(10_000);
    let since = Instant::now();
    for _ in 0..100 {
        kubelet.notify(true, &text).unwrap();
    }
    assert!(since.elapsed() < Duration::from_secs(2));
    assert_eq!(world.kubelet().register().endpoint, ENDPOINT);
    // once it is read again, it says what is missing
    let mut log = Vec::new();
    let mut piece = [0; 1 << 17];
    let mut lost = || {
        let length = reader.read(&mut piece).unwrap();
        log.extend_from_slice(&piece[..length]);
        let log = String::from_utf8_lossy(&log);
        let line = log.lines().find(|line| line.contains("lines of it are lost"));
        line.map(ToOwned::to_owned)
    };
    let line = eventually("the number of lost lines", || {
        kubelet.get_info().unwrap();
        lost()
    });
    assert!(line.starts_with('W') && line.contains(" lines="), "{line}");
    // nor does the end wait
    for _ in 0..100 {
        kubelet.notify(true, &text).unwrap();
    }
    let since = Instant::now();
    registrar.signal(Signal::SIGTERM);
    assert_eq!(registrar.exit_code(), 0);
    assert!(since.elapsed() < Duration::from_secs(1));
}
