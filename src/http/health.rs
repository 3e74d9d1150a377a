//! `/healthz`: whether the registration socket answers as this driver's.

use std::io;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, error};

use super::{Answer, Context, text};
use crate::grpc;
use crate::registration::client;
use crate::status::Registration;
use crate::sys;

/// Checks that are made at a time; each takes two ends of a connection, and memory for them.
pub(super) const MAX_CHECKS: usize = 8;

enum Fault {
    /// There is no file at the path.
    Absent,
    Unhealthy(String),
}

/// Asks over a new connection, as the kubelet would, within the time limit.
pub(super) async fn answer(context: &Context) -> Answer {
    match check(context).await {
        Ok(()) => {
            debug!(v = 5, "Health check succeeded");
            text(StatusCode::OK, "ok")
        }
        Err(Fault::Absent) => {
            let reason = "registration socket does not exist";
            error!("Health check failed, {reason}");
            text(StatusCode::NOT_FOUND, reason)
        }
        Err(Fault::Unhealthy(reason)) => {
            error!(err = %reason, "Health check failed");
            text(StatusCode::INTERNAL_SERVER_ERROR, reason)
        }
    }
}

async fn check(context: &Context) -> Result<(), Fault> {
    let end = Instant::now() + context.timeout;
    let registration = context.status.borrow().registration.clone();
    let Registration { driver_name, path } = registration.ok_or(Fault::Absent)?;
    let _turn = timeout_at(end, context.checks.acquire()).await.map_err(|_| {
        Fault::Unhealthy(format!("{MAX_CHECKS} earlier checks of {path} are not answered"))
    })?;
    match sys::metadata(&path) {
        Ok(file) if sys::is_socket(&file) => {}
        Ok(file) => {
            let kind = sys::a_kind_of_file(&file);
            return Err(Fault::Unhealthy(format!("{path} is {kind}, not a socket")));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Fault::Absent),
        Err(error) => {
            let reason = sys::reason(&error).to_lowercase();
            return Err(Fault::Unhealthy(format!(
                "failed to stat the socket {path} with error: stat {path}: {reason}"
            )));
        }
    }
    // In whole milliseconds, since reasons quote it.
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        Duration::from_secs_f64((left.as_secs_f64() * 1e3).ceil() / 1e3)
    };
    let channel = client::connect(&path, left()).await.map_err(|reason| {
        Fault::Unhealthy(format!("error connecting to node-registrar socket {path}: {reason}"))
    })?;
    debug!(v = 4, "Calling node registrar to check if it still responds");
    let info = client::get_info(channel, left()).await.map_err(|status| {
        let status = grpc::in_words(&status);
        Fault::Unhealthy(format!("error getting info from node-registrar socket: {status}"))
    })?;
    match info.name == driver_name {
        true => Ok(()),
        false => Err(Fault::Unhealthy(format!("invalid driver name {}", info.name))),
    }
}
