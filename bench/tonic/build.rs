//! Compiles the sample services for tonic, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../crates/sample-services/proto");
    let descriptors = protox::compile(
        ["echo.proto", "hotel.proto", "kv.proto"],
        ["../../crates/sample-services/proto"],
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
