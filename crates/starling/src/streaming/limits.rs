//! The bounds on streams of a server.

use starling_endpoint::{HighWater, ProtocolConfig};

/// Streams of one client at once, unless set: three quarters of the slots that its requests can have.
const STREAMS: usize = 12_288;
/// Windows of one client's streams, unless set.
const BYTES: usize = 64 << 20;
/// What streams may hold in all, unless set.
const ALL_BYTES: usize = 512 << 20;

/// The bounds on the streams of a dispatch thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// Bytes of one stream's items that wait for its handler.
    pub(crate) window: u32,
    /// Streams of one client.
    pub(crate) streams: usize,
    /// Windows of all streams of one client.
    pub(crate) bytes: usize,
    /// Windows of all streams, and what they hold beyond those.
    pub(crate) all_bytes: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            window: starling_stream::DEFAULT_WINDOW,
            streams: STREAMS,
            bytes: BYTES,
            all_bytes: ALL_BYTES,
        }
    }
}

/// What one client has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) streams: usize,
    windows: usize,
    /// Held beyond the windows.
    beyond: usize,
}

/// What all clients have: windows, and what is held beyond those.
#[derive(Debug, Default)]
pub(super) struct AllHoldings {
    bytes: usize,
    most: HighWater,
}

impl AllHoldings {
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.most.note(self.bytes);
    }

    /// The most that they held since this was last asked, and now.
    pub(super) fn take_most(&mut self) -> usize {
        self.most.take(self.bytes)
    }
}

impl StreamLimits {
    /// The same, for a server with these settings of sessions. Each stream has a request held, which takes a
    /// slot: streams must not take the last ones, for their next requests would find none.
    pub(crate) fn within(self, protocol: &ProtocolConfig) -> Self {
        let slots = protocol
            .max_sessions_per_client
            .saturating_mul(protocol.slots.into());
        Self {
            streams: self.streams.min((slots - slots / 4).max(1)),
            ..self
        }
    }

    /// The window of one more stream of a client. None: it has as many as it may.
    ///
    /// A client may have as many bytes as are still free, so one that comes later finds some (Choudhury and
    /// Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
    pub(super) fn admit(&self, client: &mut Holding, all: &mut AllHoldings) -> Option<u32> {
        if client.streams >= self.streams {
            return None;
        }
        // A client that uses up its bytes gets streams with the smallest window, which takes one message.
        let of_client = self.bytes.saturating_sub(client.windows);
        let left = of_client.min(self.left(Some(client), all));
        let window = (self.window as usize).min(left).max(1);
        client.streams += 1;
        client.windows += window;
        all.add(window);
        Some(window as u32)
    }

    /// A stream with this window is over.
    pub(super) fn release(client: &mut Holding, all: &mut AllHoldings, window: u32) {
        client.streams -= 1;
        client.windows -= window as usize;
        all.bytes -= window as usize;
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

    #[test]
    fn streams_leave_slots_for_their_next_requests() {
        let mut protocol = ProtocolConfig::default();
        let limits = StreamLimits::default();
        assert_eq!(limits.within(&protocol).streams, STREAMS);
        protocol.max_sessions_per_client = 2;
        assert_eq!(limits.within(&protocol).streams, 48);
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
        let windows: Vec<_> = (0..6)
            .map(|_| limits.admit(&mut client, &mut all))
            .collect();
        let expected = [Some(100), Some(100), Some(50), Some(1), Some(1), None];
        assert_eq!(windows, expected);
        windows.into_iter().flatten().for_each(|window| {
            StreamLimits::release(&mut client, &mut all, window);
        });
        assert_eq!(limits.admit(&mut client, &mut all), Some(100));
    }

    #[test]
    fn a_client_has_as_much_as_is_free_and_all_have_no_more_than_there_is() {
        let limits = StreamLimits {
            window: 100,
            streams: 1_000,
            bytes: 1_000,
            all_bytes: 1_000,
        };
        let mut all = AllHoldings::default();
        let mut fill = |streams| {
            let mut client = Holding::default();
            for _ in 0..streams {
                limits.admit(&mut client, &mut all);
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
    fn a_client_holds_no_more_beyond_its_windows_than_is_free() {
        let limits = StreamLimits {
            window: 100,
            bytes: 1_000,
            all_bytes: 1_000,
            ..StreamLimits::default()
        };
        let (mut greedy, mut honest) = (Holding::default(), Holding::default());
        let mut all = AllHoldings::default();
        assert_eq!(limits.admit(&mut greedy, &mut all), Some(100));
        assert!(!limits.hold(Some(&mut greedy), &mut all, 801));
        assert!(limits.hold(Some(&mut greedy), &mut all, 400));
        assert!(!limits.hold(Some(&mut greedy), &mut all, 1));
        assert_eq!(limits.admit(&mut greedy, &mut all), Some(1));
        assert_eq!(limits.admit(&mut honest, &mut all), Some(100));
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
}
