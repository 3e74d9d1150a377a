//! The CSI driver's side: reaches the driver's socket and asks for the driver's name.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::io::InspectReader;
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tracing::{debug, error, info, warn};

use crate::klog;
use crate::proto::csi::identity_client::IdentityClient;
use crate::proto::csi::{GetPluginInfoRequest, GetPluginInfoResponse};
use crate::sys;

const METHOD: &str = "/csi.v1.Identity/GetPluginInfo";
/// Pauses between attempts grow from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How long a TCP connection may take; one to a Unix socket is made or refused at once.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a listener may keep silent: an HTTP/2 server greets its client with SETTINGS.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Waits for the driver, asks for its name and checks that the name can be registered.
///
/// `call` bounds one call, `startup` all of it; None is without limit. The connection is closed
/// again: nothing else is ever asked.
///
/// # Errors
/// The address or the name cannot be used, the driver gave a final error, or the time is over;
/// the outermost context is the message for the log.
pub(crate) async fn discover(
    address: &str,
    call: Duration,
    startup: Option<Duration>,
) -> anyhow::Result<String> {
    debug!(v = 1, csiAddress = %address, "Attempting to open a gRPC connection");
    let address = Address::parse(address).context("Error connecting to CSI driver")?;
    debug!(v = 5, address = %address, "Connecting");
    let mut wait = Wait::default();
    let asked = ask(&address, call, &mut wait);
    let name = match startup {
        None => asked.await,
        Some(limit) => match timeout(limit, asked).await {
            Ok(result) => result,
            Err(_) => Err(anyhow!("{} (waited {limit:?})", wait.reason)),
        },
    }
    .context(match wait.reached {
        true => "Error retreiving CSI driver name",
        false => "Error connecting to CSI driver",
    })?;
    debug!(v = 2, csiDriverName = %name, "CSI driver name");
    check_name(&name).context("The CSI driver's name cannot be registered")?;
    Ok(name)
}

/// How far the wait for the driver has come, should it have to be given up.
#[derive(Debug, Default)]
struct Wait {
    reached: bool,
    /// Why the last attempt failed.
    reason: String,
}

