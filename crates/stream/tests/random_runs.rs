//! Both ends of a stream over calls that overtake each other: whatever the users do and in whatever order
//! messages arrive, items come in order, each once, the stream ends at both ends, and memory is bounded. Requests
//! may be unpacked or converted on their way, come late, or be made again.

use bytes::Bytes;
use starling_call::{Metadata, Status};
use starling_stream::{
    Answer, Arrival, ClientEvent, ClientStream, Items, ServerStream, StreamRequest, StreamResponse,
    gone, put_item,
};

const ID: u64 = 7;
const ROOM: usize = 3;

/// A generator of numbers: xorshift64 (Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The item of this number: its length depends on the number, too.
fn item(number: u64, largest: u64) -> Vec<u8> {
    let len = number.wrapping_mul(0x9e37_79b9) % (largest + 1);
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + len as usize, number as u8);
    bytes
}

/// What becomes of a client's items before the server has them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    Nothing,
    /// They are packed, and stay so.
    Packed,
    /// They are packed, and the server lacks the algorithm.
    Unpacked,
    /// They are converted to another encoding, which takes less.
    Shrinks,
    /// Or more.
    Grows,
}

impl Change {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Packed,
        Self::Unpacked,
        Self::Shrinks,
        Self::Grows,
    ];

    /// Bytes that the item of this number has more when it is unpacked.
    fn unpacked(self, number: u64) -> usize {
        let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let most = [1, 3_000, 60_000, 300_000][random as usize % 4];
        match self {
            Self::Packed | Self::Unpacked => random as usize % most,
            Self::Nothing | Self::Shrinks | Self::Grows => 0,
        }
    }

    /// The item of this number as the server has it.
    fn apply(self, number: u64, mut item: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Nothing | Self::Packed => {}
            Self::Unpacked => item.resize(item.len() + self.unpacked(number), 9),
            Self::Shrinks => item.truncate(8),
            Self::Grows => item.resize(5 * item.len(), 9),
        }
        item
    }

    /// How many windows of the client's bytes may be unread at the server.
    fn tolerance(self) -> usize {
        match self {
            Self::Shrinks | Self::Grows => 8,
            Self::Nothing | Self::Packed | Self::Unpacked => 2,
        }
    }
}

/// One direction's items: how many there are, and how many were sent and read.
#[derive(Debug, Default)]
struct Flow {
    count: u64,
    largest: u64,
    sent: u64,
    read: u64,
}

impl Flow {
    fn drawn(random: &mut Random) -> Self {
        let count = [0, 1, 5, 300][random.below(4) as usize];
        Self {
            count,
            largest: [0, 40, 3_000, 90_000][random.below(4) as usize],
            ..Self::default()
        }
    }

    fn next(&mut self) -> Option<(Vec<u8>, Option<Bytes>)> {
        (self.sent < self.count).then(|| {
            let mut head = item(self.sent, self.largest);
            self.sent += 1;
            // A part of some items is held by reference.
            let tail = (head.len() > 500).then(|| Bytes::from(head.split_off(300)));
            (head, tail)
        })
    }

    fn check(&mut self, got: &[u8], change: Change) {
        let expected = change.apply(self.read, item(self.read, self.largest));
        assert_eq!(got, expected, "item {}", self.read);
        self.read += 1;
    }
}

struct World {
    random: Random,
    change: Change,
    /// One of fifty messages comes late.
    is_late: bool,
    /// Some requests are made again before they leave.
    is_again: bool,
    client: ClientStream,
    server: ServerStream<u64>,
    /// Requests on their way, by a number of their own.
    requests: Vec<(u64, StreamRequest)>,
    responses: Vec<Result<StreamResponse, Status>>,
    next: u64,
    up: Flow,
    down: Flow,
    /// Of the client and the server.
    windows: [u32; 2],
    reads: [u64; 2],
    client_end: Option<Result<(), Status>>,
    handler_ends_after: u64,
}

