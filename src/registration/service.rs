//! What is answered on the registration socket, to the kubelet and to those who ask after the
//! registration.

use std::convert::Infallible;

use hyper::body::Incoming;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;
use tracing::{debug, info};

use crate::grpc;
use crate::klog;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::{Health, HealthServer};
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};
use crate::proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::status::Publisher;

/// The name of the service that the kubelet calls, on the wire.
pub(super) const SERVICE: &str = "pluginregistration.Registration";
const HEALTH: &str = "grpc.health.v1.Health";
/// In the answer to a health check that is not SERVING: why, in one line.
pub(super) const REASON: &str = "reason";

/// Chooses the kubelet's CSI handler.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The version of the registration protocol between the kubelet and a CSI driver, not of CSI
/// itself. Krustlet compares it to the letter.
const SUPPORTED_VERSION: &str = "1.0.0";

/// The answer of gRPC servers in Go, which the kubelet's are, where tonic's differs.
pub(super) async fn answer(
    plugin: Plugin,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    // To gRPC a question mark is a letter of the method's name.
    let path = request.uri().path_and_query().map_or("", |path| path.as_str());
    let status = match path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) {
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

/// The driver as the kubelet is told of it, over one connection.
#[derive(Debug, Clone)]
pub(super) struct Plugin {
    info: PluginInfo,
    /// Of which bind the socket is that the client came over.
    bind: u64,
    status: Publisher,
}

impl Plugin {
    pub(super) fn new(driver_name: &str, endpoint: &str, status: &Publisher) -> Self {
        let info = PluginInfo {
            r#type: PLUGIN_TYPE.into(),
            name: driver_name.into(),
            endpoint: endpoint.into(),
            supported_versions: vec![SUPPORTED_VERSION.into()],
        };
        Self { info, bind: status.borrow().counts.socket_binds, status: status.clone() }
    }
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
        self.status.send_modify(|status| status.notified(self.bind, outcome));
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
        let mut response = Response::new(HealthCheckResponse { status: health.into() });
        if let Some(reason) = reason.and_then(|reason| MetadataValue::try_from(reason).ok()) {
            response.metadata_mut().insert(REASON, reason);
        }
        Ok(response)
    }
}

/// In protobuf's text format.
fn to_text(status: &RegistrationStatus) -> String {
    let registered = status.plugin_registered.then(|| "plugin_registered:true".to_owned());
    let error = (!status.error.is_empty()).then(|| format!("error:{}", klog::quote(&status.error)));
    let fields: Vec<_> = registered.into_iter().chain(error).collect();
    fields.join(" ")
}
