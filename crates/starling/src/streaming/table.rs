//! The streams of one dispatch thread.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use starling_endpoint::{Context, LargeBuffers, OwnedMessage, Reply, Request, Status, StreamFlags};
use starling_io::{PacketIo, PeerId};
use starling_message::protobuf::DecodeLimits;

use super::account::{ByteAccount, spare_for};
use super::handler_task::HandlerTask;
use super::limits::{StreamLimits, StreamNeeds};
use super::server::ServerEnd;
use crate::plane::{IncomingCall, ServerStreamEnd, StreamingFn};
use crate::registry::SpawnTask;

/// How often the streams are looked through, in times that a peer may be silent: 5 s by default. One whose client has
/// sent no request in between, and is not amid a large message, is over: the client has forgotten it.
const SWEEP: f64 = 2.5;

/// Identifies a stream. Ids are their clients', so another client's do no harm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    peer: PeerId,
    /// The peer, by a number that is never used again.
    pub(super) client: u64,
    of_client: ClientKey,
}

impl Key {
    /// As its client calls it.
    pub(super) fn id(self) -> u64 {
        self.of_client.id
    }
}

/// Identifies a stream among those of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientKey {
    method: u32,
    id: u64,
}

/// What a peer has, until the endpoint forgets it or it is restarted.
struct Client {
    number: u64,
    incarnation: u64,
    streams: HashMap<ClientKey, Arc<ServerEnd>, RandomState>,
}

/// A client without streams keeps memory for so many.
const FEW: usize = 16;

#[derive(Default)]
struct Table {
    clients: HashMap<PeerId, Client, RandomState>,
    /// Clients so far.
    seen: u64,
    /// Streams of all.
    streams: usize,
    is_swept: bool,
}

impl Table {
    /// Removes a client with all of its streams.
    fn remove(&mut self, peer: PeerId) -> Option<Client> {
        let client = self.clients.remove(&peer)?;
        self.streams -= client.streams.len();
        Some(client)
    }
}

/// The streams of one dispatch thread, by client, method and id.
pub(crate) struct Streams {
    pub(crate) account: Arc<ByteAccount>,
    pub(super) decode: DecodeLimits,
    /// Those of the endpoint.
    buffers: LargeBuffers,
    table: Mutex<Table>,
    sweep: Duration,
    sweep_is_due: AtomicBool,
}

