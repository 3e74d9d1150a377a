use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::thread;

use crate::harness::{
    DRIVER, ENDPOINT, Failure, Kubelet, PATIENCE, PluginInfo, UnixStream, World, message,
};

/// What a client says first, with its settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A message of the length, all of it in a field that nobody knows.
fn message_of(length: usize) -> Vec<u8> {
    let mut body = vec![0];
    body.extend(u32::try_from(length).unwrap().to_be_bytes());
    body.extend([0x7a]); // field 15, octets
    let content = u32::try_from(length - 5).unwrap();
    body.extend([0, 7, 14, 21].map(|shift| (content >> shift) as u8 | 0x80));
    *body.last_mut().unwrap() &= 0x7f;
    body.resize(5 + length, b'x');
    body
}

#[test]
fn tells_the_kubelet_what_to_register() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let expected = PluginInfo {
        r#type: "CSIPlugin".into(),
        name: DRIVER.into(),
        endpoint: ENDPOINT.into(),
        supported_versions: vec!["1.0.0".into()],
    };
    assert_eq!(world.kubelet().get_info().unwrap(), expected);
}

#[test]
fn answers_whatever_authority_a_client_claims() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    world.kubelet().register();
    let raw = world.socket().display().to_string();
    let long = "a%2F".repeat(100);
    for authority in [
        None,
        Some(""),
        Some("localhost"),
        Some("localhost:80"),
        Some("[::1]"),
        Some(&raw),
        Some(r"C:\var\lib\kubelet\plugins_registry\test.csi.example.com-reg.sock"),
        Some("C:%5Cvar%5Clib%5Ckubelet%5Cplugins_registry%5Ctest.csi.example.com-reg.sock"),
        Some(&long),
        Some("a b"),
        Some("[::1"),
        Some("%"),
        Some("a:b:c"),
        Some("user@host"),
        Some("größe"),
    ] {
        let mut kubelet = Kubelet::dial_as(&world.socket(), authority);
        for _ in 0..3 {
            assert_eq!(
                kubelet.get_info().map(|info| info.name),
                Ok(DRIVER.into()),
                "{authority:?}"
            );
            assert_eq!(kubelet.notify(true, ""), Ok(()), "{authority:?}");
        }
        kubelet.leave();
    }
    assert!(registrar.is_running());
}

#[test]
fn takes_a_notice_that_comes_first_and_one_with_an_error_text() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    world.kubelet().notify(true, "").unwrap();
    world.kubelet().notify(true, "none \"really\"").unwrap();
    // between two fields Go's library puts one blank or two, build by build
    let log = registrar.log().join("\n").replace("  ", " ");
    for status in ["", r#" error:\"none \\\"really\\\"\""#] {
        let line = r#"I "Received NotifyRegistrationStatus call" status="plugin_registered:true"#;
        assert!(log.contains(&format!("{line}{status}\"")), "{log}");
    }
    assert!(registrar.is_running());
}

#[test]
fn serves_many_clients_at_once() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let socket = world.socket();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut kubelet = Kubelet::dial(&socket);
                for _ in 0..50 {
                    assert_eq!(kubelet.get_info().unwrap().name, DRIVER);
                }
            });
        }
    });
}

#[test]
fn ends_only_the_connection_that_brings_bad_bytes() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    for (fault, bytes) in [
        ("nothing", &b""[..]),
        ("HTTP/1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"),
        ("half a preface", &PREFACE[..10]),
        ("half a frame", &[PREFACE, b"\0\0\x08\x06\0"].concat()),
        ("an index that is not there", &[PREFACE, b"\0\0\x01\x01\x05\0\0\0\x01\xff"].concat()),
        (
            "an endless integer",
            &[PREFACE, b"\0\0\x08\x01\x05\0\0\0\x01\x3f\xff\xff\xff\xff\xff\xff\xff"].concat(),
        ),
        ("a string cut short", &[PREFACE, b"\0\0\x03\x01\x05\0\0\0\x01\x00\x7f\x01"].concat()),
        (
            "a bad Huffman code",
            &[PREFACE, b"\0\0\x06\x01\x05\0\0\0\x01\x41\x84\xff\xff\xff\xff"].concat(),
        ),
        ("a frame too large", &[PREFACE, b"\xff\xff\xff\x01\x05\0\0\0\x01"].concat()),
        (
            "an interrupted block",
            &[PREFACE, b"\0\0\x01\x01\x01\0\0\0\x01\x83\0\0\0\x04\0\0\0\0\0"].concat(),
        ),
        ("data on no stream", &[PREFACE, b"\0\0\0\0\x01\0\0\0\0"].concat()),
    ] {
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        stream.set_read_timeout(Some(*PATIENCE)).unwrap();
        // the server may have closed the connection at the first octets
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let end = stream.read_to_end(&mut Vec::new());
        let timed_out = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "the connection stays open after {fault}");
        assert_eq!(kubelet.get_info().unwrap().name, DRIVER, "{fault}");
    }
    assert!(registrar.is_running());
}

