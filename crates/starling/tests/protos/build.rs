//! Compiles the tests' `.proto` files; three versions of one service apart from each other.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = ["blocking", "calendar", "hello", "streams", "target", "test"]
        .map(|name| format!("proto/{name}.proto"));
    starling_build::compile(&protos, &["proto"])?;
    for version in ["v1", "v2", "v3"] {
        let out = PathBuf::from(std::env::var("OUT_DIR")?).join(version);
        std::fs::create_dir_all(&out)?;
        let directory = PathBuf::from("proto").join(version);
        starling_build::Config::new()
            .out_dir(out)
            .compile(&[directory.join("store.proto")], &[directory])?;
    }
    Ok(())
}
