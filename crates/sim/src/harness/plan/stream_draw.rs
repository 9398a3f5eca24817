//! The fourth random draw of a seed: streams between whole endpoints.
//!
//! It has a separate generator, so the other draws stay unchanged.

use super::{ChannelPlan, RunPlan, US};
use crate::fabric::HostId;
use crate::rng::Rng;

/// Bytes that one direction of a stream has at most, so that a run takes milliseconds.
const BYTES_BUDGET: u64 = 1200 << 10;

/// Requests that a client has its server hold for one stream at most.
const MOST_HELD: u64 = 4;

/// A server that may grant so many credits gives every session of a run those it asks for.
const ROOMY_CREDITS: usize = 4096;

/// The items of one direction of a stream, and how its users treat them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowPlan {
    /// Items that the writer sends.
    pub items: u64,
    /// Length of the largest item, bytes.
    pub largest: u64,
    /// The writer pauses so long at most between bursts, ns.
    pub write_ns: u64,
    /// The reader pauses so long at most between bursts, ns.
    pub read_ns: u64,
}

/// How much a handler reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandlerReads {
    /// All items, and it ends when it has sent its own.
    #[default]
    All,
    /// So many items; then it sends the rest of its own without reading.
    Some(u64),
    /// So many items, and then it ends at once.
    AndEnds(u64),
}

/// One stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// When it begins, ns.
    pub at_ns: u64,
    /// The index of its channel.
    pub channel: usize,
    /// The seed of what its users do.
    pub seed: u64,
    /// Items of the client.
    pub up: FlowPlan,
    /// Items of the server.
    pub down: FlowPlan,
    /// The windows of the client and of the server.
    pub windows: [u32; 2],
    /// How much the handler reads.
    pub handler_reads: HandlerReads,
    /// The handler ends without an error.
    pub succeeds: bool,
    /// The client cancels it after this time.
    pub cancel_after_ns: Option<u64>,
    /// Its deadline, this long after it begins.
    pub timeout_ns: Option<u64>,
}

impl StreamPlan {
    /// A stream that echoes nothing: `up` items of the client and `down` items of the server.
    pub fn new(at_ns: u64, channel: usize, up: FlowPlan, down: FlowPlan) -> Self {
        Self {
            at_ns,
            channel,
            seed: 0,
            up,
            down,
            windows: [64 << 10; 2],
            handler_reads: HandlerReads::All,
            succeeds: true,
            cancel_after_ns: None,
            timeout_ns: None,
        }
    }

    /// Bytes that it takes at most.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |flow: &FlowPlan| flow.items * (flow.largest + 4);
        bytes(&self.up) + bytes(&self.down) + 64 * self.most_calls()
    }

    /// Calls that it makes at most. Each has an item, answers one, reports that items were taken, or is
    /// one of a few at its ends.
    pub(super) fn most_calls(&self) -> u64 {
        2 * (self.up.items + self.down.items) + 16
    }

    /// The time that its users take at most.
    pub(super) fn users_ns(&self) -> u64 {
        let time_ns = |flow: &FlowPlan| (flow.items + 2) * (flow.write_ns + flow.read_ns);
        let limits = [self.timeout_ns, self.cancel_after_ns];
        let limit_ns: u64 = limits.into_iter().flatten().sum();
        time_ns(&self.up) + time_ns(&self.down) + limit_ns
    }
}

impl RunPlan {
    /// Adds streams to a third of the runs of whole endpoints. Where bits flip past all checksums, a
    /// stream may lose its end, so nothing can be promised.
    pub(super) fn draw_streams(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x73_7472_6561_6d73);
        if !self.endpoints || self.corrupts() || !rng.chance(333_333) {
            return;
        }
        let hurried_ppm = rng.pick(&[0, 0, 300_000]);
        let cancelled_ppm = rng.pick(&[0, 200_000]);
        for _ in 0..rng.log_range(1, 8) {
            let stream = self.draw_stream(&mut rng, hurried_ppm, cancelled_ppm);
            self.streams.push(stream);
        }
        self.streams.sort_by_key(|stream| stream.at_ns);
        if rng.chance(700_000) {
            self.make_room();
        }
        for index in 0..self.streams.len() {
            if !self.has_room(self.streams[index].channel) {
                let after_ns = rng.log_range(US, 2 * self.heal_ns);
                self.streams[index].cancel_after_ns.get_or_insert(after_ns);
            }
        }
    }

    /// Lets a session have slots and credits for all streams.
    fn make_room(&mut self) {
        let room = (MOST_HELD * self.streams.len() as u64 + 1) as u16;
        for config in &mut self.hosts {
            config.slots = config.slots.max(room);
            config.credits = config.credits.max(room);
        }
    }

    /// Whether the requests that a channel's streams have held leave slots and credits to other requests. If
    /// not, these wait until a held one is answered, which may be for ever: only clients can end that.
    fn has_room(&self, channel: usize) -> bool {
        let ChannelPlan { client, server, .. } = self.channels[channel];
        let config = |host: HostId| &self.hosts[host.0 as usize];
        let (client, server) = (config(client), config(server));
        let streams = self
            .streams
            .iter()
            .filter(|stream| stream.channel == channel);
        let held = MOST_HELD * streams.count() as u64;
        let slots = u64::from(client.slots.min(server.slots)) * u64::from(client.group_sessions);
        let credits = u64::from(client.credits.min(server.credits));
        let grants = server.rx_queue_datagrams * server.overcommit;
        !self.tight && slots > held && credits > held && grants >= ROOMY_CREDITS
    }

    fn draw_stream(&self, rng: &mut Rng, hurried_ppm: u32, cancelled_ppm: u32) -> StreamPlan {
        let up = self.draw_flow(rng);
        let down = self.draw_flow(rng);
        let read = rng.range(0, up.items);
        StreamPlan {
            at_ns: rng.range(0, self.heal_ns),
            channel: rng.below(self.channels.len() as u64) as usize,
            seed: rng.next_u64(),
            up,
            down,
            windows: [0, 1].map(|_| rng.pick(&[1, 100, 5_000, 64 << 10, 256 << 10])),
            handler_reads: match rng.below(6) {
                0 => HandlerReads::Some(read),
                1 => HandlerReads::AndEnds(read),
                _ => HandlerReads::All,
            },
            succeeds: rng.chance(600_000),
            cancel_after_ns: (rng.chance(cancelled_ppm))
                .then(|| rng.log_range(US, 2 * self.heal_ns)),
            timeout_ns: (rng.chance(hurried_ppm)).then(|| rng.log_range(10 * US, 4 * self.heal_ns)),
        }
    }

    fn draw_flow(&self, rng: &mut Rng) -> FlowPlan {
        let largest = rng.pick(&[0, 40, 40, 3_000, 90_000, 300_000]);
        // Few have so many that they go on for long while one message is lost.
        let most = (BYTES_BUDGET / (largest + 4)).min(rng.pick(&[300, 300, 300, 2_000]));
        let items = rng.log_range(0, most);
        // Users of many items pause less, so that all take about as long.
        let pause_ns = |rng: &mut Rng| rng.log_range(0, 2 * self.heal_ns / (items + 1));
        FlowPlan {
            items,
            largest,
            write_ns: pause_ns(rng),
            read_ns: pause_ns(rng),
        }
    }
}
