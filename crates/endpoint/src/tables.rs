//! The handlers and continuations of an endpoint, and the reply of the inline handler that runs.

use std::sync::Arc;

use starling_call::MethodId;
use starling_io::PacketIo;

use crate::context::{ContinuationFn, Handler, Registration};
use crate::handler_panic::Running;
use crate::methods::Methods;
use crate::server::{Abandoned, ReplySlot};
use crate::workers::{Job, WorkerMethods};

/// The handlers and continuations that arrivals run. Separate from [`Core`](crate::core::Core), so that a
/// handler can be borrowed while it uses the core.
pub(crate) struct Tables<I: PacketIo> {
    pub(crate) methods: Methods<I>,
    pub(crate) continuations: Vec<Box<ContinuationFn<I>>>,
    /// The methods that workers may claim requests of, if there are such workers.
    claimable: Option<Arc<WorkerMethods>>,
    /// The reply of the inline handler that runs, or of the one that ran last.
    pub(crate) reply: ReplySlot,
    /// Whose code is to blame if something panics now.
    pub(crate) running: Running,
    /// The method of the inline handler that ran last.
    pub(crate) last_method: MethodId,
}

impl<I: PacketIo> Tables<I> {
    pub(crate) fn new(abandoned: Arc<Abandoned>) -> Self {
        Self {
            methods: Methods::new(),
            continuations: Vec::new(),
            claimable: None,
            reply: ReplySlot::new(abandoned),
            running: Running::Endpoint,
            last_method: MethodId(0),
        }
    }

    pub(crate) fn register(&mut self, method: MethodId, handler: Handler<I>) {
        if let Some(claimable) = &self.claimable {
            claimable.set(method, handler.for_workers());
        }
        self.methods.insert(method, handler);
    }

    /// The method of the inline handler that ran last.
    pub(crate) fn last_method(&self) -> MethodId {
        self.last_method
    }

    /// The methods that run in workers, for threads that claim requests. Kept up to date.
    pub(crate) fn worker_methods(&mut self) -> Arc<WorkerMethods> {
        let claimable = Arc::new(WorkerMethods::default());
        for (method, handler) in self.methods.of_workers() {
            claimable.set(method, Some(Arc::clone(handler)));
        }
        self.claimable = Some(Arc::clone(&claimable));
        claimable
    }

    /// Records how long a worker's handler took, until its answer was taken in.
    pub(crate) fn record_run_time(&mut self, job: &Job, now_ns: u64) {
        if let Some((method, began_ns)) = job.began() {
            self.methods.record_run_time(method, began_ns, now_ns);
        }
    }

    /// Puts into the tables what a handler or the owner registered through a context.
    #[cold]
    pub(crate) fn apply(&mut self, registrations: &mut Vec<Registration<I>>) {
        for registration in registrations.drain(..) {
            match registration {
                Registration::Method(method, handler) => self.register(method, handler),
                Registration::Continuation(continuation) => self.continuations.push(continuation),
            }
        }
    }
}
