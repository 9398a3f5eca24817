//! The ring's protocol in one thread: against a model, full, and with a hostile peer. The loom model
//! (`loom_model`) checks what can only happen between threads.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use starling_io::TxError;

mod lent;

use super::producer::STAGING_BYTES;
use super::*;
use crate::map::{Region, Ring, Side};

const RING: usize = 64 << 10;
const PREAMBLE: &[u8; 8] = b"preamble";

struct Pair {
    region: Arc<Region>,
    producer: Producer<Ring, u32>,
    consumer: Consumer<Ring>,
    buffer: Vec<u8>,
}

impl Pair {
    fn new(max_datagram: usize) -> Self {
        let region = Arc::new(Region::create(RING).unwrap().0);
        let out = Ring::produced_by(&region, Side::Connector);
        let into = Ring::consumed_by(&region, Side::Acceptor);
        let consumer = Consumer::new(into, max_datagram, Heads::default());
        let lines = (region.line_bytes() / LINE) as u64;
        Self {
            producer: Producer::new(out, max_datagram, Heads::default(), lines - 1),
            buffer: vec![0; consumer.buffer_bytes()],
            consumer,
            region,
        }
    }

    fn append(&mut self, body: &[u8]) -> Result<(), TxError> {
        self.producer.append(PREAMBLE, &[], body, &[])
    }

    fn take(&mut self) -> Result<Option<&[u8]>, ReceiveError> {
        let taken = self.consumer.receive_next(&mut self.buffer)?;
        Ok(taken.map(|(taken, _)| &self.buffer[taken.at..][..taken.length]))
    }

    fn scribble_heads(&self, line: u64, bulk: u64) {
        let at = Region::heads_offset(Side::Connector);
        self.region.scribble(None, at, &line.to_ne_bytes());
        self.region.scribble(None, at + 8, &bulk.to_ne_bytes());
    }
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    // Every word looks like a header, so a word mistaken for a header is noticed.
    (0..length)
        .map(|i| {
            let word = (VALID | 20).to_ne_bytes();
            word[i % 4] ^ if i % 4 == 0 { seed & 7 } else { 0 }
        })
        .collect()
}

#[test]
fn frames_are_bundled_until_the_flush() {
    let mut pair = Pair::new(1000);
    pair.append(b"one").unwrap();
    pair.append(b"two").unwrap();
    assert_eq!(pair.take(), Ok(None));
    pair.producer.publish(false);
    assert_eq!(pair.take(), Ok(Some(&b"preambleonetwo"[..])));
    assert_eq!(pair.take(), Ok(None));
}

#[test]
fn a_staged_datagram_is_published_when_a_frame_does_not_fit() {
    let mut pair = Pair::new(1000);
    let frame = bytes(100, 0);
    let frames = (STAGING_BYTES - PREAMBLE.len()) / frame.len();
    for _ in 0..frames {
        pair.append(&frame).unwrap();
        assert_eq!(pair.take(), Ok(None));
    }
    pair.append(&frame).unwrap();
    let length = PREAMBLE.len() + frames * frame.len();
    assert_eq!(pair.take().unwrap().unwrap().len(), length);
    assert_eq!(pair.take(), Ok(None), "the next one is open");
    let large = bytes(900, 1);
    pair.append(&large).unwrap();
    assert_eq!(pair.take().unwrap().unwrap()[8..], frame);
    assert_eq!(pair.take().unwrap().unwrap()[8..], large);
}

#[test]
fn bundles_do_not_exceed_the_largest_datagram() {
    let mut pair = Pair::new(256);
    for _ in 0..2 {
        pair.append(&bytes(120, 0)).unwrap();
    }
    pair.append(&bytes(9, 0)).unwrap();
    pair.producer.publish(false);
    assert_eq!(pair.take().unwrap().unwrap().len(), 248);
    assert_eq!(pair.take().unwrap().unwrap().len(), 17);
    pair.append(&bytes(248, 0)).unwrap();
    pair.producer.publish(false);
    assert_eq!(pair.take().unwrap().unwrap().len(), 256);
}

