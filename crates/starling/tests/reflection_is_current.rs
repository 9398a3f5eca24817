//! The checked-in code of messages and services that come with the crate equals the code that `starling-build`
//! generates from their `.proto` files.
//! To regenerate it: `STARLING_REGENERATE=1 cargo test -p starling --test reflection_is_current`.

use std::path::Path;

/// Generates a package from one `.proto` file, and compares it with what is kept in `src`.
fn check(proto: &str, package: &str, module: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = starling_build::Config::new()
        .runtime_path("crate::stub")
        .generate(&[root.join("proto").join(proto)], &[root.join("proto")])
        .expect("the .proto compiles");
    let (code, descriptors) = (format!("{package}.rs"), format!("{package}.fds"));
    for (name, kept) in [(&code, "generated.rs"), (&descriptors, &descriptors)] {
        let Some(made) = files.iter().find(|file| file.name == *name) else {
            assert!(*name != code, "one file for the package");
            // There is no service to describe.
            continue;
        };
        let path = root.join("src").join(module).join(kept);
        if std::env::var_os("STARLING_REGENERATE").is_some() {
            std::fs::write(&path, &made.content).expect("writable");
        }
        let kept = std::fs::read(&path).expect("checked in");
        assert!(kept == made.content, "{} is out of date", path.display());
    }
}

#[test]
fn the_reflection_code_is_current() {
    let proto = "starling/reflection.proto";
    check(proto, "starling.reflection", "reflection");
}

#[test]
fn the_code_of_the_details_of_a_status_is_current() {
    check("google/rpc/status.proto", "google.rpc", "details");
}

#[test]
fn the_health_code_is_current() {
    check("grpc/health/v1/health.proto", "grpc.health.v1", "health");
}

#[test]
fn the_control_code_is_current() {
    check("starling/control.proto", "starling.control", "managed");
}

#[test]
fn the_introspection_code_is_current() {
    let proto = "starling/introspection.proto";
    check(proto, "starling.introspection", "introspection");
}