/// As `tests/fuzz/targets/server.rs` does; a refusal ends the process, as it should.
#[test]
fn survives_the_fuzzers_corpus() {
    let world = World::new();
    let _driver = world.driver();
    let mut registrar = world.start(&[]);
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/server");
    for file in fs::read_dir(corpus).unwrap() {
        let file = file.unwrap().path();
        let mut kubelet = world.kubelet();
        let mut stream = UnixStream::connect(world.socket()).unwrap();
        stream.set_read_timeout(Some(*PATIENCE)).unwrap();
        // the server may have closed the connection at the first octets
        let _ = stream.write_all(&fs::read(&file).unwrap());
        let _ = stream.shutdown(Shutdown::Write);
        let end = stream.read_to_end(&mut Vec::new());
        let timed_out = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!timed_out, "the connection stays open after {file:?}");
        let answer = kubelet.get_info();
        let told = r#"I "Received NotifyRegistrationStatus call" status=""#;
        let refuses = |line: &String| line.starts_with(told) && !line.contains("registered:true");
        if registrar.log().iter().any(refuses) {
            assert_eq!(registrar.exit_code(), 1, "{file:?}");
            registrar = world.start(&[]);
        } else {
            assert_eq!(answer.unwrap().name, DRIVER, "{file:?}");
        }
    }
    assert!(registrar.is_running());
}

/// A block of 64 KiB that names one field of 4 KB again and again: 256 MB, could it be read.
#[cfg(unix)]
#[test]
fn is_not_kept_busy_by_header_lists_that_are_small_on_the_wire() {
    let world = World::new();
    let _driver = world.driver();
    let registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    kubelet.get_info().unwrap();
    let value = vec![b'a'; 4000];
    // :authority as a literal that enters the table, then its index there
    let block = [&[0x41, 0x7f, 0xa1, 0x1e], &*value, &[0xbe; 60_000]].concat();
    let pieces: Vec<_> = block.chunks(16_000).collect();
    let mut client = UnixStream::connect(world.socket()).unwrap();
    client.write_all(PREFACE).unwrap();
    let busy = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", registrar.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = fields.split(' ').skip(11).take(2);
        ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = busy();
    for stream in (1_u32..16).step_by(2) {
        for (number, piece) in pieces.iter().enumerate() {
            let kind = if number == 0 { 1 } else { 9 };
            let flags = if number + 1 == pieces.len() { 4 } else { 0 };
            let length = u32::try_from(piece.len()).unwrap().to_be_bytes();
            let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
            client.write_all(&[&head, *piece].concat()).unwrap();
        }
    }
    assert_eq!(kubelet.get_info().unwrap().name, DRIVER);
    // ticks of 10 ms; a debug build's seconds, were each of these fields looked at
    assert!(busy() - before < 200, "{} ticks", busy() - before);
}

#[test]
fn refuses_what_it_does_not_serve_with_the_codes_of_grpc() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    for (path, text) in [
        (
            "/pluginregistration.Registration/Nope",
            "unknown method Nope for service pluginregistration.Registration",
        ),
        ("/no.such.Service/Check", "unknown service no.such.Service"),
        (
            "/pluginregistration.Registration/GetInfo?x",
            "unknown method GetInfo?x for service pluginregistration.Registration",
        ),
        ("/x?y/GetInfo", "unknown service x?y"),
        ("/nope", r#"malformed method name: "/nope""#),
    ] {
        let answer = kubelet.call_path(path, &message_of(10), &[]);
        assert_eq!(answer, Err(Failure::Status(12, text.into())));
    }
    let compressed = [1, 0, 0, 0, 0];
    let broken = [0, 0, 0, 0, 1, 0xff];
    let not_utf8 = [0, 0, 0, 0, 3, 0x12, 1, 0xff];
    let gzip = [("grpc-encoding", "gzip")];
    for (method, body, metadata, code) in [
        ("GetInfo", &compressed[..], &gzip[..], 12),
        ("GetInfo", &broken, &[], 13),
        ("NotifyRegistrationStatus", &not_utf8, &[], 13),
    ] {
        match kubelet.call(method, body, metadata) {
            Err(Failure::Status(given, _)) => assert_eq!(given, code, "{body:?}"),
            answer => panic!("{body:?}: {answer:?}"),
        }
    }
    assert_eq!(kubelet.get_info().unwrap().name, DRIVER);
}

#[test]
fn takes_a_message_of_4_mib_and_refuses_one_that_is_larger() {
    const LIMIT: usize = 4 << 20;
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    assert!(kubelet.call("GetInfo", &message_of(LIMIT), &[]).is_ok());
    match kubelet.call("GetInfo", &message_of(LIMIT + 1), &[]) {
        Err(Failure::Status(8, text)) => assert!(text.contains("larger than max"), "{text}"),
        answer => panic!("{answer:?}"),
    }
    assert_eq!(world.kubelet().get_info().unwrap().name, DRIVER);
}

#[test]
fn accepts_16_kib_of_metadata() {
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[]);
    let mut kubelet = world.kubelet();
    // HTTP/2 counts 32 octets a field beside its name and value
    let other_fields = 600;
    let value = "v".repeat(16_384 - other_fields);
    let answer = kubelet.call("GetInfo", &message(&()), &[("x-large", &value)]);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(kubelet.get_info().unwrap().name, DRIVER);
}
