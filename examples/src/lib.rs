//! The examples are beside this directory: `cargo run --example hello`, `worker`, `nested`,
//! `threads`, `tokio`. Each starts its own server, makes its calls and ends.
