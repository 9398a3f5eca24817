//! The checkers of every named scenario: they hold it to the same promises as random runs.
//!
//! A request carries, behind its caller's tag, a serial number that names its host and its entry
//! here. So each check reads one entry, which is cheap enough for a million sessions. A broken
//! promise is a bug of ours: it ends the run.
//!
//! ```text
//!  message   caller's tag (8)  │ serial number (8) │ length (4) │ noise, from a place that the number says
//! ```
//! The noise is the same for all, so that large messages are sent from memory that they share.
//! Samples of it are checked, close enough to touch every fragment.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;

use bytes::Bytes;
use starling_prefetch::prefetch;
use starling_proto::{HEADER_BYTES, PREAMBLE_BYTES, RequestNumber, SessionId};

use super::MS;
use crate::check::Violation;
use crate::fabric::HostId;
use crate::rng::mix;

/// Every call of a scenario has to end in this time, ns: the peer timeout and the largest messages
/// of a hundred clients at once, with much to spare.
pub(super) const BOUND_NS: u64 = 20_000 * MS;

/// The largest request of any scenario: eRPC's largest message.
pub(super) const LARGEST: usize = 8 << 20;

/// Bytes of a message's head: the caller's tag, the serial number, the length.
pub(super) const HEAD: usize = 20;

/// Places where the noise of a message may begin.
const PLACES: u64 = 509;
/// The distance between two samples of a message: less than the data of a fragment.
const STRIDE: usize = 997;
/// Bytes of one sample. Shorter messages are compared as a whole.
const LOOK: usize = 8;
const SHORT: usize = 8 * LOOK;

/// Bits of a serial number that tell the users of a place apart, and those that name the place.
const ROUND_BITS: u32 = 24;
const PLACE_BITS: u32 = 16;

/// A call that has not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    round: u32,
    is_open: bool,
    executed: bool,
    tag: u64,
    issued_ns: u64,
    /// The protocol's name for it.
    name: Option<(SessionId, RequestNumber)>,
}

/// The calls of one host.
#[derive(Debug, Default)]
struct Caller {
    places: Vec<Open>,
    free: Vec<u32>,
    /// Calls that ended without an answer, and whether they ran: they may still run, once.
    unanswered: HashMap<u64, bool>,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

/// The open calls of a scenario.
#[derive(Debug)]
pub(super) struct Monitor {
    noise: Bytes,
    callers: Vec<Caller>,
    open: usize,
    /// Calls that failed since the list was last taken: caller and tag.
    pub(super) failed: Vec<(HostId, u64)>,
}

impl Monitor {
    pub(super) fn new() -> Self {
        let words = (LARGEST + 2 * PLACES as usize).div_ceil(LOOK) as u64;
        let noise: Vec<u8> = (0..words)
            .flat_map(|word| mix(word).to_le_bytes())
            .collect();
        Self {
            noise: noise.into(),
            callers: Vec::new(),
            open: 0,
            failed: Vec::new(),
        }
    }

    /// The bytes behind the head of a message of `len` bytes.
    pub(super) fn rest(&self, way: Direction, serial: u64, len: usize) -> &[u8] {
        &self.noise[self.place(way, serial, len)]
    }

    /// The same bytes, as shared memory for a message's tail.
    pub(super) fn shared_rest(&self, way: Direction, serial: u64, len: usize) -> Bytes {
        self.noise.slice(self.place(way, serial, len))
    }

    fn place(&self, way: Direction, serial: u64, len: usize) -> Range<usize> {
        let start = serial % PLACES + if way == Direction::Request { 0 } else { PLACES };
        start as usize..start as usize + len.saturating_sub(HEAD)
    }

    /// Fails if a message has the wrong length or content.
    fn check_message(&self, way: Direction, serial: u64, message: &[u8]) -> Result<(), Violation> {
        let broken = |what: &str| {
            let text = format!(
                "the {way:?} {serial:#x}, which has {} bytes, {what}",
                message.len()
            );
            violation("content", text)
        };
        let Some((head, rest)) = message.split_first_chunk::<HEAD>() else {
            return Err(broken("lost its beginning"));
        };
        if head[16..] != (message.len() as u32).to_le_bytes() {
            return Err(broken("had another length"));
        }
        let right = self.rest(way, serial, message.len());
        if rest.len() <= SHORT {
            return if rest == right {
                Ok(())
            } else {
                Err(broken("is wrong"))
            };
        }
        let last = rest.len() - LOOK;
        let first = serial as usize % STRIDE.min(last);
        for at in (first..last).step_by(STRIDE).chain([last]) {
            if rest[at..at + LOOK] != right[at..at + LOOK] {
                return Err(broken(&format!("is wrong at byte {}", HEAD + at)));
            }
        }
        Ok(())
    }

