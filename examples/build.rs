//! Compiles the examples' `.proto` files.

fn main() -> Result<(), starling_build::Error> {
    starling_build::compile(&["proto/hello.proto", "proto/primes.proto"], &["proto"])
}
