//! What a thread that runs an endpoint has.

use starling_endpoint::{ClientSessionReport, Peer, ServerSessionReport, WorkersReport};

use crate::budgets::{Budget, Held};
use crate::channel_state::ChannelState;
use crate::core::Core;
use crate::device::Device;
use crate::stats::ThreadStats;

/// Connections that one report has, at most.
const MAX_CONNECTIONS: usize = 256;

/// Which sessions a report is to have besides the counts: those from a place of their table on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) client_from: usize,
    pub(crate) server_from: usize,
    /// Sessions of each kind, at most.
    pub(crate) most: usize,
}

/// A session that the endpoint has opened, and the address of its server.
pub(crate) struct ClientSessionRow {
    pub(crate) session: ClientSessionReport,
    pub(crate) address: String,
}

/// A session that a client has opened, and the client.
pub(crate) struct ServerSessionRow {
    pub(crate) session: ServerSessionReport,
    pub(crate) peer: Peer,
}

/// What a thread that runs an endpoint has.
pub(crate) struct ThreadReport {
    pub(crate) stats: ThreadStats,
    pub(crate) calls_outstanding: usize,
    /// Requests that wait outside their handlers.
    pub(crate) requests_pending: usize,
    /// Memory of large messages that are arriving, and of kept responses.
    pub(crate) reassembling_bytes: usize,
    pub(crate) retained_bytes: usize,
    pub(crate) client_sessions: usize,
    pub(crate) server_sessions: usize,
    /// Streams of clients.
    pub(crate) streams: usize,
    /// Of a server: what clients have it hold, and may.
    pub(crate) budgets: Vec<(Budget, Option<u64>)>,
    pub(crate) workers: Option<WorkersReport>,
    /// The addresses that it is connected to, or was.
    pub(crate) connections: Vec<(String, ChannelState)>,
    pub(crate) client_rows: Vec<ClientSessionRow>,
    pub(crate) client_next: Option<usize>,
    pub(crate) server_rows: Vec<ServerSessionRow>,
    pub(crate) server_next: Option<usize>,
}

impl<I: Device> Core<I> {
    /// What this endpoint has.
    pub(crate) fn report(&mut self, wanted: &Wanted) -> ThreadReport {
        let raw = &mut self.raw;
        let now_ns = raw.turn_ns();
        let protocol = raw.protocol();
        let (client_sessions, server_sessions) = protocol.session_counts();
        let clients = protocol.client_sessions(wanted.client_from, wanted.most);
        let servers = protocol.server_sessions(now_ns, wanted.server_from, wanted.most);
        let (reassembling_bytes, retained_bytes) = (protocol.reassembling(), protocol.retained());
        ThreadReport {
            reassembling_bytes,
            retained_bytes,
            client_sessions,
            server_sessions,
            calls_outstanding: raw.calls_outstanding(),
            requests_pending: raw.requests_pending(),
            workers: raw.workers(),
            client_next: clients.next,
            server_next: servers.next,
            client_rows: (clients.sessions.into_iter())
                .map(|session| {
                    let address = raw.session_address(session.first.unwrap_or(session.id));
                    let address = address.to_owned();
                    ClientSessionRow { session, address }
                })
                .collect(),
            server_rows: (servers.sessions.into_iter())
                .map(|session| {
                    let peer = raw.session_peer(session.peer).clone();
                    ServerSessionRow { session, peer }
                })
                .collect(),
            streams: self
                .served
                .as_ref()
                .map_or(0, |served| served.streams.count()),
            budgets: self.budgets(),
            connections: self.connections.states(MAX_CONNECTIONS),
            stats: self.stats(),
        }
    }

    fn budgets(&self) -> Vec<(Budget, Option<u64>)> {
        let Some(served) = &self.served else {
            return Vec::new();
        };
        let (raw, protocol) = (&self.raw, self.raw.protocol());
        let (_, sessions) = protocol.session_counts();
        let held = Held {
            receiving_bytes: protocol.reassembling(),
            waiting_bytes: raw.bytes_pending(),
            decoded_bytes: served.decoded.held_bytes(),
            stream_bytes: served.streams.account.held_bytes(),
            to_send_bytes: served.streams.account.to_send_bytes(),
            kept_bytes: protocol.retained(),
            session_bytes: sessions * self.config.protocol.bytes_of_session(),
            sessions,
            waiting: raw.requests_waiting(),
            jobs: raw.workers().map_or(0, |workers| workers.waiting),
            streams: served.streams.count(),
            stream_threads: served.stream_threads.running(),
            watchers: served.health.watchers(),
        };
        let budgets = served.budgets.iter();
        budgets
            .map(|budget| (*budget, budget.held(&held)))
            .collect()
    }
}
