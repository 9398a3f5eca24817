//! The bounds on streams of a server.

use starling_endpoint::{EndpointConfig, HighWater};
use starling_stream::{MAX_HELD, MOST_WAITING};

/// Slots that a client's requests can have, unless it or the server is set otherwise.
pub(super) const SLOTS: usize = 16_384;
/// Streams of one client at once, unless set: three quarters of those.
const STREAMS: usize = 12_288;
/// Those of them that may have several requests held.
const PIPELINED_STREAMS: usize = pipelined_streams(SLOTS, STREAMS);
/// Windows of one client's streams, unless set; and what waits for it.
const BYTES: usize = 64 << 20;
/// Streams of all clients.
const ALL_STREAMS: usize = 1 << 16;
/// What streams may hold in all, unless set.
const ALL_BYTES: usize = 512 << 20;
/// What may wait to be sent by a stream of a client that has half of what it may have: worth a message.
const SMALL_SHARE: usize = 16 << 10;

/// The bounds on the streams of a dispatch thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// Bytes of one stream's items that wait for its handler.
    pub(crate) window: u32,
    /// Streams of one client.
    pub(crate) streams: usize,
    /// Streams of all clients, of which one may have as many as are still free.
    pub(super) all_streams: usize,
    /// The first ones of a client, which may have several requests held.
    pub(super) pipelined_streams: usize,
    /// Windows of all streams of one client; and as much that handlers send and that waits for it.
    pub(crate) bytes: usize,
    /// Windows of all streams, and what they hold beyond those; and as much that waits for their clients.
    pub(crate) all_bytes: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            window: starling_stream::DEFAULT_WINDOW,
            streams: STREAMS,
            all_streams: ALL_STREAMS,
            pipelined_streams: PIPELINED_STREAMS,
            bytes: BYTES,
            all_bytes: ALL_BYTES,
        }
    }
}

/// What a method's streams need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamNeeds {
    /// Its messages are the user's.
    Much,
    /// One small message each way at a time: a watcher of health takes nothing of what its client's streams may hold.
    Little,
}

/// What one stream may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamShare {
    /// Bytes of items that wait for its handler.
    pub(super) window: u32,
    /// Bytes of items that wait to be sent.
    pub(super) to_send: usize,
    /// The client may be told to have several requests held.
    pub(super) is_pipelined: bool,
}

/// Streams of a client with so many slots.
fn streams_of(slots: usize) -> usize {
    slots.saturating_sub((slots / 4).max(1))
}

/// Streams of a client that may have as many requests held as there can be, if it has so many slots and so many
/// streams: they take half of the slots that are left, for at rest they give none back.
const fn pipelined_streams(slots: usize, streams: usize) -> usize {
    slots.saturating_sub(streams) / 2 / (MAX_HELD as usize - 1)
}

/// What one client has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) streams: usize,
    windows: usize,
    /// Held beyond the windows.
    beyond: usize,
    to_send: usize,
}

/// What all clients have.
#[derive(Debug, Default)]
pub(super) struct AllHoldings {
    streams: usize,
    /// Windows, and what is held beyond those.
    bytes: usize,
    to_send: usize,
    most: HighWater,
}

impl AllHoldings {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.most.note(self.bytes);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn to_send(&self) -> usize {
        self.to_send
    }

    /// The most that they held since this was last asked, and now.
    pub(super) fn take_most(&mut self) -> usize {
        self.most.take(self.bytes)
    }
}

impl StreamLimits {
    /// The same, for a server with these settings. Each stream has a request held, which takes a slot: streams must not
    /// take the last ones, for their next requests would find none. (A client that has fewer slots than it may have
    /// bounds its streams itself: see `StreamSlots`.) With one slot there can be no streams. There are as many in all
    /// as requests may wait.
    pub(crate) fn within(self, config: &EndpointConfig) -> Self {
        let protocol = &config.protocol;
        let sessions = protocol.max_sessions_per_client.min(protocol.max_sessions);
        let slots = sessions.saturating_mul(protocol.slots.into());
        let streams = self.streams.min(streams_of(slots));
        Self {
            streams,
            all_streams: config.max_waiting,
            // The client may have fewer than the server allows.
            pipelined_streams: pipelined_streams(slots.min(SLOTS), streams),
            ..self
        }
    }

