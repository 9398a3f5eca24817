//! Streams: items come in order, each at most once and as they were sent. Both ends end, in time, and with
//! the handler's status after all items that were sent before it.

use std::collections::BTreeMap;

use starling_endpoint::Code;

use super::{Violation, content};
use crate::rng::mix;

/// Identifies a stream. The harness never uses an id twice.
pub type StreamId = u64;

/// The direction of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// The times by which a stream has to end.
#[derive(Clone, Copy, Debug)]
pub struct StreamBounds {
    /// At its client, ns.
    pub client_ns: u64,
    /// At its server, so long after the client has to be done with it, ns.
    pub server_after_ns: u64,
}

/// One direction's items.
#[derive(Clone, Copy, Debug, Default)]
struct Items {
    largest: u64,
    sent: u64,
    received: u64,
}

#[derive(Debug)]
struct Stream {
    bounds: StreamBounds,
    items: [Items; 2],
    /// The client has sent its last item.
    is_closed: bool,
    is_client_open: bool,
    /// By when the server's end has to be over, if there is one.
    server_until_ns: Option<u64>,
    has_begun: bool,
    /// The handler's status.
    finished: Option<Code>,
}

/// The streams of a run.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<StreamId, Stream>,
}

impl Streams {
    /// A client begins a stream, with items up to these lengths in each direction.
    ///
    /// # Panics
    /// If the id is in use, which is a mistake of the harness.
    pub fn begun(&mut self, id: StreamId, bounds: StreamBounds, largest: [u64; 2]) {
        let items = largest.map(|largest| Items {
            largest,
            ..Items::default()
        });
        let stream = Stream {
            bounds,
            items,
            is_closed: false,
            is_client_open: true,
            server_until_ns: None,
            has_begun: false,
            finished: None,
        };
        let before = self.streams.insert(id, stream);
        assert!(before.is_none(), "stream {id} exists");
    }

    /// The next item of a direction, which is being sent.
    pub fn send(&mut self, id: StreamId, flow: Flow) -> Vec<u8> {
        let items = &mut self.stream(id).items[flow as usize];
        items.sent += 1;
        item(id, flow, items.sent - 1, items.largest)
    }

    /// An item was refused because the stream is over.
    pub fn unsend(&mut self, id: StreamId, flow: Flow) {
        self.stream(id).items[flow as usize].sent -= 1;
    }

    /// A reader takes an item.
    pub fn received(&mut self, id: StreamId, flow: Flow, bytes: &[u8]) -> Result<(), Violation> {
        let items = &mut self.stream(id).items[flow as usize];
        let number = items.received;
        items.received += 1;
        if items.received > items.sent {
            return Err(violation(format!(
                "stream {id} {flow:?} brought {} items, and {} were sent",
                items.received, items.sent
            )));
        }
        let expected = item(id, flow, number, items.largest);
        match *bytes == expected {
            true => Ok(()),
            false => Err(violation(format!(
                "item {number} of stream {id} {flow:?} should have {} bytes, has {}, or they are wrong",
                expected.len(),
                bytes.len()
            ))),
        }
    }

    /// The client sends no more items.
    pub fn closed(&mut self, id: StreamId) {
        self.stream(id).is_closed = true;
    }

    /// The handler has read the client's last item.
    pub fn read_all(&mut self, id: StreamId) -> Result<(), Violation> {
        let stream = self.stream(id);
        let up = stream.items[Flow::Up as usize];
        if stream.is_closed && up.received == up.sent {
            return Ok(());
        }
        Err(violation(format!(
            "stream {id} ended for its handler after {} of {} items",
            up.received, up.sent
        )))
    }

