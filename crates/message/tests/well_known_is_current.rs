//! The checked-in code of the well-known types equals the code that `starling-build` generates now.
//! To regenerate it: `STARLING_REGENERATE=1 cargo test -p starling-message --test well_known_is_current`.

use std::path::Path;

#[test]
fn the_generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = starling_build::Config::new()
        .runtime_path("crate")
        .compile_well_known_types(true)
        .generate(
            &[root.join("proto/well_known.proto")],
            &[root.join("proto")],
        )
        .expect("the .proto compiles");
    let made = files
        .iter()
        .find(|file| file.name == "google.protobuf.rs")
        .expect("one file for the package");
    let path = root.join("src/well_known/generated.rs");
    if std::env::var_os("STARLING_REGENERATE").is_some() {
        std::fs::write(&path, &made.content).expect("writable");
    }
    let kept = std::fs::read(&path).expect("checked in");
    assert!(kept == made.content, "{} is out of date", path.display());
}