    /// The share of one more stream of a client. None: it has as many as it may.
    ///
    /// A client may have as many bytes as are still free, so one that comes later finds some (Choudhury and
    /// Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
    pub(super) fn admit(
        &self,
        client: &mut Holding,
        all: &mut AllHoldings,
        needs: StreamNeeds,
    ) -> Option<StreamShare> {
        let free = self.all_streams.saturating_sub(all.streams);
        if client.streams >= self.streams.min(free) {
            return None;
        }
        // A client that uses up its bytes gets streams with the smallest share, which takes one message.
        let of_client = self.bytes.saturating_sub(client.windows);
        let left = of_client.min(self.left(Some(client), all));
        let (window, to_send) = match needs {
            StreamNeeds::Much => (self.window as usize, self.room_to_send(client, all)),
            StreamNeeds::Little => (1, 1),
        };
        let window = window.min(left).max(1);
        let share = StreamShare {
            window: window as u32,
            to_send,
            is_pipelined: client.streams < self.pipelined_streams,
        };
        client.streams += 1;
        all.streams += 1;
        client.windows += window;
        all.add(window);
        client.to_send += share.to_send;
        all.to_send += share.to_send;
        Some(share)
    }

    /// What may wait to be sent by one more stream of a client. A client with many streams gets small shares
    /// in the end, and then one item.
    fn room_to_send(&self, client: &Holding, all: &AllHoldings) -> usize {
        let free = self.all_bytes.saturating_sub(all.to_send);
        let left = self.bytes.min(free).saturating_sub(client.to_send);
        let most = match left > client.to_send {
            true => MOST_WAITING,
            false => SMALL_SHARE,
        };
        left.min(most).max(1)
    }

    /// A stream with this share is over.
    pub(super) fn release(client: &mut Holding, all: &mut AllHoldings, share: StreamShare) {
        client.streams -= 1;
        all.streams -= 1;
        client.windows -= share.window as usize;
        all.bytes -= share.window as usize;
        client.to_send -= share.to_send;
        all.to_send -= share.to_send;
    }

    /// Whether a client may hold so many bytes more beyond its windows, which it does then. Without a client
    /// all is one's.
    pub(super) fn hold(
        &self,
        client: Option<&mut Holding>,
        all: &mut AllHoldings,
        bytes: usize,
    ) -> bool {
        let fits = bytes <= self.left(client.as_deref(), all);
        if fits {
            all.add(bytes);
            if let Some(client) = client {
                client.beyond += bytes;
            }
        }
        fits
    }

    /// So many bytes are held no more.
    pub(super) fn give_back(client: Option<&mut Holding>, all: &mut AllHoldings, bytes: usize) {
        all.bytes -= bytes;
        if let Some(client) = client {
            client.beyond -= bytes;
        }
    }

    /// What a client may have more.
    fn left(&self, client: Option<&Holding>, all: &AllHoldings) -> usize {
        let own = client.map_or(0, |client| client.windows + client.beyond);
        self.all_bytes.saturating_sub(all.bytes).saturating_sub(own)
    }
}