    /// A handler begins.
    pub fn handler_began(&mut self, id: StreamId, now_ns: u64) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Err(violation(format!("no client has begun stream {id}")));
        };
        if std::mem::replace(&mut stream.has_begun, true) {
            return Err(violation(format!("stream {id} began twice")));
        }
        let StreamBounds {
            client_ns,
            server_after_ns,
        } = stream.bounds;
        stream.server_until_ns = Some(client_ns.max(now_ns) + server_after_ns);
        Ok(())
    }

    /// The handler ends, with this status.
    pub fn handler_finished(&mut self, id: StreamId, code: Code) {
        self.stream(id).finished = Some(code);
    }

    /// The server has nothing of the stream any more, or died.
    pub fn server_over(&mut self, id: StreamId) {
        self.stream(id).server_until_ns = None;
    }

    /// The client's reader learned that the stream has ended. `code`: the status, if it is one that only
    /// handlers end with.
    pub fn client_ended(
        &mut self,
        id: StreamId,
        now_ns: u64,
        code: Option<Code>,
    ) -> Result<(), Violation> {
        let stream = self.stream(id);
        if !std::mem::replace(&mut stream.is_client_open, false) {
            return Err(violation(format!("stream {id} ended twice")));
        }
        if now_ns > stream.bounds.client_ns {
            return Err(late(id, "client", stream.bounds.client_ns, now_ns));
        }
        let Some(code) = code else {
            return Ok(());
        };
        let down = stream.items[Flow::Down as usize];
        if stream.finished != Some(code) {
            return Err(violation(format!(
                "stream {id} ended with {code:?}, and its handler with {:?}",
                stream.finished
            )));
        }
        if down.received != down.sent {
            return Err(violation(format!(
                "stream {id} ended after {} of {} items",
                down.received, down.sent
            )));
        }
        Ok(())
    }

    /// The client died.
    pub fn abandon(&mut self, id: StreamId) {
        self.stream(id).is_client_open = false;
    }

    /// Complains about a stream that should have ended.
    pub fn check(&self, now_ns: u64) -> Result<(), Violation> {
        for (&id, stream) in &self.streams {
            if stream.is_client_open && now_ns > stream.bounds.client_ns {
                return Err(late(id, "client", stream.bounds.client_ns, now_ns));
            }
            if let Some(until_ns) = stream.server_until_ns
                && now_ns > until_ns
            {
                return Err(late(id, "server", until_ns, now_ns));
            }
        }
        Ok(())
    }

    /// How many streams are open at an end.
    pub fn open_count(&self) -> usize {
        let is_open = |stream: &&Stream| stream.is_client_open || stream.server_until_ns.is_some();
        self.streams.values().filter(is_open).count()
    }

    fn stream(&mut self, id: StreamId) -> &mut Stream {
        self.streams.get_mut(&id).expect("the harness began it")
    }
}

/// The item of this number.
fn item(id: StreamId, flow: Flow, number: u64, largest: u64) -> Vec<u8> {
    let seed = mix(mix(id) ^ number << 1 ^ flow as u64);
    content::item(seed, (seed % (largest + 1)) as usize)
}

fn late(id: StreamId, end: &str, until_ns: u64, now_ns: u64) -> Violation {
    let (until_us, now_us) = (until_ns / 1000, now_ns / 1000);
    let text = format!("stream {id} had to end at its {end} by {until_us} us; it is {now_us} us");
    Violation::new("every stream ends", text)
}

fn violation(detail: String) -> Violation {
    Violation::new("streams", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams() -> Streams {
        let mut streams = Streams::default();
        let bounds = StreamBounds {
            client_ns: 100,
            server_after_ns: 50,
        };
        streams.begun(1, bounds, [40, 40]);
        streams
    }

    #[test]
    fn items_out_of_order_or_twice_are_found() {
        let mut streams = streams();
        let items = [0, 1, 2].map(|_| streams.send(1, Flow::Up));
        assert_eq!(streams.received(1, Flow::Up, &items[0]), Ok(()));
        assert!(streams.received(1, Flow::Up, &items[0]).is_err(), "twice");
        assert_eq!(streams.received(1, Flow::Up, &items[2]), Ok(()));
        assert!(streams.received(1, Flow::Up, &items[2]).is_err(), "unsent");
        assert!(streams.received(1, Flow::Down, &items[0]).is_err());
    }

    #[test]
    fn a_wrong_end_is_found() {
        let mut streams = streams();
        assert_eq!(streams.handler_began(1, 0), Ok(()));
        assert!(streams.handler_began(1, 0).is_err(), "twice");
        assert!(streams.handler_began(2, 0).is_err(), "not begun");
        assert!(streams.read_all(1).is_err(), "not closed");
        let item = streams.send(1, Flow::Down);
        streams.handler_finished(1, Code::Ok);
        assert!(streams.client_ended(1, 5, Some(Code::Ok)).is_err(), "early");
        assert!(streams.client_ended(1, 5, None).is_err(), "twice");
        assert_eq!(streams.received(1, Flow::Down, &item), Ok(()));
    }

    #[test]
    fn a_stream_that_never_ends_is_found() {
        let mut streams = streams();
        assert_eq!(streams.handler_began(1, 0), Ok(()));
        assert_eq!(streams.check(100), Ok(()));
        assert!(streams.check(101).unwrap_err().detail.contains("client"));
        streams.abandon(1);
        assert_eq!(streams.check(150), Ok(()));
        assert!(streams.check(151).unwrap_err().detail.contains("server"));
        assert_eq!(streams.open_count(), 1);
        streams.server_over(1);
        assert_eq!((streams.open_count(), streams.check(151)), (0, Ok(())));
    }
}