    /// A call begins; returns its serial number.
    pub(super) fn issued(&mut self, host: HostId, tag: u64, now_ns: u64) -> u64 {
        let index = host.0 as usize;
        if index >= self.callers.len() {
            self.callers.resize_with(index + 1, Caller::default);
        }
        let caller = &mut self.callers[index];
        let place = caller.free.pop().unwrap_or_else(|| {
            caller.places.push(Open::default());
            caller.places.len() as u32 - 1
        });
        assert!(place >> PLACE_BITS == 0, "{host:?} has too many calls open");
        let entry = &mut caller.places[place as usize];
        entry.round = (entry.round + 1) % (1 << ROUND_BITS);
        entry.is_open = true;
        entry.executed = false;
        entry.tag = tag;
        entry.issued_ns = now_ns;
        entry.name = None;
        self.open += 1;
        u64::from(host.0) << (PLACE_BITS + ROUND_BITS)
            | u64::from(place) << ROUND_BITS
            | u64::from(entry.round)
    }

    fn caller(&mut self, serial: u64) -> Option<&mut Caller> {
        let index = serial >> (PLACE_BITS + ROUND_BITS);
        self.callers.get_mut(usize::try_from(index).ok()?)
    }

    /// Prefetches the entry of the call that a datagram begins with, if any. The bytes may be
    /// arbitrary.
    pub(super) fn prefetch(&self, datagram: &[u8]) {
        let body = datagram.get(PREAMBLE_BYTES + HEADER_BYTES..);
        let Some(serial) = body.and_then(serial_of) else {
            return;
        };
        let index = (serial >> (PLACE_BITS + ROUND_BITS)) as usize;
        let caller = self.callers.get(index);
        if let Some(entry) = caller.and_then(|it| it.places.get(place_of(serial) as usize)) {
            prefetch(entry);
        }
    }

    /// The protocol took the call.
    pub(super) fn taken(&mut self, serial: u64, session: SessionId, number: RequestNumber) {
        let caller = self.caller(serial);
        if let Some(entry) = caller.and_then(|caller| caller.entry(serial)) {
            entry.name = Some((session, number));
        }
    }

    /// The protocol's names of `host`'s open calls.
    pub(super) fn open_calls(&self, host: HostId) -> Vec<(SessionId, RequestNumber)> {
        let caller = self.callers.get(host.0 as usize);
        let entries = caller.iter().flat_map(|caller| &caller.places);
        let open = entries.filter(|entry| entry.is_open);
        open.filter_map(|entry| entry.name).collect()
    }

    /// A handler begins.
    pub(super) fn executed(&mut self, request: &[u8]) -> Result<(), Violation> {
        let serial = serial_of(request);
        let serial = serial.ok_or_else(|| violation("content", "a request lost its beginning"))?;
        self.check_message(Direction::Request, serial, request)?;
        let Some(caller) = self.caller(serial) else {
            return Err(violation("content", "a request that nobody sent ran"));
        };
        let executed = match caller.entry(serial) {
            Some(entry) => &mut entry.executed,
            None => caller.unanswered.get_mut(&serial).ok_or_else(|| {
                let text = format!("request {serial:#x} ran again after its answer");
                violation("at most once", text)
            })?,
        };
        if std::mem::replace(executed, true) {
            let text = format!("request {serial:#x} ran twice");
            return Err(violation("at most once", text));
        }
        Ok(())
    }

