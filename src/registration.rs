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
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;
use tracing::{debug, error, info, warn};

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
use crate::socket::Socket;
use crate::status::{self, Kubelet, Publisher};
use crate::sys::{Hangups, UnixStream};

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
/// A registration is two calls, one after the other, on one connection.
const MAX_CONNECTIONS: usize = 128;
const MAX_STREAMS: u32 = 32;
const MAX_AGE: Duration = Duration::from_secs(600);
/// How long the kubelet may keep silent about a new socket.
const PATIENCE: [Duration; 4] = [
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(300),
];
const UNHEARD: &str = "the registry directory has to be plugins_registry below the kubelet's \
    --root-dir, mounted from the host; the kubelet has to run, and to have inotify watches left";
/// How long answers that are on their way may take once the kubelet has refused.
const GRACE: Duration = Duration::from_secs(1);
/// The pause after a connection could not be accepted, as when descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves until the kubelet refuses the driver, and returns the kubelet's reason. The refusing
/// call has been answered by then.
pub(crate) async fn serve(
    socket: &mut Socket,
    driver_name: &str,
    endpoint: &str,
    hangups: &mut Hangups,
    status: &Publisher,
) -> String {
    let info = PluginInfo {
        r#type: PLUGIN_TYPE.into(),
        name: driver_name.into(),
        endpoint: endpoint.into(),
        supported_versions: vec![SUPPORTED_VERSION.into()],
    };
    let mut kubelet = Listening::to(status);
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let reason = loop {
        let room = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            turn = kubelet.next() => match turn {
                Turn::Refused(reason) => break reason,
                Turn::Unheard(time) => {
                    warn!(
                        time = ?time, check = UNHEARD,
                        "The kubelet has not called, offering the registration socket again"
                    );
                    socket.offer_again();
                }
            },
            () = hangups.next() => {
                info!("SIGHUP, offering the registration socket again");
                socket.offer_again();
            }
            () = socket.disturbed() => socket.look(),
            accepted = socket.accept(), if room => match accepted {
                Ok(stream) => {
                    let plugin = Plugin {
                        info: info.clone(),
                        bind: status.borrow().counts.socket_binds,
                        status: status.clone(),
                    };
                    connections.spawn(connection(stream, plugin, stopped.clone()));
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

/// What the kubelet's silence or words lead to.
enum Turn {
    Refused(String),
    /// It has not called for so long.
    Unheard(Duration),
}

struct Listening {
    changes: watch::Receiver<status::Status>,
    /// How often the socket was offered again in vain.
    unheard: usize,
    /// When it was last told of.
    told: Instant,
}

impl Listening {
    fn to(status: &Publisher) -> Self {
        Self {
            changes: status.subscribe(),
            unheard: 0,
            told: Instant::now(),
        }
    }

    async fn next(&mut self) -> Turn {
        loop {
            let since = {
                let status = self.changes.borrow_and_update();
                if let Kubelet::Refused(reason) = &status.kubelet {
                    return Turn::Refused(reason.clone());
                }
                if status.kubelet != Kubelet::Silent {
                    self.unheard = 0;
                }
                status.unheard_since()
            };
            let patience = PATIENCE[self.unheard.min(PATIENCE.len() - 1)];
            // What could not be offered again has waited since it was told of.
            let end = since.map(|since| since.max(self.told) + patience);
            tokio::select! {
                _ = self.changes.changed() => {}
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => {
                    self.unheard += 1;
                    self.told = Instant::now();
                    return Turn::Unheard(patience);
                }
            }
        }
    }
}

/// One client, until it leaves, is too old or `stopped`; then only to the end of its calls.
async fn connection(stream: UnixStream, plugin: Plugin, mut stopped: watch::Receiver<()>) {
    let service = service_fn(move |request| answer(plugin.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_STREAMS)
        .serve_connection(TokioIo::new(Admit::new(stream)), service);
    let mut connection = pin!(connection);
    // An error is the client's way to leave: the kubelet closes without waiting for our last word.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(MAX_AGE) => {}
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await;
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
    /// Of which bind the socket is that the client came over.
    bind: u64,
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
            self.status.send_modify(|status| status.called(self.bind));
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
        self.status
            .send_modify(|status| status.notified(self.bind, outcome));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds after which a silent kubelet is told of, five times.
    async fn pauses(status: &Publisher, offered_again: impl Fn()) -> Vec<u64> {
        let mut kubelet = Listening::to(status);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            let since = Instant::now();
            assert!(matches!(kubelet.next().await, Turn::Unheard(_)));
            pauses.push(since.elapsed().as_secs());
            offered_again();
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn waits_longer_each_time_whether_or_not_the_socket_could_be_offered_again() {
        let status = Publisher::default();
        status.send_modify(status::Status::bound);
        let again = || status.send_modify(status::Status::bound);
        assert_eq!(pauses(&status, again).await, [30, 60, 120, 300, 300]);
        assert_eq!(pauses(&status, || {}).await, [30, 60, 120, 300, 300]);
    }
}