#[test]
#[should_panic(expected = "a frame of 1001 bytes")]
fn appending_a_frame_beyond_the_largest_datagram_panics() {
    let _ = Pair::new(1000).append(&[0; 993]);
}

#[test]
fn datagrams_of_every_length_arrive_unchanged() {
    let mut pair = Pair::new(2000);
    for length in 1..=1200 {
        let body = bytes(length, length as u8);
        let (head, tail) = body.split_at(length / 3);
        pair.producer.append(PREAMBLE, head, tail, b"!").unwrap();
        pair.producer.publish(false);
        let taken = pair.take().unwrap().unwrap();
        assert_eq!(&taken[..8], PREAMBLE);
        assert_eq!(taken[8..8 + length], body);
        assert_eq!(&taken[8 + length..], b"!");
    }
}

#[test]
fn a_full_ring_refuses_an_append_and_recovers() {
    let mut pair = Pair::new(RING / 4);
    for body in [bytes(20, 0), bytes(300, 0), bytes(800, 0), bytes(16000, 0)] {
        let mut sent = 0;
        while pair.append(&body).is_ok() {
            pair.producer.publish(false);
            sent += 1;
        }
        assert!(sent >= 3, "{sent} of {} bytes", body.len());
        assert_eq!(pair.append(&body), Err(TxError::Full));
        assert!(pair.producer.wants_room());
        assert!(!pair.producer.poll_room());
        for _ in 0..sent {
            assert_eq!(pair.take().unwrap().unwrap()[8..], body);
        }
        assert_eq!(pair.take(), Ok(None));
        assert!(pair.producer.poll_room());
        assert!(!pair.producer.poll_room());
        // However little space the consumer has returned, there is room for the largest datagram.
        pair.append(&bytes(RING / 4 - 8, 1)).unwrap();
        assert!(pair.take().unwrap().is_some());
    }
}

#[test]
fn invalid_headers_are_malformed() {
    let headers = [
        1,
        MORE,
        VALID,
        VALID | MORE,
        VALID | 1001,
        VALID | LENGTH_MASK,
        VALID | 1 << 27 | 10,
        VALID | HEAP | BULK | 100,
        VALID | BULK,
        VALID | BULK | 1001,
        BULK | 10,
        u32::MAX,
    ];
    for header in headers {
        let mut pair = Pair::new(1000);
        pair.append(b"fine").unwrap();
        pair.producer.publish(false);
        let second = LINE;
        pair.region
            .scribble(Some(Side::Connector), second, &header.to_ne_bytes());
        assert!(pair.take().unwrap().is_some());
        assert_eq!(pair.take(), Err(ReceiveError::Malformed), "{header:#x}");
    }
}

