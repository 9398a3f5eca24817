//! Compiles the examples' `.proto` files.

fn main() -> Result<(), starling_build::Error> {
    let protos = [
        "proto/chat.proto",
        "proto/hello.proto",
        "proto/primes.proto",
    ];
    starling_build::compile(&protos, &["proto"])
}
