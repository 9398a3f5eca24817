//! Worker threads.

use std::thread::JoinHandle;

use starling_io::{Fault, IoError};

/// Starts the thread of worker `index`.
pub(super) fn start_thread(
    index: usize,
    work: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, IoError> {
    let thread = std::thread::Builder::new().name(format!("starling-worker-{index}"));
    thread.spawn(work).map_err(|error| {
        let remedy = "raise the limit on threads, or have fewer workers";
        IoError::from_os(Fault::Host, "start worker threads", error, remedy)
    })
}
