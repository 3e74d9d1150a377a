//! The HTTP server: health, readiness, metrics and profiles.

mod complete;
mod endpoint;
mod health;
mod metrics;
mod path;
mod profile;

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, LOCATION};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::info;

use crate::accept;
use crate::status::Publisher;
use complete::Complete;

/// Connections that are served at a time; more wait in the kernel.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of a request, the wait for it included.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// From so many connections on a further one has to be quick, and gets one answer: those that keep
/// silent must not shut out the kubelet's probes.
const CROWD: usize = MAX_CONNECTIONS / 2;
const HEAD_IN_A_CROWD_WITHIN: Duration = Duration::from_millis(250);
/// Go's limit for the head of a request, in bytes.
const MAX_HEAD: usize = 1 << 20;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// A bound and not yet served endpoint.
#[derive(Debug)]
pub(crate) struct Server {
    endpoint: String,
    listener: TcpListener,
}

/// What the answers depend on.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    status: Publisher,
    timeout: Duration,
    profiling: bool,
    version: &'static str,
    checks: Arc<Semaphore>,
}

impl Context {
    /// `timeout` bounds a health check; with `profiling`, profiles are served.
    pub(crate) fn new(
        status: &Publisher,
        timeout: Duration,
        profiling: bool,
        version: &'static str,
    ) -> Self {
        Self {
            status: status.clone(),
            timeout,
            profiling,
            version,
            checks: Arc::new(Semaphore::new(health::MAX_CHECKS)),
        }
    }
}

/// Listens at the endpoint; nothing is answered before [`serve`].
///
/// # Errors
/// The endpoint is no address, or cannot be listened at.
pub(crate) fn bind(endpoint: &str) -> anyhow::Result<Server> {
    let listener = endpoint::listen(endpoint)
        .with_context(|| format!("Failed to listen on the HTTP endpoint {endpoint}"))?;
    Ok(Server { endpoint: endpoint.into(), listener })
}

/// Answers for ever, if there is an endpoint.
///
/// # Errors
/// The listener cannot be used.
pub(crate) async fn serve(server: Option<Server>, context: Context) -> anyhow::Result<Infallible> {
    let Some(Server { endpoint, listener }) = server else {
        let mut changes = context.status.subscribe();
        let _ = changes.wait_for(|status| status.counts.socket_binds > 0).await;
        info!("Skipping HTTP server");
        return std::future::pending().await;
    };
    let listener =
        tokio::net::TcpListener::from_std(listener).context("Failed to start the HTTP server")?;
    info!(endpoint, "Starting HTTP server");
    if context.profiling {
        info!(endpoint, "Starting profiling");
    }
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            (stream, _) = accept::next("HTTP endpoint", async || listener.accept().await), if room => {
                let crowded = connections.len() >= CROWD;
                connections.spawn(connection(stream, crowded, context.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One client, until it leaves.
async fn connection(stream: TcpStream, crowded: bool, context: Context) {
    let service = service_fn(move |request| respond(context.clone(), request));
    let head_within = match crowded {
        true => HEAD_IN_A_CROWD_WITHIN,
        false => HEAD_WITHIN,
    };
    // An error is the client's: it has left, or was answered with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .keep_alive(!crowded)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Complete(stream)), service)
        .await;
}

type Answer = Response<Full<Bytes>>;

async fn respond(context: Context, request: Request<Incoming>) -> Result<Answer, Infallible> {
    if let Some(fault) = fault(&request) {
        return Ok(bad_request(fault));
    }
    let raw = request.uri().path();
    if raw == "*" {
        return Ok(match *request.method() {
            Method::OPTIONS => Answer::default(),
            _ => bad_request(""),
        });
    }
    let Some(path) = path::decode(raw) else {
        return Ok(bad_request(""));
    };
    let clean = match raw {
        "/debug/pprof" if context.profiling => "/debug/pprof/".into(),
        _ => path::clean(raw),
    };
    if clean != raw && request.method() != Method::CONNECT {
        return Ok(redirect(&clean, request.uri().query()));
    }
    Ok(match &*path {
        "/healthz" => health::answer(&context).await,
        "/readyz" => match context.status.borrow().ready() {
            Ok(()) => text(StatusCode::OK, "ok"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        "/metrics" => metrics::render(&context),
        _ => match path.strip_prefix("/debug/pprof/") {
            Some(name) if context.profiling => profile::render(name, request.uri().query()).await,
            _ => with_nosniff(text(StatusCode::NOT_FOUND, "404 page not found\n")),
        },
    })
}

/// What is wrong with a request although it can be read (RFC 9112, 3.2); empty where Go has no word
/// for it.
fn fault(request: &Request<Incoming>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Some(""),
        (Some(host), None) if host.as_bytes().iter().any(u8::is_ascii_whitespace) => {
            Some("malformed Host header")
        }
        (None, _)
            if request.version() == Version::HTTP_11 && request.method() != Method::CONNECT =>
        {
            Some("missing required Host header")
        }
        _ => None,
    }
}

/// The connection ends with it.
fn bad_request(fault: &str) -> Answer {
    let body = match fault {
        "" => "400 Bad Request".into(),
        fault => format!("400 Bad Request: {fault}"),
    };
    let mut response = text(StatusCode::BAD_REQUEST, body);
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

fn redirect(path: &str, query: Option<&str>) -> Answer {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let location = format!("{path}{query}");
    let link = location.replace('&', "&amp;").replace('"', "&#34;");
    let Ok(location) = HeaderValue::try_from(location) else {
        return bad_request("");
    };
    let body = format!("<a href=\"{link}\">Temporary Redirect</a>.\n\n");
    let mut response = with_type(StatusCode::TEMPORARY_REDIRECT, HTML, body);
    response.headers_mut().insert(LOCATION, location);
    response
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    with_type(code, TEXT, body)
}

fn with_type(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn with_nosniff(mut response: Answer) -> Answer {
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert("x-content-type-options", nosniff);
    response
}
