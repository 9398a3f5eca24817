//! The checkers that watch every named scenario: what must hold there is what must hold anywhere.
//!
//! A request carries, behind its caller's word for it, a serial number that says who issued it and
//! where it is entered here. So each check costs a look at one entry, and a million sessions can be
//! watched. A broken promise is a bug of ours: it ends the run.

use std::collections::HashMap;
use std::panic::resume_unwind;

use starling_proto::{HEADER_BYTES, PREAMBLE_BYTES, RequestNumber, SessionId};

use super::MS;
use crate::ahead::prefetch;
use crate::check::Violation;
use crate::fabric::HostId;

/// Every call of a scenario has to end in this time, ns: the peer timeout and the largest messages
/// of a hundred clients at once, with much to spare.
pub(super) const BOUND_NS: u64 = 20_000 * MS;

/// Bytes of a request that say what it is: the caller's word and the serial number.
pub(super) const HEAD: usize = 16;

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
    /// What the protocol calls it.
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

/// The books of a scenario.
#[derive(Debug, Default)]
pub(super) struct Guard {
    callers: Vec<Caller>,
    open: usize,
    /// Calls that failed since somebody last asked, by caller and word.
    pub(super) failed: Vec<(HostId, u64)>,
}

impl Guard {
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

    /// Asks for the entry of the call that a datagram begins with, if it does. Any bytes will do.
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

    /// What the protocol calls the open calls of `host`.
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
            let text = format!("request {serial:#x} of {host:?} ended twice, or was never begun");
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
        if response.first_chunk() != Some(&head(tag, serial)) {
            let text = format!("request {serial:#x} got the answer of another");
            return Err(violation("content", text));
        }
        in_time(host, serial, issued_ns, now_ns)
    }

    /// `host` died, and with it whoever waited for an answer.
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

    /// Complains about a call that should have ended.
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

/// The beginning of a request, and of its response.
pub(super) fn head(tag: u64, serial: u64) -> [u8; HEAD] {
    (u128::from(tag) | u128::from(serial) << 64).to_le_bytes()
}

fn serial_of(message: &[u8]) -> Option<u64> {
    let head: &[u8; HEAD] = message.first_chunk()?;
    Some((u128::from_le_bytes(*head) >> 64) as u64)
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

/// Ends the run if a promise was broken: no scenario could go on, so it unwinds to
/// [`run`](super::run) instead of being handed through all of them.
pub(super) fn hold(result: Result<(), Violation>) {
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

    fn begun() -> (Guard, u64, [u8; HEAD]) {
        let mut guard = Guard::default();
        let serial = guard.issued(HOST, 7, 0);
        (guard, serial, head(7, serial))
    }

    fn checker(result: Result<(), Violation>) -> &'static str {
        result.map_or_else(|found| found.checker, |()| "nothing")
    }

    #[test]
    fn a_call_runs_once_and_ends_once() {
        let (mut guard, serial, head) = begun();
        assert_eq!(guard.executed(&head), Ok(()));
        assert_eq!(checker(guard.executed(&head)), "at most once");
        assert_eq!(guard.ended(HOST, serial, Some(&head), 5), Ok(()));
        assert_eq!(checker(guard.executed(&head)), "at most once");
        assert_eq!(
            checker(guard.ended(HOST, serial, None, 5)),
            "every call ends"
        );
        assert_eq!(guard.open_count(), 0);
        let next = guard.issued(HOST, 8, 0);
        assert_ne!(next, serial, "the place is used again, by another name");
    }

    #[test]
    fn who_failed_or_died_may_have_run_once() {
        let (mut guard, serial, head) = begun();
        assert_eq!(guard.ended(HOST, serial, None, 5), Ok(()));
        assert_eq!(guard.failed, [(HOST, 7)]);
        assert_eq!(guard.executed(&head), Ok(()));
        assert_eq!(checker(guard.executed(&head)), "at most once");
        let (mut guard, _, head) = begun();
        guard.abandon(HOST);
        assert_eq!(guard.executed(&head), Ok(()));
        assert_eq!(checker(guard.executed(&head)), "at most once");
    }

    #[test]
    fn wrong_answers_late_ones_and_none_are_found() {
        let (mut guard, serial, good) = begun();
        let never = guard.ended(HOST, serial, Some(&good), 5);
        assert_eq!(checker(never), "at most once");
        let (mut guard, serial, good) = begun();
        guard.executed(&good).unwrap();
        let other = guard.ended(HOST, serial, Some(&head(8, serial)), 5);
        assert_eq!(checker(other), "content");
        let (mut guard, serial, good) = begun();
        guard.executed(&good).unwrap();
        assert_eq!(guard.check(BOUND_NS), Ok(()));
        assert_eq!(checker(guard.check(BOUND_NS + 1)), "every call ends");
        let late = guard.ended(HOST, serial, Some(&good), BOUND_NS + 1);
        assert_eq!(checker(late), "every call ends");
        assert_eq!(checker(guard.executed(&[1; 9])), "content");
    }
}
