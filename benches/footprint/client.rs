use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long each of so many calls takes, one after the other.
pub(crate) fn latency(calls: usize, mut call: impl FnMut()) -> Vec<Duration> {
    let timed = |_| {
        let since = Instant::now();
        call();
        since.elapsed()
    };
    (0..calls).map(timed).collect()
}

/// GETs over one connection.
pub(crate) fn keep_alive(port: u16, path: &str, requests: usize) -> Vec<Duration> {
    let mut stream = connect(port);
    latency(requests, || get(&mut stream, path, "keep-alive"))
}

/// GETs over a connection each.
pub(crate) fn fresh(port: u16, path: &str, requests: usize) -> Vec<Duration> {
    latency(requests, || get(&mut connect(port), path, "close"))
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The answer must be `ok`.
fn get(stream: &mut TcpStream, path: &str, connection: &str) {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    while !answer.ends_with(b"\r\n\r\nok") {
        let size = stream.read(&mut buffer).unwrap();
        let so_far = String::from_utf8_lossy(&answer);
        assert!(size > 0, "the answer ends early: {so_far}");
        answer.extend_from_slice(&buffer[..size]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}
