//! Records with a tail in the producer's message heap.

use super::*;
use crate::map::{ForeignHeap, OwnHeap};
use crate::ring::lent::DESCRIPTOR_BYTES;
use crate::ring::producer::STAGING_BYTES;

const HEAP_BYTES: usize = 256 << 10;

/// A heap that both ends have mapped, whose bytes follow from their offset.
struct Heap(OwnHeap);

impl Heap {
    fn shared(pair: &mut Pair) -> Self {
        let own = OwnHeap::create(HEAP_BYTES).unwrap();
        // SAFETY: there is no other reference.
        let room = unsafe { own.slice_mut(0, HEAP_BYTES) };
        for (at, byte) in room.iter_mut().enumerate() {
            *byte = byte_at(at);
        }
        pair.consumer.set_heap(map(&own));
        Self(own)
    }

    fn overwrite(&self, at: usize, bytes: usize) {
        // SAFETY: there is no other reference.
        unsafe { self.0.slice_mut(at, bytes) }.fill(0xaa);
    }
}

fn map(own: &OwnHeap) -> ForeignHeap {
    let file = own.file().try_clone_to_owned().unwrap();
    ForeignHeap::map(file, HEAP_BYTES).unwrap()
}

fn byte_at(at: usize) -> u8 {
    ((at * 7) >> 3) as u8
}

fn range(at: usize, bytes: usize) -> HeapRange {
    HeapRange {
        at: at as u64,
        bytes: bytes as u32,
    }
}

impl Pair {
    fn lend(&mut self, body: &[u8], tail: HeapRange, message: u32) -> Result<(), TxError> {
        self.producer
            .append_lent(PREAMBLE, b"head", body, tail, message)
    }

    fn returned(&mut self) -> Vec<u32> {
        let mut returned = Vec::new();
        self.producer
            .poll_returned(|message| returned.push(message));
        returned
    }

    /// Publishes a record with a descriptor as a hostile producer could.
    fn forge(&mut self, line: usize, length: u32, descriptor: [u8; DESCRIPTOR_BYTES]) {
        let at = line * LINE;
        let end = at + HEADER_BYTES + length as usize;
        let lines = Some(Side::Connector);
        if let Some(descriptor_at) = end.checked_sub(DESCRIPTOR_BYTES)
            && end < self.region.line_bytes()
        {
            self.region.scribble(lines, descriptor_at, &descriptor);
        }
        let word = VALID | HEAP | length;
        self.region.scribble(lines, at, &word.to_ne_bytes());
    }
}

#[test]
fn the_tail_is_copied_out_of_the_heap() {
    let mut pair = Pair::new(8000);
    let _heap = Heap::shared(&mut pair);
    for (at, length) in [(0, 1), (5, 3000), (HEAP_BYTES - 7000, 7000)] {
        for body in [0, 5, 36, 100, 600] {
            let body = bytes(body, 3);
            pair.lend(&body, range(at, length), 1).unwrap();
            let taken = pair.take().unwrap().unwrap();
            let (inline, tail) = taken.split_at(PREAMBLE.len() + 4 + body.len());
            assert_eq!(inline, [PREAMBLE, &b"head"[..], &body].concat());
            assert_eq!(tail.len(), length);
            let expected = (at..at + length).map(byte_at);
            assert!(tail.iter().copied().eq(expected), "{at} {length}");
        }
    }
    let most = STAGING_BYTES - PREAMBLE.len() - DESCRIPTOR_BYTES;
    assert!(pair.producer.can_lend(most) && !pair.producer.can_lend(most + 1));
}

#[test]
fn staged_lent_and_bulk_records_keep_their_order() {
    let mut pair = Pair::new(8000);
    let _heap = Heap::shared(&mut pair);
    pair.append(b"small").unwrap();
    pair.lend(b"", range(0, 2500), 1).unwrap();
    pair.append(&bytes(3000, 3)).unwrap();
    pair.lend(b"", range(0, 2600), 2).unwrap();
    pair.append(b"last").unwrap();
    pair.producer.publish(false);
    let mut lengths = Vec::new();
    while let Some(datagram) = pair.take().unwrap() {
        lengths.push(datagram.len() - PREAMBLE.len());
    }
    assert_eq!(lengths, [5, 2504, 3000, 2604, 4]);
}

