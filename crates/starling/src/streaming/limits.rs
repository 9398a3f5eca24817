//! The bounds on streams of a server.

use starling_endpoint::ProtocolConfig;

/// Streams of one client at once, unless set: three quarters of the slots that its requests can have.
const STREAMS: usize = 12_288;
/// Bytes of one client's items that wait for handlers, unless set.
const BYTES: usize = 64 << 20;

/// The bounds on the streams that one client has at a dispatch thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// Bytes of one stream's items that wait for its handler.
    pub(crate) window: u32,
    /// Streams of one client.
    pub(crate) streams: usize,
    /// Bytes of all streams of one client.
    pub(crate) bytes: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            window: starling_stream::DEFAULT_WINDOW,
            streams: STREAMS,
            bytes: BYTES,
        }
    }
}

/// What one client has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Holding {
    pub(crate) streams: usize,
    windows: usize,
}

impl StreamLimits {
    /// The same, for a server with these settings of sessions. Each stream has a request held, which takes a
    /// slot: streams must not take the last ones, for their next requests would find none.
    pub(crate) fn within(self, protocol: &ProtocolConfig) -> Self {
        let slots = protocol
            .max_sessions_per_client
            .saturating_mul(protocol.slots.into());
        Self {
            streams: self.streams.min((slots / 4).saturating_mul(3)),
            ..self
        }
    }

    /// The window of one more stream of a client. None: it has as many as it may.
    pub(crate) fn admit(&self, client: &mut Holding) -> Option<u32> {
        if client.streams >= self.streams {
            return None;
        }
        // A client that uses up its bytes gets streams with the smallest window, which takes one message.
        let left = self.bytes.saturating_sub(client.windows);
        let window = (self.window as usize).min(left).max(1);
        client.streams += 1;
        client.windows += window;
        Some(window as u32)
    }

    /// A stream with this window is over.
    pub(crate) fn release(client: &mut Holding, window: u32) {
        client.streams -= 1;
        client.windows -= window as usize;
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
        };
        let mut client = Holding::default();
        let windows: Vec<_> = (0..6).map(|_| limits.admit(&mut client)).collect();
        let expected = [Some(100), Some(100), Some(50), Some(1), Some(1), None];
        assert_eq!(windows, expected);
        windows.into_iter().flatten().for_each(|window| {
            StreamLimits::release(&mut client, window);
        });
        assert_eq!(limits.admit(&mut client), Some(100));
    }
}
