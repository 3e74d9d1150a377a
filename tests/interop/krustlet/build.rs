//! Generates the driver's side of CSI's Identity service from the registrar's own file.

const PROTOS: &str = "../../../proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["csi/v1/identity.proto"], [PROTOS])?;
    tonic_prost_build::configure()
        .build_client(false)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed={PROTOS}/csi");
    Ok(())
}