#[test]
fn a_message_is_returned_once_its_record_is_consumed() {
    let mut pair = Pair::new(8000);
    let _heap = Heap::shared(&mut pair);
    for message in 1..=3 {
        pair.lend(b"", range(0, 3000), message).unwrap();
    }
    assert_eq!((pair.returned(), pair.producer.lent()), (vec![], 3));
    pair.take().unwrap().unwrap();
    assert_eq!(pair.returned(), [1]);
    pair.take().unwrap().unwrap();
    pair.take().unwrap().unwrap();
    assert_eq!((pair.returned(), pair.producer.lent()), (vec![2, 3], 0));
}

#[test]
fn what_is_lent_is_bounded_by_the_ring() {
    let mut pair = Pair::new(8000);
    let _heap = Heap::shared(&mut pair);
    let mut lent = 0;
    while pair.lend(b"", range(0, 3000), lent) == Ok(()) {
        lent += 1;
    }
    assert!(lent as usize <= pair.region.line_bytes() / LINE);
    assert!(pair.producer.wants_room());
    for _ in 0..lent {
        assert_eq!(pair.take().unwrap().unwrap().len(), 3012);
    }
    assert!(pair.producer.poll_room());
    pair.lend(b"", range(0, 3000), lent).unwrap();
    assert_eq!(pair.returned(), (0..lent).collect::<Vec<_>>());
}

#[test]
fn a_revoked_record_is_lost_and_its_message_comes_back() {
    let mut pair = Pair::new(8000);
    let heap = Heap::shared(&mut pair);
    pair.append(b"before").unwrap();
    for message in 1..=2 {
        pair.lend(b"", range(0, 3000), message).unwrap();
    }
    pair.append(b"after").unwrap();
    pair.producer.publish(false);
    let mut back = Vec::new();
    pair.producer.revoke(|message| back.push(message));
    assert_eq!(back, [1, 2]);
    heap.overwrite(0, 3000);
    assert_eq!(pair.take(), Ok(Some(&b"preamblebefore"[..])));
    assert_eq!(pair.take(), Ok(Some(&b""[..])));
    assert_eq!(pair.take(), Ok(Some(&b""[..])));
    assert_eq!(pair.take(), Ok(Some(&b"preambleafter"[..])));
    assert_eq!(pair.take(), Ok(None));
}

#[test]
fn a_connection_that_lent_nothing_revokes_nothing() {
    let mut pair = Pair::new(8000);
    let _heap = Heap::shared(&mut pair);
    pair.lend(b"", range(0, 3000), 1).unwrap();
    pair.take().unwrap().unwrap();
    let mut back = Vec::new();
    pair.producer.revoke(|message| back.push(message));
    assert_eq!(back, [1]);
    // Another record, by hand: it is not lost.
    pair.forge(1, 20, range(0, 100).encode());
    assert_eq!(pair.take().unwrap().unwrap().len(), 108);
}

#[test]
fn a_record_waits_for_the_heap() {
    let mut pair = Pair::new(8000);
    pair.lend(b"", range(0, 3000), 1).unwrap();
    for _ in 0..2 {
        assert_eq!(pair.take(), Err(ReceiveError::NeedsHeap));
        assert!(pair.consumer.needs_heap() && pair.consumer.poll().is_some());
    }
    let _heap = Heap::shared(&mut pair);
    assert!(!pair.consumer.needs_heap());
    assert_eq!(pair.take().unwrap().unwrap().len(), 3012);
}

