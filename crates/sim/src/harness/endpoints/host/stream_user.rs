//! What the users of both ends of a stream have in common: a reader and a writer that act at random, and
//! wait until their end of the stream wakes them.

use starling_stream::Items;

use super::super::super::{FlowPlan, StreamPlan};
use super::super::call_records::SharedCallRecords;
use super::{Host, PlantedBug, Task};
use crate::check::{StreamId, Violation};
use crate::rng::Rng;

/// Items of a burst at most.
const BURST: u64 = 16;

/// A bundle has so many bytes, or one item.
const BUNDLE_BYTES: u64 = 60 << 10;

/// Of whom an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Actor {
    ClientReader,
    ClientWriter,
    ClientGivesUp,
    ServerReader,
    ServerWriter,
}

/// The user of a stream acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct StreamTask {
    pub(super) id: StreamId,
    pub(super) actor: Actor,
}

/// The state of a reader or a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// A task of the host's schedule makes it act.
    Scheduled,
    /// It waits until its end of the stream wakes it.
    Waits,
    Done,
}

/// The user of one end.
#[derive(Debug)]
pub(super) struct User {
    rng: Rng,
    pauses_ns: [u64; 2],
    activities: [Activity; 2],
    /// What is left of the message that it has taken last.
    pub(super) unread: Items,
    /// Items that it has sent.
    pub(super) written: u64,
    /// Items that it has taken.
    pub(super) read: u64,
}

/// Indices of the reader and the writer of a user.
pub(super) const READER: usize = 0;
pub(super) const WRITER: usize = 1;

impl User {
    /// The user of an end that reads the one flow and writes the other.
    pub(super) fn new(seed: u64, reads: &FlowPlan, writes: &FlowPlan) -> Self {
        Self {
            rng: Rng::new(seed),
            pauses_ns: [reads.read_ns, writes.write_ns],
            activities: [Activity::Scheduled; 2],
            unread: Items::default(),
            written: 0,
            read: 0,
        }
    }

    pub(super) fn burst(&mut self) -> u64 {
        self.rng.log_range(1, BURST)
    }

    /// Whether a large item is held by reference.
    pub(super) fn lends(&mut self) -> bool {
        self.rng.chance(500_000)
    }

    pub(super) fn wait(&mut self, which: usize) {
        self.activities[which] = Activity::Waits;
    }

    pub(super) fn end(&mut self, which: usize) {
        self.activities[which] = Activity::Done;
    }

    pub(super) fn has_ended(&self, which: usize) -> bool {
        self.activities[which] == Activity::Done
    }

    /// The time until it acts again, if it neither waits nor has ended.
    pub(super) fn pause_ns(&mut self, which: usize) -> Option<u64> {
        let most_ns = self.pauses_ns[which];
        (self.activities[which] == Activity::Scheduled).then(|| self.rng.log_range(0, most_ns))
    }

    /// What has left made room: whether the writer acts.
    pub(super) fn wake_writer(&mut self) -> bool {
        let waits = self.activities[WRITER] == Activity::Waits;
        if waits {
            self.activities[WRITER] = Activity::Scheduled;
        }
        waits
    }

    /// Its end of the stream wakes it: whether the reader and the writer act.
    pub(super) fn wake(&mut self) -> [bool; 2] {
        self.activities.each_mut().map(|activity| {
            let waits = *activity == Activity::Waits;
            if waits {
                *activity = Activity::Scheduled;
            }
            waits
        })
    }
}

/// Splits an item, sometimes, so that its last part is held by reference.
pub(super) fn split(mut item: Vec<u8>, lends: bool) -> (Vec<u8>, Option<bytes::Bytes>) {
    let tail = (lends && item.len() > 1_000).then(|| item.split_off(500).into());
    (item, tail)
}

/// The bytes that may wait for a reader: twice the window and two messages.
pub(super) fn check_unread(
    id: StreamId,
    unread: usize,
    window: u32,
    largest: u64,
) -> Result<(), Violation> {
    let message = BUNDLE_BYTES.max(largest + 4) + 64;
    let most = 2 * u64::from(window) + 2 * message;
    match unread as u64 <= most {
        true => Ok(()),
        false => Err(Violation::new(
            "streams",
            format!("stream {id} holds {unread} bytes for its reader, more than {most}"),
        )),
    }
}

/// Alters the items of a message if a bug is planted.
pub(super) fn damage(records: &SharedCallRecords, body: bytes::Bytes) -> bytes::Bytes {
    let mut records = records.lock();
    let mut items: Vec<_> = Items::new(body.clone()).collect();
    if !items.is_empty() && records.bug_triggers(PlantedBug::StreamItemTwice) {
        let first = items[0].clone();
        items.insert(0, first);
    } else if items.len() > 1
        && items[0] != items[1]
        && records.bug_triggers(PlantedBug::StreamItemsSwapped)
    {
        items.swap(0, 1);
    } else {
        return body;
    }
    let mut bytes = Vec::new();
    for item in items {
        let put = starling_stream::put_item(&mut bytes, |out| {
            out.extend_from_slice(&item);
            Ok::<_, std::convert::Infallible>(())
        });
        put.unwrap_or_else(|never| match never {});
    }
    bytes.into()
}

impl Host {
    /// The user of a stream acts, if the stream is still there.
    pub(super) fn act(&mut self, task: StreamTask, now_ns: u64) -> Result<(), Violation> {
        let StreamTask { id, actor } = task;
        match actor {
            Actor::ClientReader => self.client_reads(id, now_ns),
            Actor::ClientWriter => self.client_writes(id, now_ns),
            Actor::ClientGivesUp => self.client_gives_up(id, now_ns),
            Actor::ServerReader => self.server_reads(id, now_ns),
            Actor::ServerWriter => self.server_writes(id, now_ns),
        }
    }

    /// Has the user of a stream act.
    pub(super) fn plan_act(&mut self, at_ns: u64, id: StreamId, actor: Actor) {
        self.plan(at_ns, Task::Stream(StreamTask { id, actor }));
    }
}

/// The seeds of a stream's two users.
pub(super) fn seeds(plan: &StreamPlan) -> [u64; 2] {
    [plan.seed, !plan.seed]
}
