use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[cfg(unix)]
use nix::sys::stat::Mode;
#[cfg(unix)]
use nix::unistd::mkfifo;
use tonic::Code;

use crate::harness::{
    Answer, BINARY, Connection, DRIVER, Driver, PATIENCE, Response, UnixListener, World,
    eventually, free_port, get, is_ipv6_on,
};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const TEXT: &str = "text/plain; charset=utf-8";
const ABSENT: &str = "registration socket does not exist";

/// The code and the body, which is text.
fn said(response: &Response) -> (u16, &str) {
    assert_eq!(response.header("content-type"), Some(TEXT));
    (response.code(), response.text())
}

#[test]
fn listens_where_it_is_told() {
    for (flag, endpoint, at) in [
        ("--http-endpoint=:PORT", ":PORT", &[V4, V6][..]),
        ("--http-endpoint=0.0.0.0:PORT", "0.0.0.0:PORT", &[V4, V6]),
        ("--http-endpoint=[::]:PORT", "[::]:PORT", &[V4, V6]),
        ("--health-port=PORT", ":PORT", &[V4, V6]),
        ("--http-endpoint=127.0.0.1:PORT", "127.0.0.1:PORT", &[V4]),
        ("--http-endpoint=localhost:PORT", "localhost:PORT", &[V4]),
        ("--http-endpoint=[::1]:PORT", "[::1]:PORT", &[V6]),
    ] {
        let at: Vec<_> = at.iter().filter(|ip| ip.is_ipv4() || is_ipv6_on()).collect();
        if at.is_empty() {
            continue;
        }
        let world = World::new();
        let _driver = world.driver();
        let port = free_port();
        let fill_in = |text: &str| text.replace("PORT", &port.to_string());
        let registrar = world.start(&[&fill_in(flag)]);
        world.kubelet();
        let line = format!(r#"I "Starting HTTP server" endpoint="{}""#, fill_in(endpoint));
        registrar.logs(&line);
        for ip in [V4, V6] {
            let address = SocketAddr::new(ip, port);
            if at.contains(&&ip) {
                let mut connection = Connection::open_to(address);
                let response = connection.request("GET", "/healthz");
                assert_eq!(said(&response), (200, "ok"), "{flag} at {ip}");
            } else {
                assert!(TcpStream::connect(address).is_err(), "{flag} at {ip}");
            }
        }
    }
}

/// Skipped where no service of the list has a port that is free and open to all.
#[test]
fn listens_at_a_port_by_its_name() {
    let services = fs::read_to_string("/etc/services").unwrap_or_default();
    let service = services.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| !name.starts_with('#'))?;
        let port: u16 = words.next()?.strip_suffix("/tcp")?.parse().ok()?;
        let free = port > 1024 && TcpListener::bind((V4, port)).is_ok();
        free.then_some((name, port))
    });
    let Some((name, port)) = service else {
        return;
    };
    let world = World::new();
    let _driver = world.driver();
    let _registrar = world.start(&[&format!("--http-endpoint=127.0.0.1:{name}")]);
    world.kubelet();
    assert_eq!(said(&get(port, "/healthz")), (200, "ok"));
}

