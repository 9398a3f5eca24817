//! The example of PROTOCOL.md, section 11. Two endpoints send and accept exactly the bytes that the
//! document shows in hex, and compute the hashes of its section 9.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use starling_endpoint::{
    CallOptions, Code, Encoding, Endpoint, EndpointConfig, Handler, Idle, Metadata, MethodId,
    Secrets, SessionId, Status,
};
use starling_io::{
    Capabilities, Clock, Datagram, Ecn, IoError, IoEvent, PacketIo, PacketRx, PacketTx, PeerId,
    Source, TxError, Wake,
};
use starling_message::method_id;
use starling_message::schema::Schema;

/// The datagrams of the example are as small as a path may have them.
const MAX_DATAGRAM: usize = 512;
/// The time that each datagram is on its way.
const FLIGHT: Duration = Duration::from_micros(5);
/// Both clocks read this at the beginning.
const START_NS: u64 = 1_000_000_000;

const CLIENT_KEY: u8 = 0xc1;
const SERVER_KEY: u8 = 0x5e;

const BIND: &str = "/starling.reflection.Reflection/Bind";
const GREET: &str = "/hello.Hello/Greet";
const LOOK_UP: &str = "/hello.Hello/LookUp";
const STORE: &str = "/hello.Hello/Store";

// ---- a device for two endpoints that know each other's address only ----

#[derive(Clone)]
struct ManualClock(Arc<AtomicU64>);

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

type Queue = Rc<RefCell<VecDeque<Vec<u8>>>>;

struct Device {
    capabilities: Capabilities,
    rx: Rx,
    tx: Tx,
}

struct Rx {
    inbox: Queue,
    burst: Vec<Vec<u8>>,
    /// The other end is a peer.
    knows: Rc<Cell<bool>>,
}

struct Tx {
    outbox: Queue,
    open: Vec<u8>,
    knows: Rc<Cell<bool>>,
}

struct NoWaker;

impl Wake for NoWaker {
    fn wake(&self) {}
}

fn other_end() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9000))
}

impl Device {
    fn new(inbox: &Queue, outbox: &Queue) -> Self {
        let knows = Rc::new(Cell::new(false));
        Self {
            capabilities: Capabilities {
                scheme: "example",
                reliable: false,
                ecn: false,
                rx_queue_bytes: 256 << 10,
                rx_queue_datagrams: 1024,
                max_datagram: MAX_DATAGRAM,
            },
            rx: Rx {
                inbox: Rc::clone(inbox),
                burst: Vec::new(),
                knows: Rc::clone(&knows),
            },
            tx: Tx {
                outbox: Rc::clone(outbox),
                open: Vec::new(),
                knows,
            },
        }
    }
}

impl PacketIo for Device {
    type Rx = Rx;
    type Tx = Tx;

    fn split(&mut self) -> (&mut Rx, &mut Tx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        "example://".to_owned()
    }

    fn open_peer(&mut self, _address: &str) -> Result<PeerId, IoError> {
        self.rx.knows.set(true);
        Ok(PeerId(0))
    }

    fn close_peer(&mut self, _peer: PeerId) {
        self.rx.knows.set(false);
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }

    fn poll_event(&mut self) -> Option<IoEvent> {
        None
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> Result<(), IoError> {
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(NoWaker)
    }
}

impl PacketRx for Rx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.burst = self.inbox.borrow_mut().drain(..).collect();
        Ok(self.burst.len())
    }

    fn datagram(&self, index: usize) -> Datagram<'_> {
        Datagram {
            source: match self.knows.get() {
                true => Source::Peer(PeerId(0)),
                false => Source::Unknown(other_end()),
            },
            ecn: Ecn::NotCapable,
            bytes: &self.burst[index],
        }
    }
}

