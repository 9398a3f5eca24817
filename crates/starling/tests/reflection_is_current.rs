//! The checked-in reflection code equals the code that `starling-build` generates from its `.proto`.
//! To regenerate it: `STARLING_REGENERATE=1 cargo test -p starling --test reflection_is_current`.

use std::path::Path;

#[test]
fn the_reflection_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = starling_build::Config::new()
        .runtime_path("crate::stub")
        .generate(
            &[root.join("proto/starling/reflection.proto")],
            &[root.join("proto")],
        )
        .expect("the .proto compiles");
    for (name, kept) in [
        ("starling.reflection.rs", "generated.rs"),
        ("starling.reflection.fds", "starling.reflection.fds"),
    ] {
        let made = files
            .iter()
            .find(|file| file.name == name)
            .expect("one file for the package");
        let path = root.join("src/reflection").join(kept);
        if std::env::var_os("STARLING_REGENERATE").is_some() {
            std::fs::write(&path, &made.content).expect("writable");
        }
        let kept = std::fs::read(&path).expect("checked in");
        assert!(kept == made.content, "{} is out of date", path.display());
    }
}
