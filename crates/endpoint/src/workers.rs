//! Worker handlers: requests that leave the dispatch thread.
//!
//! ```text
//!  dispatch thread                                      worker threads
//!  request ─▶ copied into a recycled buffer ─▶ submit ─▶ mailbox of a worker ─▶ Job::run ─┐
//!  respond ◀─ poll ◀──────────────── the job's slot in that mailbox ◀─────── wake ◀───────┘
//! ```
//!
//! A [`Dispatch`] decides which worker gets a job, and in what order. [`ThreadPool`] is the usual
//! one: it gives jobs to its threads by the policy in [`crate::jbsq`]. In [`SteeredPool`] the
//! device itself gives plain requests to the threads.

mod callers;
mod dispatch;
mod idle_policy;
mod job;
mod match_table;
mod pool;
mod request;
mod steered;
mod thread;
mod worker_methods;

pub use self::dispatch::{Dispatch, WorkersReport};
pub(crate) use self::job::JobEnd;
pub use self::job::{Job, WorkerHandler};
pub(crate) use self::match_table::MATCH_TABLE;
pub use self::pool::ThreadPool;
pub(crate) use self::request::of_worker_fn;
pub use self::request::{WorkerReply, WorkerRequest};
pub(crate) use self::steered::SteeredPool;
pub(crate) use self::worker_methods::WorkerMethods;