fn body_of(bundle: starling_stream::Bundle, room: usize) -> Bytes {
    let (mut bytes, tail) = bundle.into_parts();
    assert!(bytes.len() >= room || bytes.is_empty());
    if let Some(tail) = tail {
        bytes.extend_from_slice(&tail);
    }
    let room = room.min(bytes.len());
    Bytes::from(bytes).slice(room..)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        let window = [1, 100, 5_000, 256 << 10][random.below(4) as usize];
        let (up, down) = (Flow::drawn(&mut random), Flow::drawn(&mut random));
        // Readers from as quick as the writer to a hundred times slower.
        let reads = [0, 1].map(|_| [1, 3, 100][random.below(3) as usize]);
        let ends_early = random.one_in(4);
        let handler_ends_after = match ends_early {
            true => random.below(up.count + 1),
            false => up.count,
        };
        let change = Change::ALL[random.below(5) as usize];
        let server_window = match change {
            Change::Nothing => window,
            _ => [1, 100, 5_000, 100_000, 256 << 10][random.below(5) as usize],
        };
        let mut server = ServerStream::new(ID, server_window, ROOM);
        server.tolerate(change.tolerance() as u8);
        Self {
            change,
            is_late: random.one_in(2),
            is_again: random.one_in(2),
            client: ClientStream::new(ID, window, ROOM, true),
            server,
            requests: Vec::new(),
            responses: Vec::new(),
            next: 0,
            up,
            down,
            windows: [window, server_window],
            reads,
            client_end: None,
            handler_ends_after,
            random,
        }
    }

    /// One thing happens. False if nothing could.
    fn step(&mut self) {
        match self.random.below(5) {
            0 => self.client_writes(),
            1 if self.random.one_in(self.reads[0]) => self.client_reads(),
            2 if self.random.one_in(self.reads[1]) => self.handler_runs(),
            3 => self.deliver_request(),
            4 => self.deliver_response(),
            _ => {}
        }
        self.transmit();
        let [client, server] = self.windows.map(|window| window as usize + 65_536);
        // One item may come beyond that, and overtake others.
        let [received, sent] = [100_000, 500_000];
        assert!(
            self.client.unread_bytes() < 2 * client + 2 * received,
            "client"
        );
        let most = self.change.tolerance() * server + 2 * sent;
        assert!(self.server.unread_bytes() < most, "server");
    }

    fn client_writes(&mut self) {
        if !self.client.may_push() || self.client.is_over() {
            return;
        }
        match self.up.next() {
            Some((head, tail)) => {
                let unpacked = self.change.unpacked(self.up.sent - 1);
                let pushed = self.client.push_packed(&head, tail.as_ref(), unpacked);
                pushed.unwrap();
            }
            None => self.client.close(),
        }
    }

    fn client_reads(&mut self) {
        while let Some(event) = self.client.poll() {
            match event {
                ClientEvent::Items(items) => {
                    items.for_each(|item| self.down.check(&item, Change::Nothing));
                }
                ClientEvent::End(result) => {
                    self.client_end = Some(result);
                    return;
                }
            }
            if self.random.one_in(3) {
                return;
            }
        }
    }

    fn handler_runs(&mut self) {
        while let Some(items) = self.server.take() {
            items.for_each(|item| self.up.check(&item, self.change));
            if self.random.one_in(3) {
                break;
            }
        }
        while self.server.finished().is_none() && self.server.may_push() {
            let Some((head, tail)) = self.down.next() else {
                break;
            };
            self.server.push(&head, tail.as_ref()).unwrap();
            if self.random.one_in(3) {
                break;
            }
        }
        let read = self.up.read >= self.handler_ends_after;
        let has_all = self.handler_ends_after < self.up.count || self.server.is_read();
        if read && has_all && self.down.sent == self.down.count {
            self.server.finish(Err(Status::not_found("the end")));
        }
    }

    fn transmit(&mut self) {
        while let Some(request) = self.client.poll_request() {
            self.requests.push((self.next, request));
            self.next += 1;
        }
        while let Some(answer) = self.server.poll_answer() {
            self.respond(answer);
        }
    }

    fn respond(&mut self, answer: Answer<u64>) {
        self.responses.push(Ok(StreamResponse {
            position: answer.position,
            status: answer.status,
            metadata: answer.metadata,
            body: body_of(answer.body, ROOM),
        }));
    }

    fn deliver_request(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let index = self.random.below(self.requests.len() as u64) as usize;
        if self.stays_away(self.requests[index].1.position.number) {
            return;
        }
        let (number, mut request) = self.requests.swap_remove(index);
        let number_here = request.position.number;
        if self.is_again && number_here > 0 && !self.client.is_over() && self.random.one_in(3) {
            request.position = self.client.position_of(number_here);
        }
        if self.server.is_over() {
            return self.respond(gone(number, ID));
        }
        let mut body = Vec::new();
        let items = Items::new(body_of(request.body, ROOM));
        for item in items {
            let number = u64::from_le_bytes(*item.first_chunk().unwrap());
            let item = self.change.apply(number, item.to_vec());
            let write = |body: &mut Vec<u8>| {
                body.extend_from_slice(&item);
                Ok::<_, ()>(())
            };
            put_item(&mut body, write).unwrap();
        }
        let handled = self
            .server
            .handle_request(request.position, body.into(), number);
        handled.unwrap_or_else(|violation| panic!("{violation}: {:?}", self.change));
    }

    /// Whether a message is still on its way.
    fn stays_away(&mut self, number: u64) -> bool {
        self.is_late && number % 50 == 49 && !self.random.one_in(300)
    }

    fn deliver_response(&mut self) {
        if self.responses.is_empty() {
            return;
        }
        let index = self.random.below(self.responses.len() as u64) as usize;
        let number = match &self.responses[index] {
            Ok(response) => response.position.number,
            Err(_) => 0,
        };
        if self.stays_away(number) {
            return;
        }
        let response = self.responses.swap_remove(index);
        self.client.handle_response(response);
    }
}

