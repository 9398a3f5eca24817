//! `kv.Kv` over Starling, as a user would call it: on generated stubs, with nothing below the crate
//! `starling`.
//!
//! | module | holds |
//! |---|---|
//! | `kv_load` | the load generator of `kv.Kv` |
//! | [`role`] | both sides of `kv.Kv` as processes |

mod kv_load;
pub mod role;

/// The name of this system in errors.
const SYSTEM: &str = "starling";

/// An error of Starling's as one of the benchmarks.
fn failed(error: impl std::fmt::Display) -> crate::BenchError {
    crate::BenchError::Call {
        system: SYSTEM,
        what: error.to_string(),
    }
}
