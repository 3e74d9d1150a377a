//! Generates the gRPC code. protox is a protobuf compiler in Rust: no protoc is needed.

use std::env;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let protos = [
        "csi/v1/identity.proto",
        "grpc/health/v1/health.proto",
        "pluginregistration/v1/registration.proto",
    ];
    let descriptors = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto");

    // An index of the unwind tables, 34 kB, for which a static binary has no use: what a panic prints
    // its backtrace with finds the tables without.
    let static_linux = env::var("CARGO_CFG_TARGET_OS")? == "linux"
        && env::var("CARGO_CFG_TARGET_FEATURE")?.split(',').any(|feature| feature == "crt-static");
    if static_linux {
        println!("cargo::rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
    }
    Ok(())
}
