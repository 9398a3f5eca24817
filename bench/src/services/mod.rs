//! The benchmarks' services as a user of Starling would write them: on stubs generated from
//! `proto/`, with nothing below the crate `starling` in sight.
//!
//! | module | holds |
//! |---|---|
//! | [`echo`] | the server of `bench.Echo` |
//! | [`kv`] | the server of `kv.Kv`, on [`crate::kv::Store`] |
//! | `kv_load` | the load generator of `kv.Kv` |
//! | [`role`] | both sides of `kv.Kv` as processes |

pub mod echo;
pub mod kv;
mod kv_load;
pub mod role;

/// Stubs made by build.rs.
pub mod api {
    /// Package `bench`.
    pub mod bench {
        starling::include_proto!("bench");
    }
    /// Package `kv`.
    pub mod kv {
        starling::include_proto!("kv");
    }
}

/// The name of this system in errors.
const SYSTEM: &str = "starling";

/// An error of Starling's as one of the benchmarks.
fn failed(error: impl std::fmt::Display) -> crate::BenchError {
    crate::BenchError::Call {
        system: SYSTEM,
        what: error.to_string(),
    }
}
