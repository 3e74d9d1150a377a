//! Generates the gRPC code. protox is a protobuf compiler in Rust: no protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
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
    Ok(())
}
