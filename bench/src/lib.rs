//! Benchmarks of Starling, of the floor below it, and of other systems.
//!
//! A *suite* answers one question, such as how long a call takes or how many calls complete in a
//! second, with several [`Benchmark`]s: Starling on each device; the *floor* of each device, which
//! is the least that any program could pay for the same exchange; and systems that people use
//! today. Their repetitions are interleaved (A B C, A B C, ...), because the speed of a virtual
//! machine changes from one second to the next. A figure is the median of its repetitions, and only
//! figures of one run are compared.
//!
//! ```text
//!  this process, core 0                              child process, core 1
//!  ┌───────────────────────┐   start: role, args     ┌──────────────────────┐
//!  │ runner: repetitions   │ ──────────────────────▶ │ the same program,    │
//!  │   benchmark: client   │ ◀─── "ready ADDRESS" ── │ `starling role ROLE` │
//!  │                       │ ◀═══ the exchange ════▶ │                      │
//!  └───────────────────────┘   stdin closes: exit    └──────────────────────┘
//! ```
//!
//! Servers are processes of their own, as in real use: they share no allocator, scheduler or page
//! tables with the client, and a server's processor time is counted as the server's. The program
//! starts *itself* as the server, so there is one binary to build and both ends have the same
//! version. The floors of shared memory are the exception: two threads over one allocation. Mapping
//! memory between processes takes `unsafe` code, which this package has none of, and costs the
//! exchange itself nothing.
//!
//! A server lives for one repetition of one benchmark. Nothing that another benchmark left behind,
//! such as a spinning thread or a full socket, disturbs it.
//!
//! | module | holds |
//! |---|---|
//! | [`suite`], [`benchmarks`] | the questions, and the benchmarks that answer them |
//! | [`benchmark`], [`runner`], [`selection`] | one benchmark; running many of them; `--only` |
//! | [`metric`], [`row`], [`table`] | figures, for programs and for people |
//! | [`process`], [`roles`], [`pin`] | servers and load generators as processes, and their cores |
//! | [`floor`], [`placement`] | the least that an exchange costs; how far apart the cores are |
//! | [`endpoint`], `device`, [`breakdown`], `slo` | benchmarks of Starling's endpoint |
//! | `channel`, [`streams`], [`callers`] | benchmarks of what users take, and the threads and tasks that make its calls |
//! | `observe` | what metrics and traces cost |
//! | [`managed`] | what it costs that a service makes the calls |
//! | [`policies`], [`timeline`] | what policies of a service cost, and their changes; those as they come |
//! | [`kv`] | the load of the key-value demo: Zipf keys, YCSB workloads, the model that checks answers |
//! | [`veth`] | benchmarks between two network namespaces |

pub mod benchmark;
pub mod benchmarks;
pub mod breakdown;
pub mod callers;
mod channel;
mod device;
pub mod endpoint;
pub mod error;
pub mod floor;
pub mod kv;
pub mod latency;
pub mod managed;
pub mod metric;
mod observe;
pub mod pin;
pub mod placement;
pub mod policies;
pub mod process;
pub mod roles;
pub mod row;
pub mod runner;
pub mod selection;
mod slo;
pub mod streams;
pub mod suite;
pub mod table;
pub mod timeline;
pub mod veth;

pub use benchmark::{Benchmark, Context};
pub use error::BenchError;
pub use metric::{Metric, Sample};
pub use row::Row;
pub use suite::Suite;