    /// A call ended, with a response or without.
    pub(super) fn ended(
        &mut self,
        host: HostId,
        serial: u64,
        response: Option<&[u8]>,
        now_ns: u64,
    ) -> Result<(), Violation> {
        let caller = self.caller(serial);
        let entry = caller.and_then(|caller| caller.entry(serial));
        let Some(entry) = entry else {
            let text = format!("request {serial:#x} of {host:?} ended twice or never began");
            return Err(violation("every call ends", text));
        };
        let Open {
            tag,
            executed,
            issued_ns,
            ..
        } = *entry;
        entry.is_open = false;
        self.open -= 1;
        let caller = self.caller(serial).expect("just found");
        caller.free.push(place_of(serial));
        let Some(response) = response else {
            caller.unanswered.insert(serial, executed);
            self.failed.push((host, tag));
            return in_time(host, serial, issued_ns, now_ns);
        };
        if !executed {
            let text = format!("request {serial:#x} was answered but never ran");
            return Err(violation("at most once", text));
        }
        if response.get(..HEAD) != Some(&head(tag, serial, response.len())) {
            let text =
                format!("request {serial:#x} got another request's answer, or a part of its own");
            return Err(violation("content", text));
        }
        self.check_message(Direction::Response, serial, response)?;
        in_time(host, serial, issued_ns, now_ns)
    }

    /// `host` died, and its open calls with it.
    pub(super) fn abandon(&mut self, host: HostId) {
        let Some(caller) = self.callers.get_mut(host.0 as usize) else {
            return;
        };
        for (place, entry) in caller.places.iter_mut().enumerate() {
            if entry.is_open {
                entry.is_open = false;
                self.open -= 1;
                caller.free.push(place as u32);
                let serial = u64::from(host.0) << (PLACE_BITS + ROUND_BITS)
                    | (place as u64) << ROUND_BITS
                    | u64::from(entry.round);
                caller.unanswered.insert(serial, entry.executed);
            }
        }
    }

    /// Fails if a call should have ended.
    pub(super) fn check(&self, now_ns: u64) -> Result<(), Violation> {
        for (index, caller) in self.callers.iter().enumerate() {
            for entry in caller.places.iter().filter(|entry| entry.is_open) {
                in_time(HostId(index as u32), entry.tag, entry.issued_ns, now_ns)?;
            }
        }
        Ok(())
    }

    /// How many calls are open.
    pub(super) fn open_count(&self) -> usize {
        self.open
    }
}

impl Caller {
    fn entry(&mut self, serial: u64) -> Option<&mut Open> {
        let entry = self.places.get_mut(place_of(serial) as usize)?;
        let round = (serial & ((1 << ROUND_BITS) - 1)) as u32;
        (entry.is_open && entry.round == round).then_some(entry)
    }
}

/// The beginning of a message of `len` bytes, a request or its response.
pub(super) fn head(tag: u64, serial: u64, len: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&tag.to_le_bytes());
    head[8..16].copy_from_slice(&serial.to_le_bytes());
    head[16..].copy_from_slice(&(len as u32).to_le_bytes());
    head
}

/// The caller's tag and the serial number at the beginning of a message.
pub(super) fn header_of(message: &[u8]) -> Option<(u64, u64)> {
    let names = u128::from_le_bytes(*message.first_chunk()?);
    Some((names as u64, (names >> 64) as u64))
}

fn serial_of(message: &[u8]) -> Option<u64> {
    header_of(message).map(|(_, serial)| serial)
}

fn place_of(serial: u64) -> u32 {
    (serial >> ROUND_BITS) as u32 & ((1 << PLACE_BITS) - 1)
}

fn in_time(host: HostId, serial: u64, issued_ns: u64, now_ns: u64) -> Result<(), Violation> {
    if now_ns.saturating_sub(issued_ns) <= BOUND_NS {
        return Ok(());
    }
    let text = format!(
        "request {serial:#x} of {host:?} takes {} ms",
        (now_ns - issued_ns) / MS
    );
    Err(violation("every call ends", text))
}

/// Ends the run if a promise was broken. It unwinds to [`run`](super::run), because no scenario can
/// continue.
pub(super) fn enforce(result: Result<(), Violation>) {
    if let Err(violation) = result {
        resume_unwind(Box::new(violation));
    }
}

