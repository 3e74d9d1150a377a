//! The kubelet's side of the registration socket, down to its bytes: it does what grpc-go does,
//! and can do what no HTTP/2 library would.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use loona_hpack::Decoder;
use prost::Message;

use super::hpack::{Table, string};
use super::net::UnixStream;
use super::proto::health::{HealthCheckRequest, HealthCheckResponse};
use super::proto::pluginregistration::{InfoRequest, RegistrationStatus};
use super::{PATIENCE, eventually};

pub(crate) use super::proto::pluginregistration::PluginInfo;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Also the flag of an acknowledgement.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const MAX_FRAME: usize = 16_384;
const INITIAL_WINDOW: i64 = 65_535;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// What the client of a failed call learns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// gRPC's code and message.
    Status(i32, String),
    /// The stream was reset, with this code of HTTP/2.
    Reset(u32),
    /// The server closed the connection.
    Closed,
}

/// One connection.
pub(crate) struct Kubelet {
    stream: UnixStream,
    authority: Option<String>,
    table: Table,
    decoder: Decoder<'static>,
    next_stream: u32,
    /// The octets of DATA that the server takes, of a new stream and of the connection.
    stream_window: i64,
    window: i64,
}

impl Kubelet {
    /// Dials as the kubelet does, by the bare path, which its gRPC library then percent-encodes
    /// into the `:authority` of each request.
    pub(crate) fn dial(socket: &Path) -> Self {
        let path = socket.to_str().unwrap().replace('/', "%2F").replace('\\', "%5C");
        Self::dial_as(socket, Some(&path))
    }

    /// Dials with any `:authority`, or without.
    pub(crate) fn dial_as(socket: &Path, authority: Option<&str>) -> Self {
        let mut stream = eventually("a server on the socket", || UnixStream::connect(socket).ok());
        stream.set_read_timeout(Some(*PATIENCE)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut kubelet = Self {
            stream,
            authority: authority.map(Into::into),
            table: Table::default(),
            decoder: Decoder::new(),
            next_stream: 1,
            stream_window: INITIAL_WINDOW,
            window: INITIAL_WINDOW,
        };
        kubelet.write(SETTINGS, 0, 0, &[]).unwrap();
        // grpc-go counts a connection as ready from the server's settings on
        while kubelet.read().expect("settings").kind != SETTINGS {}
        kubelet
    }

    pub(crate) fn get_info(&mut self) -> Result<PluginInfo, Failure> {
        let answer = self.call("GetInfo", &message(&InfoRequest {}), &[])?;
        Ok(PluginInfo::decode(&*answer).unwrap())
    }

    pub(crate) fn notify(&mut self, registered: bool, error: &str) -> Result<(), Failure> {
        let status = RegistrationStatus { plugin_registered: registered, error: error.into() };
        let answer = self.call("NotifyRegistrationStatus", &message(&status), &[])?;
        assert_eq!(answer, b"");
        Ok(())
    }

    /// A health check of the service; the name of its status in the protocol.
    pub(crate) fn check(&mut self, service: &str) -> Result<&'static str, Failure> {
        let request = HealthCheckRequest { service: service.into() };
        let answer = self.call_path("/grpc.health.v1.Health/Check", &message(&request), &[])?;
        let answer = HealthCheckResponse::decode(&*answer).unwrap();
        Ok(answer.status().as_str_name())
    }

    /// What the kubelet does with every new socket.
    pub(crate) fn register(mut self) -> PluginInfo {
        let info = self.get_info().unwrap();
        self.notify(true, "").unwrap();
        self.leave();
        info
    }

    /// GOAWAY and close at once, without waiting for what the server may still send.
    pub(crate) fn leave(mut self) {
        let text = b"client transport shutdown";
        let _ = self.write(GOAWAY, 0, 0, &[&[0; 8], &text[..]].concat());
    }

    /// A call of the registration service. The body is a message with its prefix, see [`message`].
    pub(crate) fn call(
        &mut self,
        method: &str,
        body: &[u8],
        metadata: &[(&str, &str)],
    ) -> Result<Vec<u8>, Failure> {
        let path = format!("/pluginregistration.Registration/{method}");
        self.call_path(&path, body, metadata)
    }

    pub(crate) fn call_path(
        &mut self,
        path: &str,
        body: &[u8],
        metadata: &[(&str, &str)],
    ) -> Result<Vec<u8>, Failure> {
        let mut reply =
            Reply { stream: self.next_stream, window: self.stream_window, ..Reply::default() };
        self.next_stream += 2;
        let block = self.header_block(path, metadata);
        self.write(HEADERS, END_HEADERS, reply.stream, &block).map_err(|_| Failure::Closed)?;
        self.send_data(&mut reply, body)?;
        while !reply.ended {
            self.take_in(&mut reply)?;
        }
        reply.result()
    }