impl Streams {
    pub(crate) fn new(
        limits: StreamLimits,
        decode: DecodeLimits,
        buffers: LargeBuffers,
        peer_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            sweep: peer_timeout.mul_f64(SWEEP),
            sweep_is_due: AtomicBool::new(false),
            account: ByteAccount::new(limits),
            decode,
            buffers,
            table: Mutex::default(),
        })
    }

    /// Takes in a request of a method whose items are streams.
    pub(crate) fn handle_request<I: PacketIo>(
        self: &Arc<Self>,
        cx: &mut Context<'_, I>,
        request: Request<'_>,
        mut reply: Reply<'_>,
        (handler, needs): (&StreamingFn, StreamNeeds),
        spawn: Option<&SpawnTask>,
    ) {
        let Some(position) = request.stream() else {
            return reply.refuse(Status::unimplemented(
                "the method has streams, and the call is a single one: call it by generated code",
            ));
        };
        let peer = request.peer();
        let of_client = ClientKey {
            method: request.method().0,
            id: position.id,
        };
        let (client, found) = self.find(peer, cx.incarnation(peer), of_client);
        let key = Key {
            peer,
            client,
            of_client,
        };
        if let Some(end) = found {
            let reply = reply.hold(end.cancellation());
            return end.handle_request(self.keep(request), reply, &self.buffers);
        }
        if position.number != 0 || position.flags.has(StreamFlags::CANCEL) {
            let gone = starling_stream::gone((), position.id);
            reply.set_stream(gone.position, None, 0);
            return reply.ok();
        }
        let Some(share) = self.account.admit(client, needs) else {
            return reply.refuse(Status::resource_exhausted(format!(
                "the server keeps at most {} streams for one client, and {} in all; end some, or have the server \
                 raise `max_streams_per_client` or `max_waiting`",
                self.account.limits().streams,
                self.account.limits().all_streams,
            )));
        };
        let (remaining, caller) = (request.remaining(), cx.peer(peer).clone());
        let request = self.keep(request);
        let end = ServerEnd::new(self, key, share, cx.local(), &request);
        let call = IncomingCall {
            remaining,
            peer: caller,
            cancellation: end.cancellation().clone(),
        };
        self.insert(cx, key, &end);
        end.handle_request(request, reply.hold(end.cancellation()), &self.buffers);
        let handler = handler(ServerStreamEnd(Arc::clone(&end) as _), call);
        let task = HandlerTask::new(end, handler);
        match spawn {
            None => cx.spawn_for(peer, task),
            Some(spawn) => spawn(Box::pin(task)),
        }
    }

    fn keep(&self, request: Request<'_>) -> OwnedMessage {
        request.into_owned_in(|bytes| spare_for(bytes, &self.buffers))
    }

    /// The client's number, and its stream if that is there.
    fn find(
        &self,
        peer: PeerId,
        incarnation: u64,
        of_client: ClientKey,
    ) -> (u64, Option<Arc<ServerEnd>>) {
        let mut table = self.table.lock();
        let known = table.clients.get(&peer);
        if known.is_some_and(|client| client.incarnation != incarnation) {
            let former = table.remove(peer);
            MutexGuard::unlocked(&mut table, || self.end(former));
        }
        let Table { clients, seen, .. } = &mut *table;
        let client = clients.entry(peer).or_insert_with(|| {
            *seen += 1;
            Client {
                number: *seen,
                incarnation,
                streams: HashMap::default(),
            }
        });
        (client.number, client.streams.get(&of_client).cloned())
    }

    /// Whether all streams are over, with their ends on their way to the clients.
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().streams
    }

    fn insert<I: PacketIo>(self: &Arc<Self>, cx: &Context<'_, I>, key: Key, end: &Arc<ServerEnd>) {
        let mut table = self.table.lock();
        // This thread has just found it, and peers are forgotten between turns.
        let Some(client) = table.clients.get_mut(&key.peer) else {
            return;
        };
        client.streams.insert(key.of_client, Arc::clone(end));
        table.streams += 1;
        if !std::mem::replace(&mut table.is_swept, true) {
            drop(table);
            let (streams, local) = (Arc::downgrade(self), cx.local());
            let period = self.sweep;
            cx.spawn(async move {
                loop {
                    local.sleep(period).await;
                    match Weak::upgrade(&streams) {
                        Some(streams) if streams.ask_for_sweep() => {}
                        _ => return,
                    }
                }
            });
        }
    }

    /// The endpoint's owner is to sweep when this turn is over. Returns whether there are streams.
    fn ask_for_sweep(&self) -> bool {
        let mut table = self.table.lock();
        table.is_swept = table.streams > 0;
        self.sweep_is_due.store(table.is_swept, Ordering::Relaxed);
        table.is_swept
    }

    /// Whether [`Streams::sweep`] is due.
    #[inline]
    pub(crate) fn is_sweep_due(&self) -> bool {
        self.sweep_is_due.load(Ordering::Relaxed)
    }

    /// Ends the streams that their clients have forgotten. `backlogged`: the clients whose requests may have had to
    /// wait there within so many nanoseconds.
    pub(crate) fn sweep(&self, backlogged: impl FnOnce(u64) -> HashSet<PeerId>) {
        let period_ns = u64::try_from(self.sweep.as_nanos()).unwrap_or(u64::MAX);
        self.sweep_is_due.store(false, Ordering::Relaxed);
        let table = self.table.lock();
        let mut forgotten = Vec::new();
        for (peer, client) in &table.clients {
            for (of_client, end) in &client.streams {
                if end.is_forgotten() {
                    let key = Key {
                        peer: *peer,
                        client: client.number,
                        of_client: *of_client,
                    };
                    forgotten.push((key, Arc::clone(end)));
                }
            }
        }
        drop(table);
        if forgotten.is_empty() {
            return;
        }
        let backlogged = backlogged(period_ns);
        forgotten.retain(|(key, end)| {
            let is_spared = backlogged.contains(&key.peer);
            if is_spared {
                end.spare();
            }
            !is_spared
        });
        for (key, end) in forgotten {
            end.abort(Status::cancelled(
                "the client no longer asks for the stream",
            ));
            self.remove(key, Arc::as_ptr(&end));
        }
    }

    /// Ends the streams of a peer that is gone. Its number may be another one's next.
    pub(crate) fn forget(&self, peer: PeerId) {
        let client = self.table.lock().remove(peer);
        self.end(client);
    }

    /// Ends the streams of a client that was removed.
    fn end(&self, client: Option<Client>) {
        let Some(client) = client else {
            return;
        };
        for end in client.streams.into_values() {
            end.abort(Status::cancelled("the client is gone"));
            self.account.release(client.number, end.share());
        }
    }

    /// Removes a stream that is over.
    pub(super) fn remove(&self, key: Key, end: *const ServerEnd) {
        let mut table = self.table.lock();
        let Some(client) = table.clients.get_mut(&key.peer) else {
            return;
        };
        let removed = client.streams.get(&key.of_client);
        if !removed.is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), end)) {
            return;
        }
        let removed = client.streams.remove(&key.of_client);
        if client.streams.is_empty() {
            client.streams.shrink_to(FEW);
        }
        table.streams -= 1;
        drop(table);
        if let Some(removed) = &removed {
            self.account.release(key.client, removed.share());
        }
        // Without the lock: it may be the last reference to what its handler has.
        drop(removed);
    }
}
