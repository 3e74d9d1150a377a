//! The client's end of a registration socket, for health checks and the probe.

use std::time::Duration;

use http::Uri;
use tonic::{Request, Status};
use tracing::debug;

use super::service::{REASON, SERVICE};
use crate::grpc::{self, Channel, Fields};
use crate::klog::json_string;
use crate::proto::health::HealthCheckRequest;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_client::HealthClient;
use crate::proto::pluginregistration::PluginInfo;
use crate::proto::pluginregistration::registration_client::RegistrationClient;
use crate::sys;

/// Connects and waits up to `limit` for the server to be heard. The error is the reason in words.
pub(crate) async fn connect(path: &str, limit: Duration) -> Result<Channel, String> {
    debug!(v = 4, socketfile = path, "Attempting to open a gRPC connection");
    debug!(v = 5, address = format!("unix://{path}"), "Connecting");
    let stream = sys::connect(path).await.map_err(|e| sys::reason(&e))?;
    let channel = Channel::open(Box::new(stream), limit).await;
    channel.map_err(|reason| reason.to_string())
}

/// What the kubelet is told by the server.
pub(crate) async fn get_info(channel: Channel, limit: Duration) -> Result<PluginInfo, Status> {
    let mut client = RegistrationClient::with_origin(channel, origin());
    let method = "/pluginregistration.Registration/GetInfo";
    let call = async |request| client.get_info(request).await;
    grpc::call(method, limit, call, fields).await
}

/// Whether the kubelet has confirmed the registration; the error is the reason why not, in words.
pub(crate) async fn is_registered(channel: Channel) -> Result<(), String> {
    let mut client = HealthClient::with_origin(channel, origin());
    let request = Request::new(HealthCheckRequest { service: SERVICE.into() });
    let response = client.check(request).await.map_err(|status| grpc::in_words(&status))?;
    match response.get_ref().status() {
        ServingStatus::Serving => Ok(()),
        status => {
            let reason = response.metadata().get(REASON);
            let reason = reason.and_then(|reason| reason.to_str().ok());
            Err(reason.unwrap_or(status.as_str_name()).into())
        }
    }
}

fn origin() -> Uri {
    Uri::from_static("http://localhost")
}

fn fields(info: &PluginInfo) -> Fields {
    let versions = info.supported_versions.iter();
    let versions: Vec<_> = versions.map(|version| json_string(version)).collect();
    vec![
        ("endpoint", json_string(&info.endpoint)),
        ("name", json_string(&info.name)),
        ("supported_versions", format!("[{}]", versions.join(","))),
        ("type", json_string(&info.r#type)),
    ]
}