#[test]
fn invalid_heads_are_malformed() {
    // Small and large datagrams: one ring is full and the other is not.
    for length in [300, 900] {
        for head in [1, 63, 1 << 40, u64::MAX, 4 * RING as u64] {
            for (line, bulk) in [(head, 0), (0, head | 1 << 41)] {
                let body = vec![7; length];
                let mut pair = Pair::new(1000);
                while pair.append(&body).is_ok() {}
                pair.scribble_heads(line, bulk);
                assert_eq!(pair.append(&body), Err(TxError::Gone), "{line} {bulk}");
                assert!(pair.producer.is_malformed());
                assert!(pair.producer.poll_room() || !pair.producer.wants_room());
            }
        }
    }
    // A head that goes back after it was accepted once.
    let mut pair = Pair::new(1000);
    while pair.append(&[7; 100]).is_ok() {}
    pair.scribble_heads(64 * 64, 0);
    while pair.append(&[7; 100]).is_ok() {}
    pair.scribble_heads(64 * 32, 0);
    assert_eq!(pair.append(&[7; 100]), Err(TxError::Gone));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random frames, flushes and receives, over many passes, against a queue of datagrams.
    #[test]
    fn what_goes_in_comes_out(
        max_datagram in 256usize..RING / 4,
        steps in proptest::collection::vec((0u8..8, 0usize..1000, 0u8..8), 1..800),
    ) {
        let mut pair = Pair::new(max_datagram);
        let mut frames: VecDeque<Vec<u8>> = VecDeque::new();
        for (step, size, seed) in steps {
            match step {
                0..=4 => {
// Mostly small ones, and some of the largest.
                    let length = match step {
                        0 => size * (max_datagram - 8) / 1000,
                        1 => size.min(max_datagram - 8),
                        _ => size % 80,
                    };
                    let body = bytes(length, seed);
                    if length != 0 && pair.append(&body).is_ok() {
                        frames.push_back(body);
                    }
                }
                5 => pair.producer.publish(seed & 1 == 0),
                _ => {
                    for _ in 0..size % 20 {
                        let Some(datagram) = pair.take().unwrap() else { break };
                        prop_assert!(datagram.len() <= max_datagram);
                        prop_assert_eq!(&datagram[..8], PREAMBLE);
                        let mut rest = &datagram[8..];
                        while !rest.is_empty() {
                            let frame = frames.pop_front().expect("a frame that nobody sent");
                            prop_assert!(rest.starts_with(&frame));
                            rest = &rest[frame.len()..];
                        }
                    }
                }
            }
        }
        pair.producer.publish(false);
        let mut left = 0;
        while let Some(datagram) = pair.take().unwrap() {
            left += datagram.len() - 8;
        }
        prop_assert_eq!(left, frames.iter().map(Vec::len).sum::<usize>());
    }
}

/// Arbitrary bytes in the shared memory. The consumer receives datagrams within bounds or finds the
/// ring malformed, and so does the producer. Neither panics or loops for ever.
#[test]
fn arbitrary_shared_memory_does_no_harm() {
    let mut pair = Pair::new(RING / 4);
    bolero::check!()
        .with_iterations(3000)
        .for_each(|input: &[u8]| {
            let mut words = input.chunks_exact(4).map(|word| {
                let word: [u8; 4] = word.try_into().expect("four bytes");
                u32::from_ne_bytes(word)
            });
            let mut next = || words.next().unwrap_or(0);
            let mut next_u64 = || u64::from(next()) << 32 | u64::from(next());
            let head = next_u64();
            pair.scribble_heads(head, next_u64());
            let start = Heads {
                line: next_u64() & !(LINE as u64 - 1) & (u64::MAX >> 8),
                bulk: next_u64() >> 8,
            };
            let into = Ring::consumed_by(&pair.region, Side::Acceptor);
            let mut consumer = Consumer::new(into, pair.producer.max_datagram(), start);
            for _ in 0..200 {
                // Plausible headers now and then, so that records follow each other.
                let word = next();
                let word = if word & 1 == 0 {
                    VALID | word & (MORE | BULK) | (word % (RING as u32 / 3))
                } else {
                    word
                };
                let at = consumer.heads.line as usize % pair.region.line_bytes();
                pair.region
                    .scribble(Some(Side::Connector), at, &word.to_ne_bytes());
                match consumer.receive_next(&mut pair.buffer) {
                    Ok(Some((taken, _))) => {
                        assert!((1..=pair.producer.max_datagram()).contains(&taken.length));
                    }
                    Ok(None) | Err(_) => break,
                }
            }
            let out = Ring::produced_by(&pair.region, Side::Connector);
            let mut producer = Producer::<_, u32>::new(out, pair.producer.max_datagram(), start, 0);
            for _ in 0..100 {
                match producer.append(PREAMBLE, input, &[0; 900], &[]) {
                    Ok(()) => producer.publish(true),
                    Err(TxError::Full | TxError::Gone) => {
                        producer.poll_room();
                        break;
                    }
                }
            }
        });
}