#[test]
fn is_off_without_an_endpoint() {
    for flags in [&[][..], &["--health-port=0"], &["--health-port=-5"], &["--enable-pprof"]] {
        let world = World::new();
        let _driver = world.driver();
        let registrar = world.start(flags);
        registrar.logs(r#"I "Skipping HTTP server""#);
        let log = registrar.log().join("\n");
        assert!(!log.contains("Starting HTTP server"), "{flags:?}: {log}");
        assert!(!log.contains("profiling"), "{flags:?}: {log}");
    }
}

#[cfg(unix)]
#[test]
fn ends_at_an_address_it_cannot_listen_at_before_the_driver_is_asked() {
    let taken = TcpListener::bind((V4, 0)).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let in_use = format!("{taken}: bind: address already in use");
    for (flag, endpoint, reason) in [
        ("http-endpoint", "9809", ": address 9809: missing port in address"),
        ("http-endpoint", "[::1]", ": address [::1]: missing port in address"),
        ("http-endpoint", "[::1:9809", ": address [::1:9809: missing ']' in address"),
        ("http-endpoint", "::1:9809", ": address ::1:9809: too many colons in address"),
        (
            "http-endpoint",
            "http://127.0.0.1:9809",
            ": address http://127.0.0.1:9809: too many colons in address",
        ),
        ("http-endpoint", "127.0.0.1:70000", ": address 70000: invalid port"),
        ("http-endpoint", "127.0.0.1:-1", ": address -1: invalid port"),
        ("http-endpoint", "127.0.0.1:nosuchport", ": lookup tcp/nosuchport: unknown port"),
        ("http-endpoint", "300.1.1.1:80", ": lookup 300.1.1.1: no such host"),
        (
            "http-endpoint",
            "192.0.2.1:9809",
            " 192.0.2.1:9809: bind: cannot assign requested address",
        ),
        ("http-endpoint", &taken, &format!(" {in_use}")),
        ("health-port", "70000", ": address 70000: invalid port"),
    ] {
        let world = World::new();
        let driver = world.driver();
        let mut registrar = world.start(&[&format!("--{flag}={endpoint}")]);
        assert_eq!(registrar.exit_code(), 1);
        let endpoint = match flag {
            "health-port" => format!(":{endpoint}"),
            _ => endpoint.into(),
        };
        let line = format!(
            r#"E "Failed to listen on the HTTP endpoint {endpoint}" err="listen tcp{reason}""#
        );
        assert_eq!(registrar.log().pop(), Some(line));
        assert_eq!(driver.calls().len(), 0);
        assert_eq!(world.listing(), [""; 0]);
    }
}

#[test]
fn leaves_a_port_to_the_one_that_has_it() {
    let world = World::new();
    let server = TcpListener::bind((V4, 0)).unwrap();
    let taken = server.local_addr().unwrap();
    let mut registrar = world.start(&[&format!("--http-endpoint={taken}")]);
    assert_eq!(registrar.exit_code(), 1);
}

#[test]
fn makes_the_wait_for_the_driver_visible() {
    let world = World::new();
    let (registrar, port) = world.start_with_http(&[]);
    assert_eq!(said(&get(port, "/healthz")), (404, ABSENT));
    let line = r#"E "Health check failed, registration socket does not exist""#;
    registrar.logs(line);
    let waiting =
        format!("waiting for the CSI driver at unix://{}", world.driver_socket().display());
    assert_eq!(said(&get(port, "/readyz")), (503, &*waiting));
    let _driver = world.driver();
    registrar.logs(r#"I "Registration Server started""#);
    assert_eq!(said(&get(port, "/healthz")), (200, "ok"));
}

#[test]
fn answers_healthz_with_ok_while_the_socket_answers() {
    let world = World::new();
    let _driver = world.driver();
    let (registrar, port) = world.start_with_http(&["-v=5"]);
    world.kubelet();
    let response = get(port, "/healthz");
    assert_eq!((&*response.status, response.text()), ("HTTP/1.1 200 OK", "ok"));
    let names: Vec<_> = response.headers.keys().collect();
    assert_eq!(names, ["content-length", "content-type", "date"]);
    assert_eq!(response.header("content-type"), Some(TEXT));
    let date = response.header("date").unwrap();
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    registrar.logs(r#"I "Health check succeeded""#);
    for target in [
        "/healthz?verbose=1",
        "/healthz?",
        "/%68ealthz",
        "http://any.host/healthz",
        "http://any.host:80/%68ealth%7a?x",
    ] {
        assert_eq!(said(&get(port, target)), (200, "ok"), "{target}");
    }
}

#[test]
fn answers_healthz_whatever_the_method_and_head_without_a_body() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let mut connection = Connection::open(port);
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "FOO", "HEAD"] {
        let response = connection.request(method, "/healthz");
        assert_eq!(response.code(), 200, "{method}");
        assert_eq!(response.header("content-length"), Some("2"), "{method}");
        let body = if method == "HEAD" { "" } else { "ok" };
        assert_eq!(response.text(), body, "{method}");
    }
    connection.send(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(said(&connection.read()), (200, "ok"));
}

/// What stands in the socket's place; it lives as long as the test of it.
type Stand = Box<dyn std::any::Any>;

fn server(path: &Path, answer: Answer) -> Stand {
    Box::new(Driver::start(path, &[answer]))
}

#[cfg(unix)]
#[test]
fn answers_healthz_with_what_is_wrong_with_the_socket() {
    type Put = fn(&Path) -> Stand;
    let of_grpc = "error getting info from node-registrar socket: rpc error: code =";
    let dead = "error connecting to node-registrar socket SOCKET: Connection refused";
    for (put, code, reason) in [
        ((|path| server(path, Answer::Name(DRIVER))) as Put, 200, "ok".to_owned()),
        (
            |path| server(path, Answer::Name("other.driver")),
            500,
            "invalid driver name other.driver".into(),
        ),
        (|path| server(path, Answer::Name("")), 500, "invalid driver name ".into()),
        (
            |path| server(path, Answer::Error(Code::PermissionDenied, "go away")),
            500,
            format!("{of_grpc} PermissionDenied desc = go away"),
        ),
        (
            |path| {
                fs::write(path, "").unwrap();
                Box::new(())
            },
            500,
            "SOCKET is a regular file, not a socket".into(),
        ),
        (
            |path| {
                mkfifo(path, Mode::S_IRWXU).unwrap();
                Box::new(())
            },
            500,
            "SOCKET is a fifo, not a socket".into(),
        ),
        (
            |path| {
                drop(UnixListener::bind(path).unwrap());
                Box::new(())
            },
            500,
            dead.into(),
        ),
    ] {
        let world = World::new();
        let _driver = world.driver();
        let (registrar, port) = world.start_with_http(&[]);
        world.kubelet();
        let _stand = world.replace_socket(put);
        let reason = reason.replace("SOCKET", world.socket().to_str().unwrap());
        assert_eq!(said(&get(port, "/healthz")), (code, &*reason));
        if code == 500 {
            registrar.logs(&format!(r#"E "Health check failed" err="{reason}""#));
        }
    }
}

#[cfg(unix)]
#[test]
fn answers_healthz_within_the_timeout_where_the_socket_keeps_silent() {
    type Put = fn(&Path) -> Stand;
    for (put, reason) in [
        (
            (|path| server(path, Answer::Never)) as Put,
            "error getting info from node-registrar socket: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        ),
        (
            |path| Box::new(UnixListener::bind(path).unwrap()),
            "error connecting to node-registrar socket SOCKET: no HTTP/2 answer within 300ms",
        ),
    ] {
        let world = World::new();
        let _driver = world.driver();
        let (_registrar, port) = world.start_with_http(&["--timeout=300ms"]);
        world.kubelet();
        let _stand = world.replace_socket(put);
        let since = Instant::now();
        let response = get(port, "/healthz");
        let took = since.elapsed();
        let reason = reason.replace("SOCKET", world.socket().to_str().unwrap());
        assert_eq!(said(&response), (500, &*reason));
        assert!(took > Duration::from_millis(250) && took < Duration::from_millis(1300));
    }
}

#[cfg(unix)]
#[test]
fn answers_healthz_within_the_timeout_however_many_ask() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&["--timeout=1s"]);
    world.kubelet();
    let _stand = world.replace_socket(|path| server(path, Answer::Never));
    let since = Instant::now();
    let checks: Vec<_> = (0..24).map(|_| thread::spawn(move || get(port, "/healthz"))).collect();
    for check in checks {
        assert_eq!(check.join().unwrap().code(), 500);
    }
    assert!(since.elapsed() < Duration::from_secs(2));
}

#[test]
fn answers_healthz_with_404_while_the_registry_directory_is_gone() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    fs::rename(world.registry(), world.path("away")).unwrap();
    assert_eq!(said(&get(port, "/healthz")), (404, ABSENT));
}

#[test]
fn keeps_a_connection_and_answers_in_order() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let mut connection = Connection::open(port);
    for _ in 0..3 {
        let response = connection.request("GET", "/healthz");
        assert_eq!(response.header("connection"), None);
    }
    connection.send(
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\
          GET /nope HTTP/1.1\r\nHost: x\r\n\r\n\
          GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(connection.read().text(), "ok");
    assert_eq!(connection.read().text(), "404 page not found\n");
    let last = connection.read();
    assert_eq!((last.code(), last.header("connection")), (404, Some("close")));
    assert!(connection.is_closed());
}

#[test]
fn speaks_http_1_0_as_well() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let mut connection = Connection::open(port);
    connection.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(connection.read().status, "HTTP/1.0 200 OK");
    connection.send(b"GET /healthz HTTP/1.0\r\n\r\n");
    assert_eq!(connection.read().text(), "ok");
    assert!(connection.is_closed());
}

#[test]
fn refuses_what_is_no_request_and_closes() {
    let world = World::new();
    let _driver = world.driver();
    let (mut registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let long = "x".repeat(2 << 20);
    for (bytes, status, reason) in [
        ("garbage\r\n\r\n", "400 Bad Request", ""),
        ("\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n", "400 Bad Request", ""),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", "400 Bad Request", ""),
        ("GET /%6x HTTP/1.1\r\nHost: x\r\n\r\n", "400 Bad Request", ""),
        ("GET /healthz HTTP/1.1\r\n\r\n", "400 Bad Request", ": missing required Host header"),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", "400 Bad Request", ""),
        (
            "GET /healthz HTTP/1.1\r\nHost: x y\r\n\r\n",
            "400 Bad Request",
            ": malformed Host header",
        ),
        (
            &format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"),
            "431 Request Header Fields Too Large",
            "",
        ),
    ] {
        let mut connection = Connection::open(port);
        connection.send(bytes.as_bytes());
        let response = connection.read();
        let shown = &bytes[..bytes.len().min(60)];
        assert_eq!(response.code().to_string(), status[..3], "{shown}");
        assert_eq!(response.header("connection"), Some("close"), "{shown}");
        assert_eq!(response.text(), format!("{status}{reason}"), "{shown}");
    }
    assert_eq!(said(&get(port, "/healthz")), (200, "ok"));
    assert!(registrar.is_running());
}

#[test]
fn takes_the_asterisk_for_the_server_itself_of_which_only_options_may_be_asked() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let mut connection = Connection::open(port);
    let response = connection.request("OPTIONS", "*");
    assert_eq!((response.code(), response.text()), (200, ""));
    let response = connection.request("GET", "*");
    assert_eq!(response.code(), 400);
    assert_eq!(response.header("connection"), Some("close"));
    assert!(connection.is_closed());
}

/// The clients that are let in late have to be quick; the others may be silent for longer than the
/// tests are patient.
#[test]
fn is_not_closed_to_others_by_silent_clients() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    let mut silent: Vec<_> = (0..100).map(|_| Connection::open(port)).collect();
    for connection in silent.iter_mut().step_by(2) {
        connection.send(b"GET /healthz HTTP/1.1\r\nHost");
    }
    for _ in 0..3 {
        assert_eq!(said(&get(port, "/healthz")), (200, "ok"));
    }
    silent[0].send(b": x\r\n\r\n");
    assert_eq!(silent[0].read().text(), "ok");
}

