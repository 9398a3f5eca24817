//! Counters of an endpoint's protocol. Plain numbers: one thread owns them.

/// How many sessions and slots wait for the next turn, for checkers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// Client sessions that found the sink full.
    pub client_blocked: usize,
    /// Slots of client sessions with a request for response (RFR) to send.
    pub client_rfrs: usize,
    /// Server sessions that found the sink full.
    pub server_blocked: usize,
    /// Slots of server sessions with a credit return (CR) to send.
    pub server_credit_returns: usize,
}

/// Counters since the endpoint started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams dropped whole: malformed, of another version, stale, or from unknown peers.
    pub datagrams_dropped: u64,
    /// Datagrams of which a malformed rest was dropped.
    pub frames_malformed: u64,
    /// Frames that named no session, an old request, or an impossible state.
    pub frames_stale: u64,
    /// Client: requests sent, each once.
    pub requests_sent: u64,
    /// Client: responses handed over.
    pub responses_received: u64,
    /// Client: requests, fragments and requests for response sent again.
    pub retransmissions: u64,
    /// Client: answers that reported congestion marks.
    pub marks: u64,
    /// Server: requests handed to handlers.
    pub requests_received: u64,
    /// Server: requests that arrived again, and were not run again.
    pub duplicates: u64,
    /// Server: requests that a handler ran when a later one took their slot.
    pub requests_displaced: u64,
    /// Server: cancellations that came before their requests.
    pub cancels_early: u64,
    /// Server: responses sent, each once.
    pub responses_sent: u64,
    /// Server: responses that no client waited for any more.
    pub responses_unwanted: u64,
    /// Server: requests that came to a slot in the turn in which its last request came.
    pub slots_overrun: u64,
    /// Server: datagrams to unknown peers that were not sent because there were too many.
    pub answers_suppressed: u64,
    /// Server: sessions that gave way to those of clients with fewer.
    pub sessions_evicted: u64,
    /// Server: kept responses that were dropped because the memory for them was used up.
    pub responses_evicted: u64,
    /// Server: how often a client was told that the response that it asked for is no longer kept.
    pub responses_expired: u64,
    /// Frames that found the sink full and were offered again.
    pub sink_full: u64,
    /// Server: sessions refused.
    pub sessions_refused: u64,
    /// Server: connects answered with a challenge, which cost no memory.
    pub challenges: u64,
    /// Server: credits taken back from idle sessions to give them to busy ones.
    pub credits_revoked: u64,
    /// Client: resets that all sessions were searched for.
    pub resets_searched: u64,
    /// Client: sessions that ended because their server did not know them.
    pub sessions_unknown: u64,
    /// Client: sessions that ended because their server did not know this endpoint.
    pub sessions_forgotten: u64,
    /// Client: sessions that ended because their server was restarted.
    pub sessions_restarted: u64,
    /// Client: sessions that ended because their server shut down.
    pub sessions_shut_down: u64,
    /// Sessions opened at a place of the table that another one had before, client and server.
    pub places_reused: u64,
    /// Client: sessions opened because requests waited for slow ones.
    pub sessions_added: u64,
    /// Peers found dead.
    pub peers_failed: u64,
    /// Datagrams that only asked whether this end lives, or said so of the other one.
    pub keepalives: u64,
}

impl Stats {
    /// All counts, by the names of the fields.
    pub fn counts(&self) -> [(&'static str, u64); 31] {
        macro_rules! named {
            ($($field:ident),*) => {{
                let Self { $($field),* } = *self;
                [$((stringify!($field), $field)),*]
            }};
        }
        named!(
            datagrams_dropped,
            frames_malformed,
            frames_stale,
            requests_sent,
            responses_received,
            retransmissions,
            marks,
            requests_received,
            duplicates,
            slots_overrun,
            requests_displaced,
            cancels_early,
            responses_sent,
            responses_unwanted,
            responses_evicted,
            responses_expired,
            sink_full,
            sessions_refused,
            sessions_evicted,
            answers_suppressed,
            challenges,
            credits_revoked,
            resets_searched,
            sessions_unknown,
            sessions_forgotten,
            sessions_restarted,
            sessions_shut_down,
            places_reused,
            sessions_added,
            peers_failed,
            keepalives
        )
    }
}
