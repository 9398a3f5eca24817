//! Compiles the sample services for Starling.

fn main() -> Result<(), starling_build::Error> {
    starling_build::compile(
        &[
            "proto/echo.proto",
            "proto/hotel.proto",
            "proto/kv.proto",
            "proto/nested.proto",
            "proto/slow.proto",
        ],
        &["proto"],
    )
}