#[test]
fn items_come_in_order_each_once_and_both_ends_end() {
    for seed in 0..6_000 {
        let mut world = World::new(seed);
        let mut steps = 0;
        while world.client_end.is_none() {
            world.step();
            steps += 1;
            assert!(
                steps < 5_000_000,
                "seed {seed} does not end: up {:?}, down {:?}, {} on their way, {} back, {:?}",
                world.up,
                world.down,
                world.requests.len(),
                world.responses.len(),
                world.client
            );
        }
        let end = world.client_end.clone().unwrap();
        assert_eq!(end, Err(Status::not_found("the end")), "seed {seed}");
        assert_eq!(world.down.read, world.down.count, "seed {seed}");
        assert!(world.up.read >= world.handler_ends_after, "seed {seed}");
        // Nothing stays out.
        for _ in 0..10_000 {
            world.step();
        }
        assert_eq!(world.client.outstanding(), 0, "seed {seed}");
        assert!(world.server.held().is_empty(), "seed {seed}");
    }
}

#[test]
fn a_stream_at_rest_has_one_request_held_and_is_small() {
    let mut world = World::new(1);
    world.up.count = 0;
    world.down.count = 0;
    world.handler_ends_after = 1;
    for _ in 0..1000 {
        world.deliver_request();
        world.deliver_response();
        world.transmit();
    }
    assert_eq!(world.client.outstanding(), 1);
    assert_eq!(world.server.held().len(), 1);
    let client = size_of::<ClientStream>();
    let server = size_of::<ServerStream<u64>>();
    assert!(client <= 512 && server <= 512, "{client}, {server}");
}

#[test]
fn an_exchange_of_one_item_each_way_is_one_call() {
    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    let mut server = ServerStream::new(ID, 1000, ROOM);
    let mut calls = 0;
    for round in 0..100u64 {
        client.push(&round.to_le_bytes(), None).unwrap();
        let mut got = None;
        while got.is_none() {
            while let Some(request) = client.poll_request() {
                let body = body_of(request.body, ROOM);
                calls += 1;
                (server.handle_request(request.position, body, calls)).unwrap();
            }
            for item in std::iter::from_fn(|| server.take())
                .flatten()
                .collect::<Vec<_>>()
            {
                server.push(&item, None).unwrap();
            }
            while let Some(answer) = server.poll_answer() {
                client.handle_response(Ok(StreamResponse {
                    position: answer.position,
                    status: None,
                    metadata: Metadata::default(),
                    body: body_of(answer.body, ROOM),
                }));
            }
            got = client.poll();
        }
        let Some(ClientEvent::Items(mut items)) = got else {
            panic!("{got:?}");
        };
        assert_eq!(items.next().as_deref(), Some(&round.to_le_bytes()[..]));
        assert!(items.is_empty());
    }
    assert!(calls <= 102, "{calls} calls");
}

