//! An HTTP/1 client that sends any bytes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{PATIENCE, eventually};

/// A port at which nobody listens. It lies below those that the system gives to clients.
pub(crate) fn free_port() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // apart from those of a process that runs beside this one
        let start = process::id() * 64 % 20_000;
        let port = 10_000 + (u16::try_from(start).unwrap() + count) % 20_000;
        let free = |address: SocketAddr| TcpListener::bind(address).is_ok();
        if free((Ipv4Addr::UNSPECIFIED, port).into())
            && (free((Ipv6Addr::UNSPECIFIED, port).into()) || !is_ipv6_on())
        {
            return port;
        }
    }
}

pub(crate) fn is_ipv6_on() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The answer to one GET over a connection of its own.
pub(crate) fn get(port: u16, path: &str) -> Response {
    let mut connection = Connection::open(port);
    connection.request("GET", path)
}

#[derive(Debug)]
pub(crate) struct Response {
    /// `HTTP/1.1 200 OK`
    pub(crate) status: String,
    /// By their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn code(&self) -> u16 {
        let code = self.status.split(' ').nth(1);
        code.unwrap().parse().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// One connection.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// To the port of 127.0.0.1, once a server is there.
    pub(crate) fn open(port: u16) -> Self {
        Self::open_to((Ipv4Addr::LOCALHOST, port).into())
    }

    pub(crate) fn open_to(address: SocketAddr) -> Self {
        let stream = eventually("an HTTP server", || TcpStream::connect(address).ok());
        stream.set_read_timeout(Some(*PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // the server may have closed the connection at the first octets
        let _ = self.0.get_mut().write_all(bytes);
    }

    pub(crate) fn request(&mut self, method: &str, path: &str) -> Response {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        let mut response = self.read_head();
        if method != "HEAD" {
            self.read_body(&mut response);
        }
        response
    }

    /// The next answer.
    pub(crate) fn read(&mut self) -> Response {
        let mut response = self.read_head();
        self.read_body(&mut response);
        response
    }

    fn read_head(&mut self) -> Response {
        let status = self.line();
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").expect("a header line");
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        Response { status, headers, body: Vec::new() }
    }

    /// As long as the head says, or up to the end of the connection.
    fn read_body(&mut self, response: &mut Response) {
        match response.header("content-length") {
            Some(length) => {
                response.body.resize(length.parse().unwrap(), 0);
                self.0.read_exact(&mut response.body).unwrap();
            }
            None => drop(self.0.read_to_end(&mut response.body).unwrap()),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Whether the server closes it, without another octet.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0]), Ok(0))
    }
}

/// Where a registrar answers.
pub(crate) struct Http {
    port: u16,
}

impl Http {
    pub(crate) fn at_a_free_port() -> Self {
        Self { port: free_port() }
    }

    pub(crate) fn flag(&self) -> String {
        format!("--http-endpoint=127.0.0.1:{}", self.port)
    }

    /// The status code and the body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let response = get(self.port, path);
        (response.code(), response.text().to_owned())
    }

    /// What `/readyz` says: the code, and why.
    pub(crate) fn ready(&self) -> String {
        let (code, body) = self.get("/readyz");
        format!("{code} {body}")
    }
}