#[test]
fn answers_readyz_with_ok_only_once_the_kubelet_has_confirmed() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    let mut kubelet = world.kubelet();
    let reason = "the kubelet has not called yet";
    assert_eq!(said(&get(port, "/readyz")), (503, reason));
    kubelet.get_info().unwrap();
    let reason = "the kubelet has called, no status yet";
    assert_eq!(said(&get(port, "/readyz")), (503, reason));
    kubelet.notify(true, "").unwrap();
    assert_eq!(said(&get(port, "/readyz")), (200, "ok"));
}

#[cfg(unix)]
#[test]
fn answers_readyz_with_what_stands_in_the_sockets_place() {
    type Put = fn(&World) -> Stand;
    for (put, reason) in [
        (
            (|world| world.replace_socket(|path| server(path, Answer::Name(DRIVER)))) as Put,
            "another process's socket stands at SOCKET",
        ),
        (
            |world| {
                world.replace_socket(|path| fs::write(path, "").unwrap());
                Box::new(())
            },
            "SOCKET is a regular file, not a socket",
        ),
        (
            |world| {
                fs::rename(world.registry(), world.path("away")).unwrap();
                Box::new(())
            },
            "the registration socket is gone",
        ),
    ] {
        let world = World::new();
        let _driver = world.driver();
        let (_registrar, port) = world.start_with_http(&[]);
        world.kubelet().register();
        assert_eq!(said(&get(port, "/readyz")), (200, "ok"));
        let _stand = put(&world);
        let reason = reason.replace("SOCKET", world.socket().to_str().unwrap());
        eventually(&reason, || {
            let response = get(port, "/readyz");
            (said(&response) == (503, &*reason)).then_some(())
        });
        let metrics = get(port, "/metrics");
        assert_eq!(value(metrics.text(), "registered{driver_name=\"test.csi.example.com\"}"), "0");
    }
}

