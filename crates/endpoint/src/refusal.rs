//! Requests that are answered with a status because their handler does not run.

use starling_call::{HeaderError, MethodId, Status};

use crate::admission::NotAdmitted;
use crate::handler_panic;
use crate::stats::Stats;
use crate::workers::JobEnd;

/// Why an endpoint does not run a request.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The call header is malformed. The client is at fault.
    Malformed(HeaderError),
    /// It would be answered too late.
    NotAdmitted(NotAdmitted),
    /// No handler is registered for the method.
    UnknownMethod(MethodId),
    /// It would wait outside its handler, where too many of all, or of its client, wait already.
    WaitingFull,
}

impl Refusal {
    /// Counts the refusal; returns its status.
    #[cold]
    pub(crate) fn into_status(self, stats: &mut Stats) -> Status {
        match self {
            Self::Malformed(error) => {
                stats.malformed += 1;
                Status::invalid_argument(format!("the client's request is malformed: {error}"))
                    .with_not_run()
            }
            Self::NotAdmitted(why) => not_admitted(stats, why),
            Self::UnknownMethod(method) => {
                stats.unknown_method += 1;
                Status::unimplemented(format!(
                    "the server has no method with the id {:#010x}: add its service to the server, \
                     or use one .proto file on both ends",
                    method.0
                ))
                .with_not_run()
            }
            Self::WaitingFull => {
                stats.waiting_full += 1;
                let text = "too many requests of this client, or of all, wait in the server's \
                            handlers; the call did not run";
                Status::resource_exhausted(text).with_not_run()
            }
        }
    }
}

/// Counts a request with a deadline that is not run; returns its status.
#[cold]
fn not_admitted(stats: &mut Stats, why: NotAdmitted) -> Status {
    let status = match why {
        NotAdmitted::Expired => {
            stats.expired += 1;
            Status::deadline_exceeded("the deadline passed before the server ran the handler")
        }
        NotAdmitted::Overloaded => {
            stats.overloaded += 1;
            Status::resource_exhausted(
                "the server is asked for more than it can do in time; the call did not run",
            )
        }
    };
    status.with_not_run()
}

/// How the request of a worker's job is answered: with its body, or with a status.
pub(crate) fn result_of(end: JobEnd, stats: &mut Stats) -> Result<(), Status> {
    match end {
        JobEnd::Answered => Ok(()),
        JobEnd::Failed(status) => Err(status),
        JobEnd::Panicked => {
            stats.panics += 1;
            Err(handler_panic::status())
        }
        JobEnd::NotAdmitted(why) => Err(not_admitted(stats, why)),
        JobEnd::Cancelled => {
            stats.cancelled_in_queue += 1;
            Err(Status::cancelled("cancelled before the handler ran").with_not_run())
        }
    }
}
