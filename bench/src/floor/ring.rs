//! The floor of the rate over shared memory: an echo over two rings of 64-byte slots.
//!
//! A slot is one cache line: a sequence number and up to 56 bytes. The writer fills the line and
//! sets the number last; the reader polls for the number that it expects. No index is shared, so
//! a message costs two transfers of one cache line: to the reader, and back for the next write.
//!
//! ```text
//!  requests   ┌───┬───┬───┬───┐     slot i of n holds message k with k mod n = i
//!  client ──▶ │k+1│ payload   │     and the sequence number k + 1
//!             └───┴───┴───┴───┘
//! ```
//!
//! Nothing protects a slot from being overwritten too early: with fewer requests in flight than
//! slots, the answer to a request arrives before its slot is written again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{BusyWait, IN_FLIGHT, Period, SMALL_BYTES, between_threads};
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};

/// Slots of a ring: the next power of two above [`IN_FLIGHT`], so that both rings stay in the
/// first cache of either core.
const SLOTS: usize = 64;

/// 64-bit words of a small message.
const WORDS: usize = SMALL_BYTES / 8;

const _: () = assert!(IN_FLIGHT < SLOTS as u64 && WORDS < 8);

type Message = [u64; WORDS];

#[repr(align(64))]
#[derive(Default)]
struct Slot {
    sequence: AtomicU64,
    words: [AtomicU64; 7],
}

struct Ring(Box<[Slot; SLOTS]>);

impl Ring {
    fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| Slot::default())))
    }

    /// Writes message number `index`.
    #[inline]
    fn write(&self, index: u64, message: Message) {
        let slot = &self.0[index as usize % SLOTS];
        for (word, value) in slot.words.iter().zip(message) {
            word.store(value, Ordering::Relaxed);
        }
        slot.sequence.store(index + 1, Ordering::Release);
    }

    /// Message number `index`, if it is there.
    #[inline]
    fn read(&self, index: u64) -> Option<Message> {
        let slot = &self.0[index as usize % SLOTS];
        (slot.sequence.load(Ordering::Acquire) == index + 1)
            .then(|| std::array::from_fn(|word| slot.words[word].load(Ordering::Relaxed)))
    }
}

struct Rings {
    requests: Ring,
    responses: Ring,
    stop: AtomicBool,
}

impl Rings {
    fn new() -> Self {
        Self {
            requests: Ring::new(),
            responses: Ring::new(),
            stop: AtomicBool::new(false),
        }
    }

    fn serve(&self, wait: BusyWait) {
        let mut index = 0;
        loop {
            if let Some(message) = self.requests.read(index) {
                self.responses.write(index, message);
                index += 1;
            } else if self.stop.load(Ordering::Relaxed) {
                return;
            } else {
                wait.pause();
            }
        }
    }
}

/// The client: the number of messages sent, and of those that came back.
#[derive(Default)]
struct Client {
    sent: u64,
    received: u64,
    wrong: u64,
}

impl Client {
    /// Receives all responses that are there, then sends requests up to `in_flight`.
    #[inline]
    fn poll(&mut self, rings: &Rings, in_flight: u64) {
        while let Some(message) = rings.responses.read(self.received) {
            self.wrong += u64::from(message != [self.received; WORDS]);
            self.received += 1;
        }
        while self.sent - self.received < in_flight {
            rings.requests.write(self.sent, [self.sent; WORDS]);
            self.sent += 1;
        }
    }
}

/// Rate of an echo with [`IN_FLIGHT`] requests in flight.
pub fn rate(context: &Context) -> Result<Sample, BenchError> {
    let rings = Rings::new();
    let wait = BusyWait::on(context.cores);
    let (rate, wrong) = between_threads(
        context.cores,
        || rings.serve(wait),
        || {
            let mut client = Client::default();
            let mut run = |period: Period| {
                let begin = client.received;
                // Even the shortest period has a result.
                while !period.is_over() || client.received == begin {
                    for _ in 0..100 {
                        client.poll(&rings, IN_FLIGHT);
                        wait.pause();
                    }
                }
                period.rate_of(client.received - begin)
            };
            run(Period::warm_up(context));
            let rate = run(Period::measured(context));
            rings.stop.store(true, Ordering::Relaxed);
            (rate, client.wrong)
        },
    )?;
    if wrong > 0 {
        return Err(BenchError::WrongEcho {
            scheme: "shm",
            system: "raw",
            what: format!("{wrong} messages came back changed"),
        });
    }
    Ok(vec![(Metric::Rate, rate)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_only_the_last_message_written() {
        let ring = Ring::new();
        assert_eq!(ring.read(0), None);
        ring.write(0, [1, 2, 3, 4]);
        assert_eq!(ring.read(0), Some([1, 2, 3, 4]));
        assert_eq!(
            ring.read(SLOTS as u64),
            None,
            "the next message of the same slot"
        );
        ring.write(SLOTS as u64, [5; WORDS]);
        assert_eq!(ring.read(0), None);
        assert_eq!(ring.read(SLOTS as u64), Some([5; WORDS]));
    }

    #[test]
    fn every_message_comes_back_in_order() {
        let rings = Rings::new();
        let cores = crate::pin::Cores::of_this_process().unwrap();
        let wait = BusyWait { yields: true };
        let client = between_threads(
            cores,
            || rings.serve(wait),
            || {
                let mut client = Client::default();
                while client.received < 10_000 {
                    client.poll(&rings, IN_FLIGHT);
                    wait.pause();
                }
                rings.stop.store(true, Ordering::Relaxed);
                client
            },
        )
        .unwrap();
        assert_eq!(client.wrong, 0);
        assert!(client.sent <= client.received + IN_FLIGHT);
    }
}
