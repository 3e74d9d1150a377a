//! The generated messages and services, a module a protobuf package.

/// The CSI driver's side; the server half is the tests'.
#[allow(dead_code, unreachable_pub, clippy::all, reason = "it is generated")]
pub(crate) mod csi {
    include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
}

/// Health checking, on the registration socket.
#[allow(dead_code, unreachable_pub, clippy::all, reason = "it is generated")]
pub(crate) mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The kubelet's side; the client half is for health checks.
#[allow(dead_code, unreachable_pub, clippy::all, reason = "it is generated")]
pub(crate) mod pluginregistration {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
}
