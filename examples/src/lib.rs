//! The examples are in the folder above: `cargo run --example hello`, `worker`, `nested`, `threads`,
//! `tokio`. Each starts its own server, makes its calls and ends.
