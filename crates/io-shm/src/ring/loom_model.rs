//! Every interleaving of a ring's two ends, and of a sleeper with the thread that wakes it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --lib -p starling-io-shm --target-dir target/loom
//! ```
//!
//! The model runs the production code over loom's atomics instead of shared memory. Loom has no
//! `membarrier`, so the model checks the sleep protocol with the real fence, which the sender uses
//! where there is no `membarrier`. That the sleeper's `membarrier` replaces it is the kernel's
//! promise. Loom guards the cells that hold payload, so it finds every access that the header or
//! `head` does not order, not only one that goes wrong.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;
use starling_io::TxError;

use crate::ring::{Consumer, HEADER_BYTES, Heads, HeapRange, LINE, Producer, RingMemory};
use crate::sleep::{Doorbell, EPOCH_STEP, SLEEPING, SleepWords, WANTS_SPACE};

const LINES: usize = 8;
const MAX_DATAGRAM: usize = 2 * LINE + 30;
const BULK_LINES: usize = 16;
const START: u64 = 6 * LINE as u64;
const BULK_START: u64 = 14 * LINE as u64;

struct Line {
    word: AtomicU32,
    rest: UnsafeCell<[u8; LINE - HEADER_BYTES]>,
}

/// The rings, the two sleep words and the two doorbell sockets.
struct Shared {
    lines: [Line; LINES],
    bulk: [UnsafeCell<[u8; LINE]>; BULK_LINES],
    heads: [AtomicU64; 2],
    /// The producer's message heap. Its bytes are atomics, because a revoked one is read while it is
    /// written: their values show what was read.
    heap: [AtomicU8; 2],
    revoked: AtomicU64,
    words: [AtomicU64; 2],
    bells: [Notify; 2],
}

/// One end of the rings: 0 produces, 1 consumes.
#[derive(Clone)]
struct End(Arc<Shared>, usize);

// SAFETY: loom checks every access to the cells.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl End {
    fn line(&self, at: u64) -> &Line {
        &self.0.lines[at as usize / LINE % LINES]
    }

    fn wait_for_bell(&self) {
        self.0.bells[self.1].wait();
    }

    fn ring_other(&self) {
        self.0.bells[1 - self.1].notify();
    }
}

impl RingMemory for End {
    fn line_bytes(&self) -> u64 {
        (LINES * LINE) as u64
    }

    fn bulk_bytes(&self) -> u64 {
        (BULK_LINES * LINE) as u64
    }

    fn load_header(&self, at: u64) -> u32 {
        self.line(at).word.load(Ordering::Acquire)
    }

    fn publish_header(&self, at: u64, word: u32) {
        self.line(at).word.store(word, Ordering::Release);
    }

    fn clear_header(&self, at: u64) {
        self.line(at).word.store(0, Ordering::Relaxed);
    }

    fn write_first_line(&self, at: u64, line: &[u8; LINE]) {
        let (_, rest) = line.split_at(HEADER_BYTES);
        self.line(at).rest.with_mut(|to| {
            // SAFETY: loom guards the cell, and it is as long.
            unsafe { (*to).copy_from_slice(rest) }
        });
    }

    fn write_lines(&self, at: u64, lines: &[u8]) {
        for (index, bytes) in (0u64..).zip(lines.chunks_exact(LINE)) {
            let line: &[u8; LINE] = bytes.try_into().unwrap();
            let at = at + index * LINE as u64;
            let word = u32::from_ne_bytes(*line.first_chunk().unwrap());
            self.line(at).word.store(word, Ordering::Relaxed);
            self.write_first_line(at, line);
        }
    }

