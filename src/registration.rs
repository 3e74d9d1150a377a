//! The kubelet's side: answers its calls on the registration socket.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;
use tracing::{debug, error, info};

use crate::authority::Admit;
use crate::klog;
use crate::proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::sys::{UnixListener, UnixStream};

/// Chooses the kubelet's CSI handler.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The version of the registration protocol between the kubelet and a CSI driver, not of CSI
/// itself. Krustlet compares it to the letter.
const SUPPORTED_VERSION: &str = "1.0.0";
/// Header lists of up to 16 KiB are accepted; h2 refuses one of exactly its limit, and the authority
/// may have grown by a few bytes on the way to it.
const MAX_HEADER_LIST: u32 = 16 * 1024 + 64;
/// How long answers that are on their way may take once the kubelet has refused.
const GRACE: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// What the kubelet is told.
pub(crate) fn plugin(driver_name: String, endpoint: String) -> PluginInfo {
    PluginInfo {
        r#type: PLUGIN_TYPE.into(),
        name: driver_name,
        endpoint,
        supported_versions: vec![SUPPORTED_VERSION.into()],
    }
}

/// Serves until the kubelet refuses the plugin, and returns the kubelet's reason. The refusing
/// call has been answered by then.
pub(crate) async fn serve(listener: &UnixListener, plugin: PluginInfo) -> String {
    let (refuse, mut refused) = mpsc::channel(1);
    let (stop, stopped) = watch::channel(());
    let server = RegistrationServer::new(Plugin {
        info: plugin,
        refuse,
    });
    let mut connections = JoinSet::new();
    let reason = loop {
        tokio::select! {
            Some(reason) = refused.recv() => break reason,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, server.clone(), stopped.clone()));
                }
                Err(error) => {
                    error!(err = %error, "Failed to accept a connection to the registration socket");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    };
    drop(stop);
    let _ = timeout(GRACE, connections.join_all()).await;
    reason
}

/// One client, until it leaves; from `stopped` on only to the end of the calls under way.
async fn connection(
    stream: UnixStream,
    server: RegistrationServer<Plugin>,
    mut stopped: watch::Receiver<()>,
) {
    let service = service_fn(move |request| answer(server.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(MAX_HEADER_LIST)
        .serve_connection(TokioIo::new(Admit::new(stream)), service);
    let mut connection = pin!(connection);
    // An error is the client's way to leave: the kubelet closes without waiting for our last word.
    let _ = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
}

/// The answer of gRPC servers in Go, which the kubelet's are, where tonic's differs.
async fn answer(
    mut server: RegistrationServer<Plugin>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path();
    let status = match path
        .strip_prefix('/')
        .and_then(|path| path.rsplit_once('/'))
    {
        None => Status::unimplemented(format!("malformed method name: {}", klog::quote(path))),
        Some(("pluginregistration.Registration", "GetInfo" | "NotifyRegistrationStatus")) => {
            let mut response = server.call(request).await?;
            // tonic's code for a message over the limit, which gRPC calls RESOURCE_EXHAUSTED
            if Status::from_header_map(response.headers())
                .is_some_and(|status| status.code() == Code::OutOfRange)
            {
                let limit = "grpc: received message larger than max (4194304)";
                response = Status::resource_exhausted(limit).into_http();
            }
            return Ok(response);
        }
        Some((service @ "pluginregistration.Registration", method)) => {
            Status::unimplemented(format!("unknown method {method} for service {service}"))
        }
        Some((service, _)) => Status::unimplemented(format!("unknown service {service}")),
    };
    Ok(status.into_http())
}

#[derive(Debug, Clone)]
struct Plugin {
    info: PluginInfo,
    refuse: mpsc::Sender<String>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        debug!(v = 4, request = "", "Received GetInfo call");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        info!(status = %to_text(&status), "Received NotifyRegistrationStatus call");
        if !status.plugin_registered {
            // one refusal is enough
            let _ = self.refuse.try_send(status.error);
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// In protobuf's text format.
fn to_text(status: &RegistrationStatus) -> String {
    let registered = status
        .plugin_registered
        .then(|| "plugin_registered:true".to_owned());
    let error = (!status.error.is_empty()).then(|| format!("error:{}", klog::quote(&status.error)));
    let fields: Vec<_> = registered.into_iter().chain(error).collect();
    fields.join(" ")
}
