//! The server of `slow.Slow`.

use std::time::Duration;

use starling::{Request, Status};

use crate::api::slow::{Pause, PauseMut, Slow, SlowServer};

/// How long a call takes.
pub const PAUSE: Duration = Duration::from_millis(100);

/// Answers after [`PAUSE`].
#[derive(Debug)]
pub struct SlowService;

/// The service, which a server can add.
pub fn server() -> SlowServer<SlowService> {
    SlowServer::new(SlowService)
}

impl Slow for SlowService {
    fn call(&self, _: Request<'_, Pause>, _: PauseMut<'_>) -> Result<(), Status> {
        std::thread::sleep(PAUSE);
        Ok(())
    }
}
