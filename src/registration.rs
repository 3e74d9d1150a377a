//! The server's end of the registration socket: answers the kubelet, and those who ask after the
//! registration.

pub(crate) mod client;

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;
use tracing::{debug, error, info};

use crate::authority::Admit;
use crate::grpc;
use crate::klog;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::{Health, HealthServer};
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};
use crate::proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::status::{Kubelet, Publisher};
use crate::sys::{UnixListener, UnixStream};

/// The name of the service that the kubelet calls, on the wire.
pub(crate) const SERVICE: &str = "pluginregistration.Registration";
const HEALTH: &str = "grpc.health.v1.Health";
/// In the answer to a health check that is not SERVING: why, in one line.
pub(crate) const REASON: &str = "reason";

/// Chooses the kubelet's CSI handler.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The version of the registration protocol between the kubelet and a CSI driver, not of CSI
/// itself. Krustlet compares it to the letter.
const SUPPORTED_VERSION: &str = "1.0.0";
/// Header lists of up to 16 KiB are accepted; h2 refuses one of exactly its limit, and the
/// authority may have grown by a few bytes on the way to it.
const MAX_HEADER_LIST: u32 = 16 * 1024 + 64;
/// How long answers that are on their way may take once the kubelet has refused.
const GRACE: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves until the kubelet refuses the driver, and returns the kubelet's reason. The refusing
/// call has been answered by then.
pub(crate) async fn serve(
    listener: &UnixListener,
    driver_name: &str,
    endpoint: &str,
    status: &Publisher,
) -> String {
    let plugin = Plugin {
        info: PluginInfo {
            r#type: PLUGIN_TYPE.into(),
            name: driver_name.into(),
            endpoint: endpoint.into(),
            supported_versions: vec![SUPPORTED_VERSION.into()],
        },
        status: status.clone(),
    };
    let mut changes = status.subscribe();
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let reason = loop {
        tokio::select! {
            reason = refusal(&mut changes) => break reason,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, plugin.clone(), stopped.clone()));
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

async fn refusal(changes: &mut watch::Receiver<crate::status::Status>) -> String {
    loop {
        if let Kubelet::Refused(reason) = &changes.borrow_and_update().kubelet {
            return reason.clone();
        }
        changes
            .changed()
            .await
            .expect("the publisher outlives the server");
    }
}

/// One client, until it leaves; from `stopped` on only to the end of the calls under way.
async fn connection(stream: UnixStream, plugin: Plugin, mut stopped: watch::Receiver<()>) {
    let service = service_fn(move |request| answer(plugin.clone(), request));
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
    plugin: Plugin,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path();
    let status = match path
        .strip_prefix('/')
        .and_then(|path| path.rsplit_once('/'))
    {
        None => Status::unimplemented(format!("malformed method name: {}", klog::quote(path))),
        Some((SERVICE, "GetInfo" | "NotifyRegistrationStatus")) => {
            let response = RegistrationServer::new(plugin).call(request).await?;
            return Ok(with_gos_code(response));
        }
        Some((HEALTH, "Check")) => {
            let response = HealthServer::new(plugin).call(request).await?;
            return Ok(with_gos_code(response));
        }
        Some((service @ (SERVICE | HEALTH), method)) => {
            Status::unimplemented(format!("unknown method {method} for service {service}"))
        }
        Some((service, _)) => Status::unimplemented(format!("unknown service {service}")),
    };
    Ok(status.into_http())
}

/// tonic has another code for a message over the limit, which gRPC calls RESOURCE_EXHAUSTED.
fn with_gos_code(response: http::Response<Body>) -> http::Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::OutOfRange => {
            let limit = "grpc: received message larger than max (4194304)";
            Status::resource_exhausted(limit).into_http()
        }
        _ => response,
    }
}

#[derive(Debug, Clone)]
struct Plugin {
    info: PluginInfo,
    status: Publisher,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(
        &self,
        request: Request<InfoRequest>,
    ) -> Result<Response<PluginInfo>, Status> {
        debug!(v = 4, request = "", "Received GetInfo call");
        let caller = request.metadata().get("user-agent");
        if caller.is_none_or(|caller| caller != grpc::OURSELVES) {
            self.status.send_modify(|status| status.called());
        }
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let notice = request.into_inner();
        info!(status = %to_text(&notice), "Received NotifyRegistrationStatus call");
        let outcome = match notice.plugin_registered {
            true => Ok(()),
            false => Err(notice.error),
        };
        self.status.send_modify(|status| status.notified(outcome));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Health for Plugin {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let registered = self.status.borrow().ready();
        let (health, reason) = match (request.get_ref().service.as_str(), registered) {
            ("", _) | (SERVICE, Ok(())) => (ServingStatus::Serving, None),
            (SERVICE, Err(reason)) => (ServingStatus::NotServing, Some(reason)),
            (service, _) => return Err(Status::not_found(format!("unknown service {service}"))),
        };
        let mut response = Response::new(HealthCheckResponse {
            status: health.into(),
        });
        if let Some(reason) = reason.and_then(|reason| MetadataValue::try_from(reason).ok()) {
            response.metadata_mut().insert(REASON, reason);
        }
        Ok(response)
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