impl Holding {
    /// Whether the client has nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.streams == 0 && self.beyond == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(share: Option<StreamShare>) -> Option<u32> {
        share.map(|share| share.window)
    }

    #[test]
    fn streams_leave_slots_for_their_next_requests() {
        let mut config = EndpointConfig::default();
        let limits = StreamLimits::default();
        assert_eq!(limits.within(&config).streams, STREAMS);
        config.protocol.max_sessions_per_client = 2;
        assert_eq!(limits.within(&config).streams, 48);
        config.protocol.max_sessions = 1;
        assert_eq!(limits.within(&config).streams, 24);
        // However many slots there are, one is left when all streams rest with all the requests that they may have
        // held.
        for slots in 1..=config.protocol.slots {
            config.protocol.slots = slots;
            let limits = limits.within(&config);
            let (mut client, mut all) = (Holding::default(), AllHoldings::default());
            let shares =
                std::iter::from_fn(|| limits.admit(&mut client, &mut all, StreamNeeds::Much));
            let held = shares.map(|share| match share.is_pipelined {
                true => usize::from(MAX_HELD),
                false => 1,
            });
            let held: usize = held.sum();
            assert!(held < slots.into(), "{held} of {slots}");
        }
        let many = StreamLimits {
            streams: 100,
            ..limits
        };
        let many = many.within(&EndpointConfig::default());
        assert!(many.pipelined_streams > 100, "{many:?}");
        assert_eq!(
            limits.within(&EndpointConfig::default()).pipelined_streams,
            PIPELINED_STREAMS
        );
    }

    #[test]
    fn a_client_has_as_many_streams_as_are_free_and_others_find_some() {
        let config = EndpointConfig {
            max_waiting: 100,
            ..EndpointConfig::default()
        };
        let limits = StreamLimits::default().within(&config);
        let mut all = AllHoldings::default();
        let mut fill = || {
            let mut client = Holding::default();
            let shares: Vec<_> =
                std::iter::from_fn(|| limits.admit(&mut client, &mut all, StreamNeeds::Much))
                    .collect();
            (client, shares)
        };
        let (mut greedy, shares) = fill();
        assert_eq!((greedy.streams, fill().0.streams), (50, 25));
        let in_all: usize = 75 + (0..100).map(|_| fill().0.streams).sum::<usize>();
        assert_eq!(in_all, 100);
        for share in shares {
            StreamLimits::release(&mut greedy, &mut all, share);
        }
        assert_eq!((all.streams, greedy.streams), (50, 0));
    }

    #[test]
    fn windows_shrink_when_a_client_has_used_up_its_bytes_and_come_back() {
        let limits = StreamLimits {
            window: 100,
            streams: 5,
            bytes: 250,
            ..StreamLimits::default()
        };
        let (mut client, mut all) = (Holding::default(), AllHoldings::default());
        let shares: Vec<_> = (0..6)
            .map(|_| limits.admit(&mut client, &mut all, StreamNeeds::Much))
            .collect();
        let expected = [Some(100), Some(100), Some(50), Some(1), Some(1), None];
        assert_eq!(
            shares.clone().into_iter().map(window).collect::<Vec<_>>(),
            expected
        );
        shares.into_iter().flatten().for_each(|share| {
            StreamLimits::release(&mut client, &mut all, share);
        });
        assert_eq!(
            window(limits.admit(&mut client, &mut all, StreamNeeds::Much)),
            Some(100)
        );
    }

    #[test]
    fn a_client_has_as_much_as_is_free_and_all_have_no_more_than_there_is() {
        let limits = StreamLimits {
            window: 100,
            streams: 1_000,
            bytes: 1_000,
            all_bytes: 1_000,
            ..StreamLimits::default()
        };
        let mut all = AllHoldings::default();
        let mut fill = |streams| {
            let mut client = Holding::default();
            for _ in 0..streams {
                limits.admit(&mut client, &mut all, StreamNeeds::Much);
            }
            (client.windows, all.bytes)
        };
        let (greedy, _) = fill(100);
        assert_eq!(
            greedy,
            500 + 95,
            "half, and one byte for each further stream"
        );
        let (honest, _) = fill(1);
        assert_eq!(honest, 100);
        let in_all = (0..20).map(|_| fill(10).1).last();
        assert!(
            in_all.is_some_and(|bytes| bytes <= 1_000 + 200),
            "{in_all:?}"
        );
    }

    #[test]
    fn what_waits_for_clients_is_bounded_for_each_and_in_all() {
        let limits = StreamLimits {
            streams: 1_000,
            bytes: 10 * MOST_WAITING,
            all_bytes: 12 * MOST_WAITING,
            // Whatever the handlers' windows are.
            window: 1,
            ..StreamLimits::default()
        };
        let mut all = AllHoldings::default();
        let mut fill = || {
            let mut client = Holding::default();
            let shares =
                (0..1_000).filter_map(|_| limits.admit(&mut client, &mut all, StreamNeeds::Much));
            let shares: Vec<_> = shares.collect();
            (client, shares)
        };
        let (mut greedy, shares) = fill();
        let to_send: Vec<_> = shares.iter().map(|share| share.to_send).collect();
        assert_eq!(
            to_send[..5],
            [[MOST_WAITING; 4].as_slice(), &[SMALL_SHARE]].concat()
        );
        assert_eq!(to_send.last(), Some(&1));
        let half = 6 * MOST_WAITING;
        assert!((half..half + 1_000).contains(&greedy.to_send), "{greedy:?}");
        let (honest, _) = fill();
        assert!(honest.to_send >= 2 * MOST_WAITING, "{honest:?}");
        for share in shares {
            StreamLimits::release(&mut greedy, &mut all, share);
        }
        assert!(greedy.is_empty());
        assert_eq!(all.to_send, honest.to_send);
    }

    #[test]
    fn a_client_holds_no_more_beyond_its_windows_than_is_free() {
        let limits = StreamLimits {
            window: 100,
            bytes: 1_000,
            all_bytes: 1_000,
            ..StreamLimits::default()
        };
        let (mut greedy, mut honest) = (Holding::default(), Holding::default());
        let mut all = AllHoldings::default();
        assert_eq!(
            window(limits.admit(&mut greedy, &mut all, StreamNeeds::Much)),
            Some(100)
        );
        assert!(!limits.hold(Some(&mut greedy), &mut all, 801));
        assert!(limits.hold(Some(&mut greedy), &mut all, 400));
        assert!(!limits.hold(Some(&mut greedy), &mut all, 1));
        assert_eq!(
            window(limits.admit(&mut greedy, &mut all, StreamNeeds::Much)),
            Some(1)
        );
        assert_eq!(
            window(limits.admit(&mut honest, &mut all, StreamNeeds::Much)),
            Some(100)
        );
        assert!(limits.hold(Some(&mut honest), &mut all, 299));
        assert!(!limits.hold(Some(&mut honest), &mut all, 1));
        StreamLimits::give_back(Some(&mut greedy), &mut all, 400);
        assert!(limits.hold(Some(&mut greedy), &mut all, 399));
        assert!(all.bytes <= 1_001);
        // A channel has all of its own.
        let mut all = AllHoldings::default();
        assert!(limits.hold(None, &mut all, 1_000));
        assert!(!limits.hold(None, &mut all, 1));
    }

    #[test]
    fn streams_that_need_little_leave_all_to_others() {
        let limits = StreamLimits::default();
        let (mut client, mut all) = (Holding::default(), AllHoldings::default());
        for _ in 0..1_000 {
            let share = limits.admit(&mut client, &mut all, StreamNeeds::Little);
            assert_eq!(
                share.map(|share| (share.window, share.to_send)),
                Some((1, 1))
            );
        }
        let alone = limits.admit(
            &mut Holding::default(),
            &mut AllHoldings::default(),
            StreamNeeds::Much,
        );
        let share = limits.admit(&mut client, &mut all, StreamNeeds::Much);
        let of = |share: Option<StreamShare>| share.map(|share| (share.window, share.to_send));
        assert_eq!(of(share), of(alone));
        assert_eq!(all.bytes(), 1_000 + limits.window as usize);
    }
}