/// Calls GetPluginInfo until the driver has answered it.
async fn ask(address: &Address, call: Duration, wait: &mut Wait) -> anyhow::Result<String> {
    let mut pause = FIRST_PAUSE;
    for attempt in 1_u64.. {
        let connection = reach(address, wait).await;
        wait.reached = true;
        debug!(v = 1, "Calling CSI driver to discover driver name");
        let failed = match get_plugin_info(connection, address, call).await {
            Ok(info) => {
                ensure!(!info.name.is_empty(), "driver name is empty");
                return Ok(info.name);
            }
            Err(status) => status,
        };
        wait.reason = in_words(&failed);
        ensure!(may_pass(failed.code()), "{}", wait.reason);
        warn!(err = %wait.reason, attempt, "Error retrieving CSI driver name, retrying");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    unreachable!("attempts are not counted out")
}

/// Connects until a server answers in HTTP/2.
async fn reach(address: &Address, wait: &mut Wait) -> Connection {
    let mut report = Instant::now() + REPORT_EVERY;
    let mut pause = FIRST_PAUSE;
    loop {
        match address.connect().await {
            Ok(connection) => return connection,
            Err(reason) => wait.reason = reason,
        }
        if Instant::now() >= report {
            info!(address = %address, err = %wait.reason, "Still connecting");
            report += REPORT_EVERY;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

type Connection = http2::SendRequest<Body>;

/// One call, bounded by `limit`, with the log lines of the original.
async fn get_plugin_info(
    connection: Connection,
    address: &Address,
    limit: Duration,
) -> Result<GetPluginInfoResponse, Status> {
    debug!(v = 5, method = METHOD, request = "{}", "GRPC call");
    let service = tower::service_fn(move |request| {
        let response = connection.clone().send_request(request);
        async { response.await.map_err(|e| Status::unavailable(chain(&e))) }
    });
    let mut client = IdentityClient::with_origin(service, address.origin());
    let mut request = Request::new(GetPluginInfoRequest {});
    request.set_timeout(limit);
    let result = match timeout(limit, client.get_plugin_info(request)).await {
        Ok(result) => result.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    };
    let response = result.as_ref().map(to_json).unwrap_or_else(|_| "{}".into());
    let err = result.as_ref().err().map(in_words);
    debug!(v = 5, response = %response, err, "GRPC response");
    result
}

/// Whether a later attempt may do better, by the meaning that gRPC gives to the code.
fn may_pass(code: Code) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    matches!(
        code,
        Aborted | Cancelled | DeadlineExceeded | ResourceExhausted | Unavailable
    )
}

/// A gRPC status as Go's library prints it.
fn in_words(status: &Status) -> String {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

fn to_json(info: &GetPluginInfoResponse) -> String {
    let string = |text: &str| klog::json_string(text).to_string();
    let mut members = Vec::new();
    if !info.manifest.is_empty() {
        let entries = info.manifest.iter();
        let entries: Vec<_> = entries
            .map(|(key, value)| format!("{}:{}", string(key), string(value)))
            .collect();
        members.push(format!("\"manifest\":{{{}}}", entries.join(",")));
    }
    for (key, value) in [
        ("name", &info.name),
        ("vendor_version", &info.vendor_version),
    ] {
        if !value.is_empty() {
            members.push(format!("\"{key}\":{}", string(value)));
        }
    }
    format!("{{{}}}", members.join(","))
}

/// Refuses a name that would not make a socket in the registry directory which the kubelet looks
/// at; warns of one that CSI does not allow, as such drivers exist.
fn check_name(name: &str) -> anyhow::Result<()> {
    let quoted = klog::quote(name);
    ensure!(!name.contains('/'), "driver name {quoted} contains a slash");
    ensure!(
        !name.contains(char::is_control),
        "driver name {quoted} contains a control character"
    );
    ensure!(
        !name.starts_with('.'),
        "driver name {quoted} starts with a dot, and the kubelet passes over such sockets"
    );
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    if name.len() > 63 {
        warn!(csiDriverName = %name, "CSI driver name is longer than the 63 characters of the CSI specification");
    } else if !edge(name.chars().next()) || !edge(name.chars().last()) || !name.chars().all(inner) {
        warn!(csiDriverName = %name, "CSI driver name is not of the form that the CSI specification demands: letters, digits, '-' and '.', alphanumeric at both ends");
    }
    Ok(())
}

/// An error with its causes, without those that only repeat what was said.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words = format!("{words}: {cause_words}");
        }
        source = cause.source();
    }
    words
}

/// Where the driver listens.
#[derive(Debug)]
struct Address {
    /// As it is logged: a bare path gets its scheme.
    shown: String,
    target: Target,
}

#[derive(Debug, PartialEq)]
enum Target {
    Unix(PathBuf),
    /// Host and port, to be resolved anew for each connection.
    Tcp(String),
}

impl Address {
    /// Understands what gRPC libraries take as a target: a path, `unix:` with a path, or
    /// `host:port`, the last two also behind `passthrough:///`, the last behind `dns:`.
    fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(!text.is_empty(), "the address is empty");
        let shown = match text.starts_with('/') {
            true => format!("unix://{text}"),
            false => text.to_owned(),
        };
        let target = Target::parse(&shown).with_context(|| format!("invalid address {shown}"))?;
        Ok(Self { shown, target })
    }

    /// The :scheme and :authority of the requests.
    fn origin(&self) -> http::Uri {
        let authority = match &self.target {
            Target::Unix(_) => "localhost",
            Target::Tcp(address) => address,
        };
        let origin = http::Uri::builder()
            .scheme("http")
            .authority(authority)
            .path_and_query("/")
            .build();
        origin.unwrap_or_default()
    }

    /// Connects and waits for the server's greeting. The error is the reason in words.
    async fn connect(&self) -> Result<Connection, String> {
        match &self.target {
            Target::Unix(path) => match sys::UnixStream::connect(path).await {
                Ok(stream) => self.greet(stream).await,
                Err(error) => Err(why_not(path, &error)),
            },
            Target::Tcp(address) => {
                match timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => self.greet(stream).await,
                    Ok(Err(error)) => Err(format!("connect {address}: {}", sys::reason(&error))),
                    Err(_) => Err(format!("no connection within {CONNECT_WITHIN:?}")),
                }
            }
        }
    }

    async fn greet<S>(&self, stream: S) -> Result<Connection, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (heard, greeting) = oneshot::channel();
        let mut heard = Some(heard);
        let stream = InspectReader::new(stream, move |bytes: &[u8]| {
            if let Some(heard) = heard.take_if(|_| !bytes.is_empty()) {
                let _ = heard.send(());
            }
        });
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| chain(&error))?;
        tokio::spawn(connection);
        match timeout(ANSWER_WITHIN, greeting).await {
            Ok(Ok(())) => Ok(sender),
            Ok(Err(_)) => Err("the connection was closed without an HTTP/2 answer".into()),
            Err(_) => {
                let reason = format!("no HTTP/2 answer within {ANSWER_WITHIN:?}");
                error!(address = %self, err = %reason, "Lost connection");
                Err(reason)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Target {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = text.split_once(':').unwrap_or(("", text));
        let scheme = scheme.to_ascii_lowercase();
        // scheme://authority/endpoint or scheme:endpoint
        let endpoint = match rest.strip_prefix("//") {
            Some(rest) => match rest.find('/') {
                Some(0) => rest,
                _ => "",
            },
            None => rest,
        };
        let after_slash = || endpoint.strip_prefix('/').unwrap_or(endpoint);
        match scheme.as_str() {
            "unix" => {
                ensure!(
                    !endpoint.is_empty(),
                    "the path after unix:// must be absolute"
                );
                Ok(Self::Unix(endpoint.into()))
            }
            "passthrough" if after_slash().starts_with("unix:") => Self::parse(after_slash()),
            "passthrough" | "dns" if !after_slash().is_empty() => Ok(Self::host(after_slash())),
            "passthrough" | "dns" => bail!("no host"),
            _ => Ok(Self::host(text)),
        }
    }

    /// A host without a port gets that of https, by gRPC's convention.
    fn host(text: &str) -> Self {
        let port = text.rsplit_once(':').map(|(_, port)| port);
        Self::Tcp(match port {
            Some(port) if !port.contains(']') => text.to_owned(),
            _ => format!("{text}:443"),
        })
    }
}

/// The reason in the system's words, and what to check.
fn why_not(path: &Path, error: &io::Error) -> String {
    let reason = sys::reason(error);
    match (error.kind(), fs::metadata(path)) {
        // connect(2) says "refused" of any file
        (io::ErrorKind::ConnectionRefused, Ok(file)) if !sys::is_socket(&file) => {
            format!(
                "{} is {}, not a socket",
                path.display(),
                sys::a_kind_of_file(file.file_type())
            )
        }
        (io::ErrorKind::ConnectionRefused, _) => {
            format!("{reason}: the driver does not listen yet, or has left its socket behind")
        }
        (io::ErrorKind::NotFound, _) => format!(
            "{reason}: the driver has not made its socket yet, or its directory is not mounted here"
        ),
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{reason}: file modes or SELinux keep this process from the driver's socket")
        }
        _ => reason,
    }
}