#[test]
fn answers_readyz_for_a_new_socket_as_for_the_first() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet().register();
    assert_eq!(said(&get(port, "/readyz")), (200, "ok"));
    fs::remove_file(world.socket()).unwrap();
    eventually("a new socket", || {
        let metrics = get(port, "/metrics");
        (value(metrics.text(), "socket_binds_total") == "2").then_some(())
    });
    let reason = "the kubelet has not called yet";
    assert_eq!(said(&get(port, "/readyz")), (503, reason));
    world.kubelet().register();
    assert_eq!(said(&get(port, "/readyz")), (200, "ok"));
}

const BEFORE: &str = "\
# HELP csi_node_driver_registrar_build_info The version that runs
# TYPE csi_node_driver_registrar_build_info gauge
csi_node_driver_registrar_build_info{version=\"VERSION\"} 1
# HELP csi_node_driver_registrar_get_info_total GetInfo calls by the kubelet
# TYPE csi_node_driver_registrar_get_info_total counter
csi_node_driver_registrar_get_info_total 0
# HELP csi_node_driver_registrar_registration_status_total NotifyRegistrationStatus calls by the kubelet
# TYPE csi_node_driver_registrar_registration_status_total counter
csi_node_driver_registrar_registration_status_total{status=\"registered\"} 0
csi_node_driver_registrar_registration_status_total{status=\"refused\"} 0
# HELP csi_node_driver_registrar_socket_binds_total Registration sockets that were made
# TYPE csi_node_driver_registrar_socket_binds_total counter
csi_node_driver_registrar_socket_binds_total 0
# HELP csi_node_driver_registrar_driver_attempts_total Attempts to learn the driver's name
# TYPE csi_node_driver_registrar_driver_attempts_total counter
csi_node_driver_registrar_driver_attempts_total{result=\"ok\"} 0
csi_node_driver_registrar_driver_attempts_total{result=\"unreachable\"} ATTEMPTS
csi_node_driver_registrar_driver_attempts_total{result=\"error\"} 0
";

const AFTER: &str = "\
# HELP csi_node_driver_registrar_build_info The version that runs
# TYPE csi_node_driver_registrar_build_info gauge
csi_node_driver_registrar_build_info{version=\"VERSION\"} 1
# HELP csi_node_driver_registrar_registered Whether the kubelet has confirmed the registration on the present socket
# TYPE csi_node_driver_registrar_registered gauge
csi_node_driver_registrar_registered{driver_name=\"test.csi.example.com\"} 1
# HELP csi_node_driver_registrar_get_info_total GetInfo calls by the kubelet
# TYPE csi_node_driver_registrar_get_info_total counter
csi_node_driver_registrar_get_info_total 3
# HELP csi_node_driver_registrar_registration_status_total NotifyRegistrationStatus calls by the kubelet
# TYPE csi_node_driver_registrar_registration_status_total counter
csi_node_driver_registrar_registration_status_total{status=\"registered\"} 2
csi_node_driver_registrar_registration_status_total{status=\"refused\"} 0
# HELP csi_node_driver_registrar_last_registration_timestamp_seconds When the kubelet last confirmed the registration
# TYPE csi_node_driver_registrar_last_registration_timestamp_seconds gauge
csi_node_driver_registrar_last_registration_timestamp_seconds TIME
# HELP csi_node_driver_registrar_socket_binds_total Registration sockets that were made
# TYPE csi_node_driver_registrar_socket_binds_total counter
csi_node_driver_registrar_socket_binds_total 1
# HELP csi_node_driver_registrar_driver_attempts_total Attempts to learn the driver's name
# TYPE csi_node_driver_registrar_driver_attempts_total counter
csi_node_driver_registrar_driver_attempts_total{result=\"ok\"} 1
csi_node_driver_registrar_driver_attempts_total{result=\"unreachable\"} ATTEMPTS
csi_node_driver_registrar_driver_attempts_total{result=\"error\"} 2
";

/// The value of a metric, as it stands at the end of its line.
fn value<'a>(metrics: &'a str, name: &str) -> &'a str {
    let start = format!("csi_node_driver_registrar_{name} ");
    let mut values = metrics.lines().filter_map(|line| line.strip_prefix(&start));
    values.next().unwrap()
}

#[test]
fn shows_in_metrics_what_has_happened() {
    let world = World::new();
    let mut version = world.run(&[&BINARY, "--version"], |_| {});
    assert_eq!(version.exit_code(), 0);
    let version = version.stdout();
    let version = version.split_whitespace().last().unwrap();
    let (_registrar, port) = world.start_with_http(&[]);
    let metrics = |expected: &str| {
        let response = get(port, "/metrics");
        assert_eq!(response.code(), 200);
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        assert_eq!(response.header("content-type"), Some(content_type));
        let metrics = response.text();
        let attempts = value(metrics, "driver_attempts_total{result=\"unreachable\"}");
        let mut expected = expected.replace("VERSION", version);
        expected = expected.replace("ATTEMPTS", attempts);
        if expected.contains("TIME") {
            let time = value(metrics, "last_registration_timestamp_seconds");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let age = now.as_secs_f64() - time.parse::<f64>().unwrap();
            assert!((0.0..PATIENCE.as_secs_f64()).contains(&age), "{time}");
            expected = expected.replace("TIME", time);
        }
        assert_eq!(metrics, expected);
        attempts.parse::<u32>().unwrap()
    };
    eventually("an attempt", || (metrics(BEFORE) > 0).then_some(()));
    let not_yet = Answer::Error(Code::Unavailable, "not yet");
    let _driver = world.driver_that(&[not_yet, not_yet, Answer::Name(DRIVER)]);
    world.kubelet().get_info().unwrap();
    world.kubelet().register();
    world.kubelet().register();
    // the program's own calls are not the kubelet's
    assert_eq!(said(&get(port, "/healthz")), (200, "ok"));
    metrics(AFTER);
}

#[cfg(unix)]
#[test]
fn escapes_the_drivers_name_in_metrics() {
    let world = World::new();
    let _driver = world.driver_that(&[Answer::Name(r#"a"b\c"#)]);
    let (_registrar, port) = world.start_with_http(&[]);
    eventually("a socket", || world.listing().pop());
    let metrics = get(port, "/metrics");
    assert_eq!(value(metrics.text(), r#"registered{driver_name="a\"b\\c"}"#), "0");
}

#[test]
fn has_nothing_at_other_paths() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&[]);
    world.kubelet();
    for path in [
        "/",
        "/healthz/",
        "/healthz/x",
        "/HEALTHZ",
        "/readyz/",
        "/metrics/",
        "/%2568ealthz",
        "/%2e%2e/healthz",
        "/debug/pprof",
        "/debug/pprof/",
        "/debug/pprof/cmdline",
        "/debug/pprof/profile",
    ] {
        let response = get(port, path);
        assert_eq!(response.status, "HTTP/1.1 404 Not Found", "{path}");
        assert_eq!(said(&response), (404, "404 page not found\n"), "{path}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    }
}

#[test]
fn sends_a_client_from_an_unclean_path_to_the_clean_one() {
    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&["--enable-pprof"]);
    world.kubelet();
    for (path, location) in [
        ("//healthz", "/healthz"),
        ("/./healthz?x=1&y", "/healthz?x=1&y"),
        ("/healthz/../healthz", "/healthz"),
        ("//nope?%0d%0aX", "/nope?%0d%0aX"),
        ("/debug/pprof", "/debug/pprof/"),
    ] {
        let response = get(port, path);
        assert_eq!(response.status, "HTTP/1.1 307 Temporary Redirect", "{path}");
        assert_eq!(response.header("location"), Some(location), "{path}");
        let location = location.replace('&', "&amp;");
        let body = format!("<a href=\"{location}\">Temporary Redirect</a>.\n\n");
        assert_eq!(response.text(), body);
    }
}

#[test]
fn profiles_if_it_is_told_to() {
    let world = World::new();
    let _driver = world.driver();
    let flags = ["--enable-pprof", "--timeout=3s"];
    let (registrar, port) = world.start_with_http(&flags);
    world.kubelet();
    let endpoint = format!("127.0.0.1:{port}");
    registrar.logs(&format!(r#"I "Starting profiling" endpoint="{endpoint}""#));
    let index = get(port, "/debug/pprof/");
    assert_eq!(index.code(), 200);
    assert_eq!(index.header("content-type"), Some("text/html; charset=utf-8"));
    for (name, there) in [("cmdline", true), ("profile", true), ("heap", false), ("symbol", false)]
    {
        let link = format!("href=\"{name}");
        assert_eq!(index.text().contains(&link), there, "{name}");
    }
    let cmdline = get(port, "/debug/pprof/cmdline");
    let (code, cmdline) = said(&cmdline);
    assert_eq!(code, 200);
    let cmdline: Vec<_> = cmdline.split('\0').collect();
    assert_eq!(cmdline[0], &**BINARY);
    assert_eq!(cmdline[cmdline.len() - 2..], flags);
    for name in ["nope", "heap", "goroutine", "symbol", "trace", "profile/", "cmdline/x"] {
        let response = get(port, &format!("/debug/pprof/{name}"));
        assert_eq!(said(&response), (404, "Unknown profile\n"), "{name}");
        assert_eq!(response.header("x-go-pprof"), Some("1"));
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    }
}

#[cfg(not(feature = "pprof"))]
#[test]
fn says_that_a_cpu_profile_needs_another_build() {
    let world = World::new();
    let (_registrar, port) = world.start_with_http(&["--enable-pprof"]);
    let reason = "this binary was built without the cargo feature pprof\n";
    assert_eq!(said(&get(port, "/debug/pprof/profile?seconds=1")), (404, reason));
}

/// Go's tool is left out where it is not installed.
#[cfg(feature = "pprof")]
#[test]
fn makes_a_cpu_profile_that_gos_tool_opens() {
    use std::process::Command;
    use std::thread;

    let world = World::new();
    let _driver = world.driver();
    let (_registrar, port) = world.start_with_http(&["--enable-pprof"]);
    let profile = thread::spawn(move || get(port, "/debug/pprof/profile?seconds=1"));
    // something to see in it
    while !profile.is_finished() {
        assert_eq!(get(port, "/metrics").code(), 200);
    }
    let profile = profile.join().unwrap();
    assert_eq!(profile.code(), 200);
    for (name, expected) in [
        ("content-type", "application/octet-stream"),
        ("content-disposition", "attachment; filename=\"profile\""),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(profile.header(name), Some(expected));
    }
    assert_eq!(profile.body[..2], [0x1f, 0x8b], "gzip");
    let file = world.path("profile");
    fs::write(&file, profile.body).unwrap();
    let tool = Command::new("go").args(["tool", "pprof", "-raw"]).arg(file).output();
    if let Ok(output) = tool {
        let raw = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(raw.contains("http::respond"), "{raw}");
    }
}