impl PacketTx for Tx {
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        if self.open.len() + head.len() + body.len() + tail.len() > MAX_DATAGRAM {
            self.seal(peer);
        }
        if self.open.is_empty() {
            self.open.extend_from_slice(preamble);
        }
        for part in [head, body, tail] {
            self.open.extend_from_slice(part);
        }
        Ok(())
    }

    fn seal(&mut self, _peer: PeerId) {
        if !self.open.is_empty() {
            let datagram = std::mem::take(&mut self.open);
            self.outbox.borrow_mut().push_back(datagram);
        }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.seal(PeerId(0));
        Ok(())
    }

    fn send_to_unknown(&mut self, _to: SocketAddr, datagram: &[u8]) {
        self.outbox.borrow_mut().push_back(datagram.to_vec());
    }

    fn accept_peer(&mut self, _address: SocketAddr) -> Result<PeerId, IoError> {
        self.knows.set(true);
        Ok(PeerId(0))
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }
}

// ---- the document ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// The datagrams of section 11, in order, each with its receiver and its bytes.
fn example() -> Vec<(Direction, String, Vec<u8>)> {
    let document = document();
    let (_, section) = (document.split_once("\n## 11.")).expect("there is a section 11");
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let mut datagrams: Vec<(Direction, String, Vec<u8>)> = Vec::new();
    let mut in_code = false;
    for line in section.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
            continue;
        }
        if !in_code {
            continue;
        }
        let direction = match line.chars().next() {
            Some('>') => Some(Direction::ToServer),
            Some('<') => Some(Direction::ToClient),
            _ => None,
        };
        if let Some(direction) = direction {
            datagrams.push((direction, line[1..].trim().to_owned(), Vec::new()));
            continue;
        }
        let hex = line.split(';').next().unwrap_or("");
        for word in hex.split_whitespace() {
            let (_, _, bytes) = datagrams.last_mut().expect("hex follows a title");
            let (byte, times) = word.split_once('*').unwrap_or((word, "1"));
            let byte = u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("no hex: {word}"));
            let times: usize = times.parse().expect("how often a byte comes");
            bytes.extend(std::iter::repeat_n(byte, times));
        }
    }
    datagrams
}

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../PROTOCOL.md");
    std::fs::read_to_string(path).expect("PROTOCOL.md is in the workspace's root")
}

/// A datagram as the document writes it: the preamble, then each frame's header and payload.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut line = |bytes: &[u8]| {
        let groups: Vec<String> = bytes
            .chunks(4)
            .map(|group| {
                let bytes: Vec<_> = group.iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(" ")
            })
            .collect();
        let _ = writeln!(text, "{}", groups.join("  "));
    };
    let (preamble, mut rest) = bytes.split_at(8.min(bytes.len()));
    line(preamble);
    while rest.len() >= 16 {
        let (header, after) = rest.split_at(16);
        line(header);
        let length = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let (payload, after) = after.split_at(length.min(after.len()));
        payload.chunks(24).for_each(&mut line);
        rest = after;
    }
    text
}

// ---- the calls of the example ----

struct Exchange {
    clock: ManualClock,
    client: Endpoint<Device, ManualClock>,
    server: Endpoint<Device, ManualClock>,
    to_server: Queue,
    to_client: Queue,
    from_client: Queue,
    from_server: Queue,
    seen: Vec<(Direction, Vec<u8>)>,
}

impl Exchange {
    fn new() -> Self {
        let clock = ManualClock(Arc::new(AtomicU64::new(START_NS)));
        let queues: [Queue; 4] = Default::default();
        let [to_server, to_client, from_client, from_server] = queues;
        let endpoint = |inbox: &Queue, outbox: &Queue, key: u8| {
            let mut config = EndpointConfig {
                idle: Idle::Spin,
                ..EndpointConfig::default()
            };
            config.protocol.slots = 8;
            let secrets = Secrets {
                token_key: [key; 16],
                cookie_key: std::array::from_fn(|index| index as u8),
            };
            Endpoint::new(Device::new(inbox, outbox), clock.clone(), config, secrets).unwrap()
        };
        Self {
            client: endpoint(&to_client, &from_client, CLIENT_KEY),
            server: endpoint(&to_server, &from_server, SERVER_KEY),
            clock,
            to_server,
            to_client,
            from_client,
            from_server,
            seen: Vec::new(),
        }
    }