fn violation(checker: &'static str, detail: impl Into<String>) -> Violation {
    Violation::new(checker, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId(3);

    fn begun() -> (Monitor, u64, [u8; HEAD]) {
        let mut monitor = Monitor::new();
        let serial = monitor.issued(HOST, 7, 0);
        (monitor, serial, head(7, serial, HEAD))
    }

    fn checker(result: Result<(), Violation>) -> &'static str {
        result.map_or_else(|found| found.checker, |()| "nothing")
    }

    #[test]
    fn a_call_runs_once_and_ends_once() {
        let (mut monitor, serial, head) = begun();
        assert_eq!(monitor.executed(&head), Ok(()));
        assert_eq!(checker(monitor.executed(&head)), "at most once");
        assert_eq!(monitor.ended(HOST, serial, Some(&head), 5), Ok(()));
        assert_eq!(checker(monitor.executed(&head)), "at most once");
        assert_eq!(
            checker(monitor.ended(HOST, serial, None, 5)),
            "every call ends"
        );
        assert_eq!(monitor.open_count(), 0);
        let next = monitor.issued(HOST, 8, 0);
        assert_ne!(
            next, serial,
            "the place is used again with another serial number"
        );
    }

    #[test]
    fn a_call_that_failed_or_whose_caller_died_may_have_run_once() {
        let (mut monitor, serial, head) = begun();
        assert_eq!(monitor.ended(HOST, serial, None, 5), Ok(()));
        assert_eq!(monitor.failed, [(HOST, 7)]);
        assert_eq!(monitor.executed(&head), Ok(()));
        assert_eq!(checker(monitor.executed(&head)), "at most once");
        let (mut monitor, _, head) = begun();
        monitor.abandon(HOST);
        assert_eq!(monitor.executed(&head), Ok(()));
        assert_eq!(checker(monitor.executed(&head)), "at most once");
    }

    #[test]
    fn wrong_answers_late_ones_and_none_are_found() {
        let (mut monitor, serial, good) = begun();
        let never = monitor.ended(HOST, serial, Some(&good), 5);
        assert_eq!(checker(never), "at most once");
        let (mut monitor, serial, good) = begun();
        monitor.executed(&good).unwrap();
        let other = monitor.ended(HOST, serial, Some(&head(8, serial, HEAD)), 5);
        assert_eq!(checker(other), "content");
        let (mut monitor, serial, good) = begun();
        monitor.executed(&good).unwrap();
        assert_eq!(monitor.check(BOUND_NS), Ok(()));
        assert_eq!(checker(monitor.check(BOUND_NS + 1)), "every call ends");
        let late = monitor.ended(HOST, serial, Some(&good), BOUND_NS + 1);
        assert_eq!(checker(late), "every call ends");
        assert_eq!(checker(monitor.executed(&[1; 9])), "content");
    }

    #[test]
    fn messages_that_are_cut_mixed_up_or_exchanged_are_found() {
        const DATA: usize = 1024;
        for len in [32, 84, 85, 1_000, 10_000] {
            let (mut monitor, serial, _) = begun();
            let message = |way, serial| {
                let mut bytes = head(7, serial, len).to_vec();
                bytes.extend_from_slice(monitor.rest(way, serial, len));
                bytes
            };
            let good = message(Direction::Request, serial);
            let cut = good[..len - 1].to_vec();
            let mut other = message(Direction::Request, serial + 1);
            other[..HEAD].copy_from_slice(&good[..HEAD]);
            let mut wrong = vec![cut, other];
            for place in 1..len / DATA {
                let mut twice = good.clone();
                let before = (place - 1) * DATA;
                twice.copy_within(before + HEAD..before + DATA, before + DATA + HEAD);
                wrong.push(twice);
            }
            let answer = message(Direction::Response, serial);
            for bytes in &wrong {
                assert_eq!(checker(monitor.executed(bytes)), "content", "{len}");
            }
            assert_eq!(monitor.executed(&good), Ok(()));
            let echoed = monitor.ended(HOST, serial, Some(&good), 5);
            assert_eq!(checker(echoed), "content", "{len}");
            let next = monitor.issued(HOST, 7, 0);
            assert_ne!(next, serial);
            let (mut monitor, same, _) = begun();
            assert_eq!(same, serial);
            monitor.executed(&good).unwrap();
            assert_eq!(monitor.ended(HOST, serial, Some(&answer), 5), Ok(()));
        }
    }
}
