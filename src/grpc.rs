//! The client's end of a gRPC connection, and its lines in the log: to the CSI driver, and to a
//! registration socket.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapErr;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::io::InspectReader;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tracing::debug;

/// How this program names itself; its own calls on a registration socket are told by it from the
/// kubelet's, whichever version makes them.
pub(crate) const OURSELVES: &str = env!("CARGO_PKG_NAME");

/// How long a server may take to let go of a connection.
const GRACE: Duration = Duration::from_secs(1);

/// A connection to a server, of whatever kind. It is reached through a pointer so that HTTP/2 is
/// compiled once, not once for each kind.
pub(crate) type Stream = Box<dyn ReadAndWrite>;

pub(crate) trait ReadAndWrite: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ReadAndWrite for S {}

/// A connection over which an HTTP/2 server has been heard. It ends with its last clone.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    requests: http2::SendRequest<Body>,
    _in_use: Arc<watch::Sender<()>>,
}

/// Runs the parts of a connection while it is in use, and not much longer: it does not end in order
/// as long as the server reads nothing of what it is owed.
#[derive(Clone)]
struct WhileInUse(watch::Receiver<()>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for WhileInUse {
    fn execute(&self, part: F) {
        let mut in_use = self.0.clone();
        let over = async move {
            let _ = in_use.changed().await;
            sleep(GRACE).await;
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = part => {}
                () = over => {}
            }
        });
    }
}

impl Channel {
    /// Begins to speak HTTP/2 over the stream and waits for the server to answer.
    pub(crate) async fn open(stream: Stream, limit: Duration) -> Result<Self, NoServer> {
        let (heard, greeting) = oneshot::channel();
        let mut heard = Some(heard);
        let stream = InspectReader::new(stream, move |bytes: &[u8]| {
            if let Some(heard) = heard.take_if(|_| !bytes.is_empty()) {
                let _ = heard.send(());
            }
        });
        let (in_use, executor) = watch::channel(());
        let executor = WhileInUse(executor);
        let (requests, connection) = http2::handshake(executor.clone(), TokioIo::new(stream))
            .await
            .map_err(|_| NoServer::Closed)?;
        executor.execute(connection);
        let channel = Self { requests, _in_use: Arc::new(in_use) };
        match timeout(limit, greeting).await {
            Ok(Ok(())) => Ok(channel),
            Ok(Err(_)) => Err(NoServer::Closed),
            Err(_) => Err(NoServer::Silent(limit)),
        }
    }
}

impl tower::Service<http::Request<Body>> for Channel {
    type Response = http::Response<MapErr<Incoming, fn(hyper::Error) -> Status>>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let ourselves = HeaderValue::from_static(OURSELVES);
        request.headers_mut().insert(USER_AGENT, ourselves);
        let response = self.requests.send_request(request);
        // A connection that breaks amid the answer is no other failure than one that breaks before.
        let unavailable = |e: hyper::Error| Status::unavailable(with_causes(&e));
        Box::pin(async move {
            let response = response.await.map_err(unavailable)?;
            Ok(response.map(|body| body.map_err(unavailable as fn(_) -> _)))
        })
    }
}

/// Why there is no [`Channel`].
#[derive(Debug)]
pub(crate) enum NoServer {
    /// A server greets its client with SETTINGS, and this one has not for so long.
    Silent(Duration),
    /// It hung up before.
    Closed,
}

impl fmt::Display for NoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(limit) => write!(f, "no HTTP/2 answer within {limit:?}"),
            Self::Closed => f.write_str("the connection was closed without an HTTP/2 answer"),
        }
    }
}

/// The fields of a message, sorted by their names in the protocol, with their values in JSON.
pub(crate) type Fields = Vec<(&'static str, String)>;

/// Makes a call within `limit` and logs it and its answer, which `fields` takes apart.
pub(crate) async fn call<Q: Default, A>(
    method: &str,
    limit: Duration,
    call: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    fields: fn(&A) -> Fields,
) -> Result<A, Status> {
    debug!(v = 5, method, request = "{}", "GRPC call");
    let mut request = Request::new(Q::default());
    request.set_timeout(limit);
    let result = match timeout(limit, call(request)).await {
        Ok(result) => result.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    };
    debug!(
        v = 5,
        response = in_json(&result.as_ref().map(fields).unwrap_or_default()),
        err = result.as_ref().err().map(in_words),
        "GRPC response"
    );
    result
}

/// Leaves out what is empty, as Go does: a text, a list, a map.
fn in_json(fields: &Fields) -> String {
    let fields = fields.iter().filter(|(_, value)| value.len() > 2);
    let fields = fields.map(|(name, value)| format!("\"{name}\":{value}"));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

/// A gRPC status as Go's library prints it.
pub(crate) fn in_words(status: &Status) -> String {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

/// An error with its causes, without those that only repeat what was said.
fn with_causes(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        source = cause.source();
    }
    words
}
