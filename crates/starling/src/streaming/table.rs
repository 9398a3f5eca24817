//! The streams of one dispatch thread.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{Context, Reply, Request, Status, StreamFlags};
use starling_io::{PacketIo, PeerId};
use starling_message::protobuf::DecodeLimits;

use super::account::ByteAccount;
use super::limits::{StreamLimits, StreamShare};
use super::server::{HandlerTask, ServerEnd};
use crate::plane::{IncomingCall, ServerStreamEnd, StreamingFn};
use crate::registry::SpawnTask;

/// A stream whose client has no request held for as long as two of these is over: the client is gone.
const SWEEP: Duration = Duration::from_secs(5);

/// Identifies a stream. Ids are their clients', so another client's do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    peer: PeerId,
    method: u32,
    pub(super) id: u64,
}

impl Key {
    /// Whose it is.
    pub(super) fn client(self) -> u64 {
        self.peer.0.into()
    }
}

struct Entry {
    end: Arc<ServerEnd>,
    share: StreamShare,
    /// No request was held when the table was last swept.
    was_quiet: bool,
}

#[derive(Default)]
struct Table {
    streams: HashMap<Key, Entry>,
    is_swept: bool,
}

/// The streams of one dispatch thread, by client, method and id.
pub(crate) struct Streams {
    pub(crate) account: Arc<ByteAccount>,
    pub(super) decode: DecodeLimits,
    table: Mutex<Table>,
}

impl Streams {
    pub(crate) fn new(limits: StreamLimits, decode: DecodeLimits) -> Arc<Self> {
        Arc::new(Self {
            account: ByteAccount::new(limits),
            decode,
            table: Mutex::default(),
        })
    }

    /// Takes in a request of a method whose items are streams.
    pub(crate) fn handle_request<I: PacketIo>(
        self: &Arc<Self>,
        cx: &mut Context<'_, I>,
        request: Request<'_>,
        mut reply: Reply<'_>,
        handler: &StreamingFn,
        spawn: Option<&SpawnTask>,
    ) {
        let Some(position) = request.stream() else {
            return reply.refuse(Status::unimplemented(
                "the method has streams, and the call is a single one: call it by generated code",
            ));
        };
        let key = Key {
            peer: request.peer(),
            method: request.method().0,
            id: position.id,
        };
        let found = self
            .table
            .lock()
            .streams
            .get(&key)
            .map(|entry| Arc::clone(&entry.end));
        if let Some(end) = found {
            return end.handle_request(request.into_owned(), reply.defer_without_buffer());
        }
        if position.number != 0 || position.flags.has(StreamFlags::CANCEL) {
            let gone = starling_stream::gone((), position.id);
            reply.set_stream(gone.position, None, 0);
            return reply.ok();
        }
        let Some(share) = self.account.admit(key.client()) else {
            return reply.refuse(Status::resource_exhausted(format!(
                "the server keeps at most {} streams for one client; end some, or have the server raise \
                 `max_streams_per_client`",
                self.account.limits().streams
            )));
        };
        let (remaining, peer) = (request.remaining(), cx.peer(key.peer).clone());
        let request = request.into_owned();
        let end = ServerEnd::new(self, key, share, cx.local(), &request);
        let call = IncomingCall {
            remaining,
            peer,
            cancellation: end.cancellation().clone(),
        };
        self.insert(cx, key, &end, share);
        end.handle_request(request, reply.defer_without_buffer());
        let handler = handler(ServerStreamEnd(Arc::clone(&end) as _), call);
        let task = HandlerTask::new(end, handler);
        match spawn {
            None => cx.spawn_for(key.peer, task),
            Some(spawn) => spawn(Box::pin(task)),
        }
    }

    /// Whether all streams are over, with their ends on their way to the clients.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().streams.is_empty()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().streams.len()
    }

    fn insert<I: PacketIo>(
        self: &Arc<Self>,
        cx: &Context<'_, I>,
        key: Key,
        end: &Arc<ServerEnd>,
        share: StreamShare,
    ) {
        let mut table = self.table.lock();
        let entry = Entry {
            end: Arc::clone(end),
            share,
            was_quiet: false,
        };
        table.streams.insert(key, entry);
        if !std::mem::replace(&mut table.is_swept, true) {
            drop(table);
            let (streams, local) = (Arc::downgrade(self), cx.local());
            cx.spawn(async move {
                loop {
                    local.sleep(SWEEP).await;
                    match Weak::upgrade(&streams) {
                        Some(streams) if streams.sweep() => {}
                        _ => return,
                    }
                }
            });
        }
    }

    /// Ends the streams of clients that are gone. Returns whether there are streams.
    fn sweep(&self) -> bool {
        let mut table = self.table.lock();
        let mut gone = Vec::new();
        for (key, entry) in &mut table.streams {
            let is_quiet = entry.end.is_quiet();
            if std::mem::replace(&mut entry.was_quiet, is_quiet) && is_quiet {
                gone.push((*key, Arc::clone(&entry.end)));
            }
        }
        table.is_swept = !table.streams.is_empty();
        let goes_on = table.is_swept;
        drop(table);
        for (key, end) in gone {
            end.abort(Status::cancelled(
                "the client no longer asks for the stream",
            ));
            self.remove(key, Arc::as_ptr(&end));
        }
        goes_on
    }

    /// Removes a stream that is over.
    pub(super) fn remove(&self, key: Key, end: *const ServerEnd) {
        let mut table = self.table.lock();
        let Some(entry) = table.streams.get(&key) else {
            return;
        };
        if !std::ptr::eq(Arc::as_ptr(&entry.end), end) {
            return;
        }
        let entry = table.streams.remove(&key);
        drop(table);
        if let Some(entry) = &entry {
            self.account.release(key.client(), entry.share);
        }
        // Without the lock: it may be the last reference to what its handler has.
        drop(entry);
    }
}