#[test]
fn invalid_descriptors_are_malformed() {
    let end = HEAP_BYTES as u64;
    let ranges = [
        (0, 0),
        (end, 1),
        (end - 99, 100),
        (u64::MAX, 1),
        (u64::MAX - 50, 100),
        (1 << 63, 100),
        // Longer than the largest datagram, less the twenty bytes in the line ring.
        (0, 1000 - 8 + 1),
        (0, u32::MAX),
    ];
    for (at, bytes) in ranges {
        let mut pair = Pair::new(1000);
        let _heap = Heap::shared(&mut pair);
        pair.forge(0, 20, HeapRange { at, bytes }.encode());
        assert_eq!(pair.take(), Err(ReceiveError::Malformed), "{at} {bytes}");
    }
    for length in [0, 1, 12, 1001, LENGTH_MASK] {
        let mut pair = Pair::new(1000);
        let _heap = Heap::shared(&mut pair);
        pair.forge(0, length, range(0, 100).encode());
        assert_eq!(pair.take(), Err(ReceiveError::Malformed), "{length}");
    }
    let mut pair = Pair::new(1000);
    let _heap = Heap::shared(&mut pair);
    pair.forge(0, 20, range(HEAP_BYTES - 992, 992).encode());
    assert_eq!(pair.take().unwrap().unwrap().len(), 1000);
}

/// Arbitrary records with descriptors: a datagram within bounds, or malformed, and never a panic or an
/// access outside of the heap.
#[test]
fn arbitrary_descriptors_do_no_harm() {
    let mut pair = Pair::new(RING / 4);
    let heap = Heap::shared(&mut pair);
    bolero::check!()
        .with_iterations(5000)
        .with_type::<(u64, u32, u16, bool)>()
        .for_each(|&(at, bytes, length, is_plausible)| {
            let (at, bytes) = match is_plausible {
                true => (at % (2 * HEAP_BYTES as u64), bytes % RING as u32),
                false => (at, bytes),
            };
            let into = Ring::consumed_by(&pair.region, Side::Acceptor);
            pair.consumer = Consumer::new(into, RING / 4, Heads::default());
            pair.consumer.set_heap(map(&heap.0));
            let length = u32::from(length) % (RING as u32 / 4);
            pair.forge(0, length, HeapRange { at, bytes }.encode());
            let is_in = at
                .checked_add(bytes.into())
                .is_some_and(|end| end <= HEAP_BYTES as u64);
            match pair.take() {
                Ok(Some(datagram)) => {
                    let inline = length as usize - DESCRIPTOR_BYTES;
                    assert_eq!(datagram.len(), inline + bytes as usize);
                    assert!(datagram.len() <= RING / 4 && is_in);
                    assert_eq!(datagram[inline], byte_at(at as usize));
                }
                Ok(None) => panic!("a record was there"),
                Err(error) => assert_eq!(error, ReceiveError::Malformed),
            }
        });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Messages are made, lent in parts and overwritten as soon as they are returned. What arrives is
    /// what was there when it was sent.
    #[test]
    fn a_message_is_not_used_again_before_it_is_consumed(
        steps in proptest::collection::vec((0u8..4, 0usize..16, 1usize..4000), 1..600),
    ) {
        const PLACE: usize = HEAP_BYTES / 16;
        let mut pair = Pair::new(8000);
        let heap = Heap::shared(&mut pair);
        let mut records = [0; 16];
        let mut sent: VecDeque<(u8, usize)> = VecDeque::new();
        let mut filling = [0u8; 16];
        for (step, place, bytes) in steps {
            match step {
                0 | 1 => {
                    if records[place] == 0 {
                        filling[place] = filling[place].wrapping_add(1);
                        // SAFETY: there is no other reference.
                        let room = unsafe { heap.0.slice_mut(place * PLACE, PLACE) };
                        room.fill(filling[place]);
                    }
                    let tail = range(place * PLACE + bytes, bytes);
                    if pair.lend(b"", tail, place as u32) == Ok(()) {
                        records[place] += 1;
                        sent.push_back((filling[place], bytes));
                    }
                }
                2 => {
                    for _ in 0..bytes % 8 {
                        let Some(datagram) = pair.take().unwrap() else { break };
                        let (filling, bytes) = sent.pop_front().expect("a datagram that nobody sent");
                        prop_assert_eq!(datagram.len(), 12 + bytes);
                        prop_assert!(datagram[12..].iter().all(|&byte| byte == filling));
                    }
                }
                _ => {
                    for place in pair.returned() {
                        records[place as usize] -= 1;
                    }
                    prop_assert_eq!(records.iter().sum::<usize>(), pair.producer.lent());
                }
            }
        }
    }
}