#[test]
fn a_cancelled_stream_tells_the_server_and_ends_here() {
    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    let mut server = ServerStream::new(ID, 1000, ROOM);
    let opening = client.poll_request().unwrap();
    let body = body_of(opening.body, ROOM);
    server.handle_request(opening.position, body, 0).unwrap();
    let cancel = client.cancel(Status::cancelled("here")).unwrap();
    let body = body_of(cancel.body, ROOM);
    let arrival = server.handle_request(cancel.position, body, 1);
    assert_eq!(arrival, Ok(Arrival::Cancelled));
    let Some(ClientEvent::End(end)) = client.poll() else {
        panic!("the stream goes on");
    };
    assert_eq!(end, Err(Status::cancelled("here")));
    assert_eq!(client.poll_request(), None);
    assert!(client.push(b"late", None).is_err());
}

#[test]
fn a_stream_that_never_left_needs_no_cancellation() {
    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    assert_eq!(client.cancel(Status::cancelled("here")), None);
}

#[test]
fn a_stream_that_is_given_up_has_not_run_if_it_never_left() {
    for has_left in [false, true] {
        let mut client = ClientStream::new(ID, 1000, ROOM, true);
        if has_left {
            client.poll_request().expect("it begins");
        }
        client.cancel(Status::cancelled("here"));
        let Some(ClientEvent::End(Err(status))) = client.poll() else {
            panic!("the stream goes on");
        };
        assert_eq!(status.may_have_run(), has_left);
    }
}

#[test]
fn a_later_call_that_did_not_run_does_not_say_that_the_stream_did_not() {
    let not_run = || Err(Status::unavailable("not sent; it did not run").with_not_run());
    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    client.poll_request().unwrap();
    client.handle_response(not_run());
    let Some(ClientEvent::End(Err(first))) = client.poll() else {
        panic!("the stream goes on");
    };
    assert!(!first.may_have_run());
    assert_eq!(first.message(), "not sent; it did not run");

    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    client.poll_request().unwrap();
    client.handle_response(Ok(StreamResponse {
        position: starling_call::StreamPosition {
            id: ID,
            window: 1000,
            ..Default::default()
        },
        ..StreamResponse::default()
    }));
    client.poll_request().unwrap();
    client.handle_response(not_run());
    let Some(ClientEvent::End(Err(later))) = client.poll() else {
        panic!("the stream goes on");
    };
    assert!(later.may_have_run());
    // Its text does not say so either.
    let text = "the stream has begun, and a later request of it failed: not sent; it did not run";
    assert_eq!(later.message(), text);
}

#[test]
fn a_server_that_lost_the_stream_ends_it() {
    let mut client = ClientStream::new(ID, 1000, ROOM, true);
    let mut server = ServerStream::new(ID, 1000, ROOM);
    let opening = client.poll_request().unwrap();
    let body = body_of(opening.body, ROOM);
    server.handle_request(opening.position, body, 0).unwrap();
    let answer = server.poll_answer().expect("the client wants an answer");
    let response = |answer: Answer<u64>| StreamResponse {
        position: answer.position,
        ..StreamResponse::default()
    };
    client.handle_response(Ok(response(answer)));
    assert!(client.poll_request().is_some());
    assert!(client.handle_response(Ok(response(gone(1, ID)))));
    let Some(ClientEvent::End(Err(status))) = client.poll() else {
        panic!("the stream goes on");
    };
    assert_eq!(status.code(), starling_call::Code::Unavailable);
}
