//! Workers that claim requests beside the event loop of a host, like threads that a device steers
//! requests to. They take some of its datagrams, claim at any time, answer on their own, and report
//! to the event loop at any later time.
//!
//! ```text
//!  rx ─ some ─▶ steered ─▶ claim ─┬─▶ runs ─▶ answers ─▶ report ─▶ the protocol
//!   └─ others ────────────────────┴─ lost ─▶ handed over ──────────▶ the protocol
//! ```
//! Some time passes between any two of these steps.

use std::sync::Arc;

use starling_io::{Clock, PacketIo};
use starling_proto::{Claim, Claims, FrameSink, Msgbuf, PeerId, Source};

use super::{Host, Process, prefix_of, respond, sink};
use crate::check::Violation;
use crate::check::content::{self, Expected};
use crate::harness::protocols::call_log::CallLog;
use crate::harness::protocols::schedule::{Step, Task};
use crate::harness::protocols::sink::Sink;
use crate::harness::{PlantedBug, US};
use crate::rng::Rng;

/// Sessions whose requests workers can claim. Some sessions have a number beyond it.
const PLACES: usize = 6;
/// The share of claimable requests that go to a worker.
const SHARE_PPM: u32 = 700_000;

pub(super) struct Workers {
    pub(super) claims: Arc<Claims>,
    rng: Rng,
}

impl Workers {
    pub(super) fn new(claims: Arc<Claims>, rng: Rng) -> Self {
        Self { claims, rng }
    }

    /// Whether a datagram goes to one of them.
    pub(super) fn take(&mut self, source: Source, datagram: &[u8]) -> Option<PeerId> {
        let Source::Peer(peer) = source else {
            return None;
        };
        self.claims.parse(peer, datagram)?;
        self.rng.chance(SHARE_PPM).then_some(peer)
    }

    /// How long one step takes, ns.
    pub(super) fn delay_ns(&mut self) -> u64 {
        match self.rng.below(4) {
            0 | 1 => 0,
            2 => self.rng.log_range(1, 20 * US),
            _ => self.rng.log_range(US, 3000 * US),
        }
    }
}

impl Host {
    /// Plans the next step of a worker. It ends after `after_ns` and the time that such a step takes.
    pub(super) fn plan_step(&mut self, after_ns: u64, step: Step, log: &CallLog) {
        let workers = self
            .process()
            .workers
            .as_mut()
            .expect("the host has workers");
        let at_ns = log.now_ns() + after_ns + workers.delay_ns();
        let incarnation = self.incarnation;
        self.schedule.add(at_ns, Task::Worker { incarnation, step });
    }

    /// One step of a worker.
    pub(super) fn step(&mut self, step: Step, log: &mut CallLog) -> Result<(), Violation> {
        match step {
            Step::Begin {
                peer,
                marked,
                datagram,
            } => self.claim(peer, marked, datagram, log)?,
            Step::HandOver {
                peer,
                marked,
                datagram,
            } => self.handle_datagram(Source::Peer(peer), marked, &datagram, log)?,
            Step::Finish { claim, expected } => self.send_response(claim, expected, log),
            Step::Report {
                claim,
                expected,
                response,
                sent,
            } => self.handle_report(&claim, expected, response, sent, log),
        }
        Ok(())
    }

    /// Claims the request in a datagram and runs it, or gives the datagram to the event loop.
    fn claim(
        &mut self,
        peer: PeerId,
        marked: bool,
        datagram: Vec<u8>,
        log: &mut CallLog,
    ) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let workers = process.workers.as_ref().expect("the host has workers");
        let candidate = workers.claims.parse(peer, &datagram);
        let candidate = candidate.expect("the datagram was parsed before");
        let Some(claim) = workers.claims.claim(&candidate, marked) else {
            if log.bug_triggers(PlantedBug::ClaimIgnored) {
                log.execute(self.id, candidate.payload())?;
            }
            let step = Step::HandOver {
                peer,
                marked,
                datagram,
            };
            self.plan_step(0, step, log);
            return Ok(());
        };
        log.record(self.id, "claims: request", claim.id().number(), 0);
        let expected = log.execute(self.id, candidate.payload())?;
        log.check_ext(expected, false)?;
        let takes_ns = u64::from(expected.delay_us) * US;
        self.plan_step(takes_ns, Step::Finish { claim, expected }, log);
        Ok(())
    }

    /// Sends the response of a claimed request from the worker, if the claim allows that.
    fn send_response(&mut self, claim: Claim, expected: Expected, log: &CallLog) {
        let process = self.process.as_mut().expect("within a turn");
        let mut response = process.protocol.buffer();
        content::respond(expected, response.head_mut());
        let head = claim
            .response_head(&response)
            .filter(|_| !prefix_of(expected).ext);
        let sent = head.is_some_and(|(preamble, head)| {
            let mut sink = sink!(process, log);
            let (peer, body) = (claim.peer(), response.head());
            // The response goes into a datagram of its own.
            sink.seal(peer);
            let pushed = sink.push(peer, &preamble, &head, body, &[]);
            sink.seal(peer);
            pushed.is_ok()
        });
        let step = Step::Report {
            claim,
            expected,
            response,
            sent,
        };
        self.plan_step(0, step, log);
    }

    /// Reports the worker's step to the protocol; answers the request if the worker did not.
    fn handle_report(
        &mut self,
        claim: &Claim,
        expected: Expected,
        mut response: Msgbuf,
        sent: bool,
        log: &mut CallLog,
    ) {
        let process = self.process.as_mut().expect("within a turn");
        let now = process.clock.now_ns();
        let protocol = &mut process.protocol;
        if sent {
            // The caller may have given up.
            let _ = protocol.handle_claimed_response(now, claim, &mut response);
            protocol.recycle(response);
        } else {
            protocol.handle_claimed_request(now, claim);
            response.clear();
            let id = claim.id();
            let mut sink = sink!(process, log);
            let protocol = &mut process.protocol;
            respond(protocol, now, id, expected, response, &mut sink, log);
        }
    }
}

impl Process {
    /// Gives the process workers.
    pub(super) fn start_workers(&mut self, rng: Rng) {
        let claims = self.protocol.share_claims(PLACES);
        self.workers = Some(Workers::new(claims, rng));
    }
}
