//! Counters of one endpoint. Plain integers: one thread writes and reads them.

/// Counters of an endpoint since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of the event loop.
    pub turns: u64,
    /// Datagrams received.
    pub datagrams: u64,
    /// Datagrams that the session protocol refused.
    pub bad_datagrams: u64,
    /// Calls made.
    pub calls: u64,
    /// Calls that ended, in any way.
    pub completions: u64,
    /// Calls that ended because their deadline passed.
    pub deadline_exceeded: u64,
    /// Calls that were cancelled here.
    pub cancelled: u64,
    /// Requests that arrived, each once.
    pub requests: u64,
    /// Those among them that workers claimed by themselves.
    pub claimed: u64,
    /// Answers handed to the session protocol.
    pub responses: u64,
    /// Answers whose client no longer waited.
    pub stale_responses: u64,
    /// Requests whose deadline had passed before their handler ran; it did not run.
    pub expired: u64,
    /// Requests refused because too many came to answer all of them before their deadlines; they
    /// did not run.
    pub overloaded: u64,
    /// Requests that were cancelled while they waited for a worker or for their client's share of the time;
    /// they did not run.
    pub cancelled_in_queue: u64,
    /// Requests that waited while others were handled, because handlers are slow and their client had used
    /// its share of the time.
    pub waited_for_share: u64,
    /// Requests for methods that are not registered.
    pub unknown_method: u64,
    /// Messages with a malformed call header.
    pub malformed: u64,
    /// Requests refused because the workers' queue was full, or their client had its share of it.
    pub workers_full: u64,
    /// Requests refused because too many of all, or of their client, waited outside their handlers:
    /// deferred, or in workers ([`EndpointConfig::max_waiting`](crate::EndpointConfig::max_waiting)).
    pub waiting_full: u64,
    /// Requests refused because the endpoint was shutting down.
    pub refused_draining: u64,
    /// Deferred replies that were dropped without an answer.
    pub abandoned: u64,
    /// Panics of handlers and of spawned futures.
    pub panics: u64,
    /// Turns of 50 ms and more: a handler held up the thread, and all its clients.
    pub stalls: u64,
    /// Client sessions that ended, in any way; [`SessionState`](crate::SessionState) has the
    /// reason.
    pub sessions_ended: u64,
    /// Client sessions whose server began to shut down.
    pub sessions_draining: u64,
}

impl Stats {
    /// Requests, answers and ends of calls.
    pub(crate) fn handled(&self) -> u64 {
        self.requests + self.responses + self.completions
    }

    /// All counts, by the names of the fields.
    pub fn counts(&self) -> [(&'static str, u64); 25] {
        macro_rules! named {
            ($($field:ident),*) => {{
                let Self { $($field),* } = *self;
                [$((stringify!($field), $field)),*]
            }};
        }
        named!(
            turns,
            datagrams,
            bad_datagrams,
            calls,
            completions,
            deadline_exceeded,
            cancelled,
            requests,
            claimed,
            responses,
            stale_responses,
            expired,
            overloaded,
            cancelled_in_queue,
            waited_for_share,
            unknown_method,
            malformed,
            workers_full,
            waiting_full,
            refused_draining,
            abandoned,
            panics,
            stalls,
            sessions_ended,
            sessions_draining
        )
    }
}

/// Counters of one turn of the event loop; [`Stats`] has more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Datagrams received.
    pub datagrams: u32,
    /// Whatever else was done: workers' answers taken in, calls ended without a response, futures
    /// polled, session and device events handled.
    pub events: u32,
}

impl Turn {
    /// Whether nothing was done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.datagrams | self.events == 0
    }
}