    fn write_bulk(&self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at as usize..).zip(bytes) {
            self.0.bulk[at / LINE % BULK_LINES].with_mut(|to| {
                // SAFETY: loom guards the cell, and the index is in it.
                unsafe { (*to)[at % LINE] = *byte }
            });
        }
    }

    fn read_line(&self, at: u64, into: &mut [u8; LINE]) {
        self.read_lines(at, into);
    }

    fn read_lines(&self, at: u64, into: &mut [u8]) {
        for (index, bytes) in (0u64..).zip(into.chunks_mut(LINE)) {
            let line = self.line(at + index * LINE as u64);
            let mut whole = [0; LINE];
            let word = line.word.load(Ordering::Relaxed);
            whole[..HEADER_BYTES].copy_from_slice(&word.to_ne_bytes());
            line.rest.with(|from| {
                // SAFETY: loom guards the cell, and it is as long.
                whole[HEADER_BYTES..].copy_from_slice(unsafe { &*from });
            });
            bytes.copy_from_slice(&whole[..bytes.len()]);
        }
    }

    fn read_bulk(&self, at: u64, into: &mut [u8]) {
        for (at, byte) in (at as usize..).zip(into) {
            self.0.bulk[at / LINE % BULK_LINES].with(|from| {
                // SAFETY: loom guards the cell, and the index is in it.
                *byte = unsafe { (*from)[at % LINE] };
            });
        }
    }

    fn heap_bytes(&self) -> Option<u64> {
        Some(self.0.heap.len() as u64)
    }

    fn read_heap(&self, at: u64, into: &mut [u8]) -> bool {
        for (byte, from) in into.iter_mut().zip(&self.0.heap[at as usize..]) {
            *byte = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        self.0.revoked.load(Ordering::Relaxed) == 0
    }

    fn revoke(&self) {
        self.0.revoked.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn prefetch(&self, _at: u64) {}

    fn prefetch_to_write(&self, _at: u64, _bytes: usize) {}

    fn load_heads(&self) -> Heads {
        Heads {
            line: self.0.heads[0].load(Ordering::Acquire),
            bulk: self.0.heads[1].load(Ordering::Acquire),
        }
    }

    fn store_heads(&self, heads: Heads) {
        self.0.heads[0].store(heads.line, Ordering::Release);
        self.0.heads[1].store(heads.bulk, Ordering::Release);
    }
}

impl SleepWords for End {
    fn load_peer(&self) -> u64 {
        self.0.words[1 - self.1].load(Ordering::Relaxed)
    }

    fn store_own(&self, word: u64) {
        self.0.words[self.1].store(word, Ordering::Relaxed);
    }

    fn light_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Both ends of a ring. All lines but the next hold stale words that look like headers.
fn ends() -> (End, Producer<End, u8>, End, Consumer<End>) {
    let stale = 1 << 31 | 9;
    let shared = Arc::new(Shared {
        lines: std::array::from_fn(|index| Line {
            word: AtomicU32::new(if index as u64 * LINE as u64 == START {
                0
            } else {
                stale
            }),
            rest: UnsafeCell::new([9; LINE - HEADER_BYTES]),
        }),
        bulk: std::array::from_fn(|_| UnsafeCell::new([9; LINE])),
        heads: [AtomicU64::new(START), AtomicU64::new(BULK_START)],
        heap: [AtomicU8::new(0), AtomicU8::new(0)],
        revoked: AtomicU64::new(0),
        words: [AtomicU64::new(0), AtomicU64::new(0)],
        bells: [Notify::new(), Notify::new()],
    });
    let (out, into) = (End(Arc::clone(&shared), 0), End(shared, 1));
    let start = Heads {
        line: START,
        bulk: BULK_START,
    };
    let producer = Producer::new(out.clone(), MAX_DATAGRAM, start, 0);
    let consumer = Consumer::new(into.clone(), MAX_DATAGRAM, start);
    (out, producer, into, consumer)
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn append(producer: &mut Producer<End, u8>, length: usize) -> Result<(), TxError> {
    let body = [length as u8; MAX_DATAGRAM];
    producer.append(b"preamble", &[], &body[..length], &[])
}

fn take(consumer: &mut Consumer<End>) -> Option<(usize, bool)> {
    let mut buffer = [0; 3 * LINE];
    let (taken, returned_space) = consumer.receive_next(&mut buffer).unwrap()?;
    let datagram = &buffer[taken.at..][..taken.length];
    let (preamble, body) = datagram.split_at(8);
    assert_eq!(preamble, b"preamble");
    assert!(body.iter().all(|&byte| usize::from(byte) == body.len()));
    Some((body.len(), returned_space))
}

/// Datagrams of one line, of two lines and in the bulk ring arrive unchanged and in order. They are
/// more than the line ring holds.
#[test]
fn loom_datagrams_cross_whole_and_in_order() {
    const LENGTHS: [usize; 6] = [20, 100, 150, 101, 102, 21];
    model(|| {
        let (_, mut producer, _, mut consumer) = ends();
        let sender = thread::spawn(move || {
            for length in LENGTHS {
                while append(&mut producer, length) == Err(TxError::Full) {
                    thread::yield_now();
                }
                producer.publish(false);
            }
        });
        for length in LENGTHS {
            loop {
                if let Some((taken, _)) = take(&mut consumer) {
                    assert_eq!(taken, length);
                    break;
                }
                thread::yield_now();
            }
        }
        assert!(take(&mut consumer).is_none());
        sender.join().unwrap();
    });
}

/// A consumer that sleeps when it finds nothing receives every datagram; otherwise loom reports a
/// deadlock.
#[test]
fn loom_a_sleeping_receiver_is_woken() {
    const DATAGRAMS: usize = 3;
    model(|| {
        let (out, mut producer, into, mut consumer) = ends();
        let sender = thread::spawn(move || {
            let mut doorbell = Doorbell::default();
            for length in 1..=DATAGRAMS {
                append(&mut producer, length).unwrap();
                producer.publish(false);
                if doorbell.must_ring(&out, SLEEPING) {
                    out.ring_other();
                }
            }
        });
        let mut epoch = 0;
        for length in 1..=DATAGRAMS {
            while consumer.poll().is_none() {
                epoch += EPOCH_STEP;
                into.store_own(epoch | SLEEPING);
                fence(Ordering::SeqCst);
                if consumer.poll().is_none() {
                    into.wait_for_bell();
                }
                into.store_own(0);
            }
            assert_eq!(take(&mut consumer).unwrap().0, length);
        }
        sender.join().unwrap();
    });
}

/// Large datagrams, more than the bulk ring holds, arrive unchanged.
#[test]
fn loom_large_datagrams_cross_whole() {
    const DATAGRAMS: usize = 6;
    model(|| {
        let (_, mut producer, _, mut consumer) = ends();
        let sender = thread::spawn(move || {
            for number in 0..DATAGRAMS {
                while append(&mut producer, 130 + number) == Err(TxError::Full) {
                    thread::yield_now();
                }
            }
        });
        for number in 0..DATAGRAMS {
            let taken = loop {
                match take(&mut consumer) {
                    Some((taken, _)) => break taken,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(taken, 130 + number);
        }
        sender.join().unwrap();
    });
}

/// A producer that sleeps for lack of room is woken when there is room.
#[test]
fn loom_a_sender_that_waits_for_room_is_woken() {
    const DATAGRAMS: usize = 4;
    model(|| {
        let (out, mut producer, into, mut consumer) = ends();
        let receiver = thread::spawn(move || {
            let mut doorbell = Doorbell::default();
            for _ in 0..DATAGRAMS {
                let returned_space = loop {
                    if let Some((_, returned_space)) = take(&mut consumer) {
                        break returned_space;
                    }
                    thread::yield_now();
                };
                if returned_space && doorbell.must_ring(&into, WANTS_SPACE) {
                    into.ring_other();
                }
            }
        });
        let mut epoch = 0;
        for _ in 0..DATAGRAMS {
            while append(&mut producer, 110) == Err(TxError::Full) {
                epoch += EPOCH_STEP;
                out.store_own(epoch | SLEEPING | WANTS_SPACE);
                fence(Ordering::SeqCst);
                if !producer.poll_room() {
                    out.wait_for_bell();
                }
                out.store_own(0);
            }
            producer.publish(false);
        }
        receiver.join().unwrap();
    });
}

/// Makes a message of one byte in the heap and lends it.
fn lend(out: &End, producer: &mut Producer<End, u8>, place: u8, value: u8) -> Result<(), TxError> {
    out.0.heap[usize::from(place)].store(value, Ordering::Relaxed);
    let tail = HeapRange {
        at: place.into(),
        bytes: 1,
    };
    producer.append_lent(b"preamble", b"", b"", tail, place)
}

/// Copies a lent message; the inner `None` if it was revoked.
fn take_lent(consumer: &mut Consumer<End>) -> Option<Option<u8>> {
    let mut buffer = [0; 4 * LINE];
    let (taken, _) = consumer.receive_next(&mut buffer).unwrap()?;
    if taken.length == 0 {
        return Some(None);
    }
    assert_eq!(taken.length, 9);
    Some(Some(buffer[taken.at + 8]))
}

/// The memory of a message in the heap is used again as soon as it comes back. The consumer reads
/// what was there when it was lent.
#[test]
fn loom_a_lent_message_stays_until_it_is_consumed() {
    const MESSAGES: u8 = 4;
    model(|| {
        let (out, mut producer, _, mut consumer) = ends();
        let sender = thread::spawn(move || {
            let mut free = vec![0, 1];
            for value in 1..=MESSAGES {
                let place = loop {
                    if let Some(place) = free.pop() {
                        break place;
                    }
                    producer.poll_returned(|place| free.push(place));
                    thread::yield_now();
                };
                while lend(&out, &mut producer, place, value) == Err(TxError::Full) {
                    thread::yield_now();
                }
            }
        });
        for value in 1..=MESSAGES {
            let taken = loop {
                match take_lent(&mut consumer) {
                    Some(taken) => break taken,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(taken, Some(value));
        }
        sender.join().unwrap();
    });
}

/// A producer that ends the connection uses what it lent at once. The consumer reads what was lent,
/// or that it was revoked.
#[test]
fn loom_a_revoked_message_is_read_whole_or_not_at_all() {
    model(|| {
        let (out, mut producer, _, mut consumer) = ends();
        let sender = thread::spawn(move || {
            for place in 0..2 {
                lend(&out, &mut producer, place, 1 + place).unwrap();
            }
            producer.revoke(|place| out.0.heap[usize::from(place)].store(9, Ordering::Relaxed));
        });
        let mut next = 1;
        for _ in 0..4 {
            match take_lent(&mut consumer) {
                Some(Some(value)) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                Some(None) => break,
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
    });
}