    fn pass(&self, time: Duration) {
        (self.clock.0).fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Turns of both ends until neither sends anything. The server gets a datagram at a time and
    /// answers it before the next one arrives.
    fn settle(&mut self) {
        loop {
            for _ in 0..3 {
                self.client.poll().unwrap();
            }
            let sent = self.from_client.borrow_mut().pop_front();
            let Some(datagram) = sent else {
                return;
            };
            self.seen.push((Direction::ToServer, datagram.clone()));
            self.pass(FLIGHT);
            self.to_server.borrow_mut().push_back(datagram);
            for _ in 0..3 {
                self.server.poll().unwrap();
            }
            let answers: Vec<_> = self.from_server.borrow_mut().drain(..).collect();
            for datagram in answers {
                self.seen.push((Direction::ToClient, datagram.clone()));
                self.pass(FLIGHT);
                self.to_client.borrow_mut().push_back(datagram);
            }
        }
    }

    /// Makes a call; returns how it ended.
    fn call(
        &mut self,
        session: SessionId,
        path: &str,
        options: &CallOptions,
        body: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let end = Arc::new(Mutex::new(None));
        let into = Arc::clone(&end);
        let collect = self.client.register_continuation(move |_, completion| {
            let body = completion.result.map(|response| response.body().to_vec());
            *into.lock() = Some(body);
        });
        let method = MethodId(method_id(path));
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(body);
        (self.client)
            .call(session, method, options, build, collect, 0)
            .unwrap();
        self.settle();
        let end = end.lock().take();
        end.expect("the call has ended")
    }
}

/// `BindRequest` in protobuf.
fn bind_request(path: &str, hash: u64) -> Vec<u8> {
    let mut bytes = vec![0x0a, path.len() as u8];
    bytes.extend_from_slice(path.as_bytes());
    for tag in [0x11, 0x19] {
        bytes.push(tag);
        bytes.extend_from_slice(&hash.to_le_bytes());
    }
    bytes
}

/// A message with one text field, in native layout.
fn text_message(text: &str) -> Vec<u8> {
    let mut bytes = vec![8, 0, 0, 0, text.len() as u8, 0, 0, 0];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// The hash of a message type with one text field, number 1.
fn text_hash() -> u64 {
    let field = "\x01\x01\x01m\x01\x01\x09\x00\x04text\x00";
    Schema::parse(field.as_bytes()).unwrap().hash()
}

fn register(server: &mut Endpoint<Device, ManualClock>) {
    let method = |path| MethodId(method_id(path));
    let answer = |body: &'static [u8]| {
        Handler::inline(move |_, _, mut reply| {
            reply.buffer().extend_from_slice(body);
            reply.ok();
        })
    };
    // BindResponse: identical = true.
    server.register(method(BIND), answer(&[0x08, 0x01]));
    server.register(
        method(GREET),
        Handler::inline(|_, request, mut reply| {
            assert_eq!(request.body(), text_message("you"));
            reply.buffer().extend(text_message("Hello, you"));
            reply.ok();
        }),
    );
    server.register(
        method(LOOK_UP),
        Handler::inline(|_, request, reply| {
            assert_eq!(request.metadata().value("tenant"), Some(&b"a"[..]));
            reply.status(Status::not_found("no such key"));
        }),
    );
    server.register(
        method(STORE),
        Handler::inline(|_, request, reply| {
            assert_eq!(request.body(), [0x61; 600]);
            reply.ok();
        }),
    );
}

#[test]
fn the_example_is_what_endpoints_send_and_accept() {
    let mut exchange = Exchange::new();
    register(&mut exchange.server);
    let session = exchange.client.connect("example://").unwrap();
    exchange.settle();

    let protobuf = CallOptions {
        encoding: Encoding::Protobuf,
        ..CallOptions::default()
    };
    let bind = bind_request(GREET, text_hash());
    let bound = exchange.call(session, BIND, &protobuf, &bind);
    assert_eq!(bound.unwrap(), [0x08, 0x01]);

    let plain = CallOptions::default();
    let greeting = exchange.call(session, GREET, &plain, &text_message("you"));
    assert_eq!(greeting.unwrap(), text_message("Hello, you"));

    let mut metadata = Metadata::new();
    metadata.insert("tenant", "a").unwrap();
    let urgent = CallOptions {
        timeout: Some(Duration::from_millis(100)),
        metadata,
        ..CallOptions::default()
    };
    let missing = exchange.call(session, LOOK_UP, &urgent, b"key");
    assert_eq!(missing.unwrap_err().code(), Code::NotFound);

    let stored = exchange.call(session, STORE, &plain, &[0x61; 600]);
    assert_eq!(stored.unwrap(), b"");

    for _ in 0..11 {
        exchange.pass(Duration::from_millis(50));
        exchange.server.poll().unwrap();
        exchange.settle();
    }
    exchange.client.close(session);
    exchange.settle();

    let documented = example();
    let mut all = String::new();
    for (direction, bytes) in &exchange.seen {
        let arrow = match direction {
            Direction::ToServer => '>',
            Direction::ToClient => '<',
        };
        let _ = write!(all, "{arrow}\n{}", hex(bytes));
    }
    for (at, (direction, bytes)) in exchange.seen.iter().enumerate() {
        let Some((documented_direction, title, documented)) = documented.get(at) else {
            panic!("datagram {at} is not in PROTOCOL.md. All of them:\n{all}");
        };
        assert_eq!(direction, documented_direction, "{title}\n{all}");
        assert_eq!(hex(bytes), hex(documented), "{title}\n{all}");
    }
    assert_eq!(exchange.seen.len(), documented.len(), "datagrams\n{all}");
}

/// The inputs that a harness of another package keeps.
fn kept(folder: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/../{folder}/corpus", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder).expect("the folder of the harness");
    let read = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file?.path());
    files.map(|file| read(file).expect("a file")).collect()
}

