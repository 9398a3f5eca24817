//! Set-up, demo and tests in one command.
fn main() {}
