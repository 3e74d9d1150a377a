//! The HTTP server: health, readiness, metrics and profiles.

mod complete;
mod endpoint;
mod health;
mod metrics;
mod profile;

use std::convert::Infallible;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{error, info};

use crate::status::Publisher;
use complete::Complete;

/// Connections that are served at a time; more wait in the kernel.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of a request, the wait for it included.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Go's limit for the head of a request, in bytes.
const MAX_HEAD: usize = 1 << 20;
/// The pause after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

const TEXT: &str = "text/plain; charset=utf-8";

/// A bound and not yet served endpoint.
#[derive(Debug)]
pub(crate) struct Server {
    endpoint: String,
    listener: TcpListener,
}

/// What the answers depend on.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) status: Publisher,
    /// The bound of a health check.
    pub(crate) timeout: Duration,
    /// Serve profiles.
    pub(crate) profiling: bool,
    pub(crate) version: &'static str,
}

/// Listens at the endpoint; nothing is answered before [`serve`].
///
/// # Errors
/// The endpoint is no address, or cannot be listened at.
pub(crate) fn bind(endpoint: &str) -> anyhow::Result<Server> {
    let listener = endpoint::listen(endpoint)
        .with_context(|| format!("Failed to listen on the HTTP endpoint {endpoint}"))?;
    Ok(Server {
        endpoint: endpoint.into(),
        listener,
    })
}

/// Answers for ever, if there is an endpoint.
///
/// # Errors
/// The listener cannot be used.
pub(crate) async fn serve(server: Option<Server>, context: Context) -> anyhow::Result<Infallible> {
    let Some(Server { endpoint, listener }) = server else {
        let mut changes = context.status.subscribe();
        let _ = changes
            .wait_for(|status| status.counts.socket_binds > 0)
            .await;
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
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, context.clone()));
                }
                Err(error) => {
                    error!(err = %error, "Failed to accept a connection to the HTTP endpoint");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One client, until it leaves.
async fn connection(stream: TcpStream, context: Context) {
    let service = service_fn(move |request| respond(context.clone(), request));
    // An error is the client's: it has left, or was answered with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Complete(stream)), service)
        .await;
}

type Answer = Response<Full<Bytes>>;

async fn respond(context: Context, request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST) {
        let body = "400 Bad Request: missing required Host header";
        let mut response = text(StatusCode::BAD_REQUEST, body);
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        return Ok(response);
    }
    let path = request.uri().path();
    Ok(match path {
        "/healthz" => match health::check(&context).await {
            Ok(()) => text(StatusCode::OK, "ok"),
            Err(failure) => text(failure.code, failure.reason),
        },
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
    response
        .headers_mut()
        .insert("x-content-type-options", nosniff);
    response
}