/// A fuzzer that begins with what the protocol sends gets further than one that begins with nothing.
#[test]
fn the_inputs_that_harnesses_keep_are_of_this_version_of_the_protocol() {
    let datagrams = kept("proto/src/wire/__fuzz__/wire__frame__tests__datagram");
    let messages =
        kept("call/src/header/__fuzz__/header__tests__any_bytes_give_a_header_or_an_error");
    for (_, title, datagram) in example() {
        assert!(datagrams.contains(&datagram), "{title} is not kept");
        let (kind, message) = (datagram[8] & 0x1f, &datagram[24..]);
        if kind == 1 || kind == 2 {
            assert!(
                messages.iter().any(|kept| kept == message),
                "{title} is not kept"
            );
        }
    }
}

#[test]
fn the_document_has_the_hashes_of_paths_and_types() {
    let document = document();
    for path in [BIND, GREET] {
        let id = format!("| {:#010x} |", method_id(path));
        let row = (document.lines()).find(|line| line.starts_with(&format!("| `{path}` |")));
        assert!(row.expect(path).ends_with(&id), "{path}: {id}");
    }
    // The compact form with names, and its hash as the document has it.
    let types: [(&str, &[u8]); 2] = [
        (
            "BindRequest",
            b"\x01\x01\x01m\x04\x01\x09\x00\x01a\x02\x06\x00\x01b\x03\x06\x00\x01c\x04\x08\x00\x01d\x00",
        ),
        (
            "BindResponse",
            b"\x01\x01\x01m\x03\x01\x08\x00\x01a\x02\x0c\x00\x01b\x03\x0d\x00\x01c\x00",
        ),
    ];
    for (name, schema) in types {
        let hash = format!("| {:#018x} |", Schema::parse(schema).unwrap().hash());
        let row = (document.lines()).find(|line| line.starts_with(&format!("| {name} |")));
        assert!(row.expect(name).ends_with(&hash), "{name}: {hash}");
    }
}
