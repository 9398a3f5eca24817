//! Compiles the benchmarks' services for tonic, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../proto");
    let descriptors = protox::compile(["echo.proto", "kv.proto"], ["../proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
