//! The services that `starling serve` offers and the benchmarks call. They use generated stubs and
//! the crate `starling`, as a user's service does, and no crate below it.
//!
//! | module | holds |
//! |---|---|
//! | [`echo`] | the servers of `bench.Echo` and, for benchmarks only, `bench.NestedEcho` |
//! | [`hotel`] | the server of `hotel.Reservation`, for benchmarks only |
//! | [`kv`] | the server of `kv.Kv`, and its store |
//! | [`slow`] | the server of `slow.Slow`, for benchmarks only |

pub mod echo;
pub mod hotel;
pub mod kv;
pub mod slow;

/// The stubs that build.rs makes.
pub mod api {
    /// Package `bench`.
    pub mod bench {
        starling::include_proto!("bench");
    }
    /// Package `hotel`.
    pub mod hotel {
        starling::include_proto!("hotel");
    }
    /// Package `kv`.
    pub mod kv {
        starling::include_proto!("kv");
    }
    /// Package `slow`.
    pub mod slow {
        starling::include_proto!("slow");
    }
}