    fn header_block(&mut self, path: &str, metadata: &[(&str, &str)]) -> Vec<u8> {
        let authority = self.authority.as_deref().map(|value| (":authority", value));
        let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path)];
        let fields = [
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.81.1"),
            ("te", "trailers"),
            ("grpc-timeout", "999980u"),
        ];
        let mut block = Vec::new();
        for (name, value) in pseudo.into_iter().chain(authority).chain(fields) {
            self.table.encode(name, value, &mut block);
        }
        for (name, value) in metadata {
            block.push(0); // a literal that is not indexed
            string(name, &mut block);
            string(value, &mut block);
        }
        block
    }

    /// As fast as the server's windows allow; stops when the server has ended the call already.
    fn send_data(&mut self, reply: &mut Reply, body: &[u8]) -> Result<(), Failure> {
        let mut pieces = body.chunks(MAX_FRAME).peekable();
        while let Some(piece) = pieces.next() {
            let size = i64::try_from(piece.len()).unwrap();
            while self.window.min(reply.window) < size && !reply.ended {
                self.take_in(reply)?;
            }
            if reply.ended {
                return Ok(());
            }
            self.window -= size;
            reply.window -= size;
            let flags = u8::from(pieces.peek().is_none()) * END_STREAM;
            self.write(DATA, flags, reply.stream, piece).map_err(|_| Failure::Closed)?;
        }
        Ok(())
    }

    /// Reads one frame that may belong to the reply.
    fn take_in(&mut self, reply: &mut Reply) -> Result<(), Failure> {
        let frame = self.read().map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => panic!("no answer on stream {}", reply.stream),
            _ => Failure::Closed,
        })?;
        if frame.stream != reply.stream {
            return Ok(());
        }
        match frame.kind {
            HEADERS => {
                let fields = self.decoder.decode(&frame.payload).unwrap();
                let text = |bytes| String::from_utf8(bytes).unwrap();
                let fields = fields.into_iter().map(|(k, v)| (text(k), text(v)));
                reply.fields.extend(fields);
            }
            DATA => reply.body.extend(&frame.payload),
            WINDOW_UPDATE => reply.window += i64::from(number(&frame.payload)),
            RST_STREAM if reply.fields.is_empty() => {
                return Err(Failure::Reset(number(&frame.payload)));
            }
            _ => {}
        }
        reply.ended |= matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0;
        Ok(())
    }

    fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream.write_all(&[&head, payload].concat())
    }

    /// Reads one frame, and does what concerns the whole connection.
    fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let length = number(&[0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.stream.read_exact(&mut payload)?;
        let frame = Frame { kind: head[3], flags: head[4], stream: number(&head[5..]), payload };
        match frame.kind {
            SETTINGS if frame.flags & END_STREAM == 0 => {
                for setting in frame.payload.chunks(6) {
                    if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                        self.stream_window = number(&setting[2..]).into();
                    }
                }
                self.write(SETTINGS, END_STREAM, 0, &[])?;
            }
            PING if frame.flags & END_STREAM == 0 => {
                self.write(PING, END_STREAM, 0, &frame.payload)?;
            }
            WINDOW_UPDATE if frame.stream == 0 => {
                self.window += i64::from(number(&frame.payload));
            }
            _ => {}
        }
        Ok(frame)
    }
}

/// A message with the prefix by which gRPC sends it.
pub(crate) fn message(message: &impl Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &message.encode_to_vec()].concat()
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// What has come of the answer on one stream.
#[derive(Default)]
struct Reply {
    stream: u32,
    window: i64,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
    ended: bool,
}

impl Reply {
    fn result(self) -> Result<Vec<u8>, Failure> {
        let field = |name| self.fields.get(name).map(String::as_str);
        assert_eq!(field(":status"), Some("200"));
        let code = field("grpc-status").expect("every answer has a grpc-status");
        match code.parse().unwrap() {
            0 => Ok(self.body[5..].to_vec()),
            code => {
                let message = field("grpc-message").unwrap_or_default();
                Err(Failure::Status(code, percent_decode(message)))
            }
        }
    }
}

fn percent_decode(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        decoded.push(u8::from_str_radix(&piece[..2], 16).unwrap());
        decoded.extend(piece[2..].bytes());
    }
    String::from_utf8(decoded).unwrap()
}

/// The first four octets, in network order.
fn number(octets: &[u8]) -> u32 {
    u32::from_be_bytes(octets[..4].try_into().unwrap())
}
