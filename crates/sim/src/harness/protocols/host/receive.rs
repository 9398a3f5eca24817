//! The receiving side of a host: datagrams, the requests and responses in them, and the protocol's
//! events.

use starling_io::{Clock, Ecn, IoEvent, PacketIo, PacketRx, PeerGone};
use starling_proto::{Body, Event, Incoming, PeerId, Protocol, RequestError, RequestId, Source};

use super::{BURSTS_A_TURN, Host, MAX_PROBES, key_of, respond, sink, unhealed};
use crate::check::{Tag, Violation};
use crate::harness::host_set::PlannedTask;
use crate::harness::protocols::call_log::CallLog;
use crate::harness::protocols::schedule::{Step, Task};
use crate::harness::protocols::sink::Sink;
use crate::harness::{PlantedBug, US, planted_bug};

impl Host {
    pub(super) fn receive(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let now = process.clock.now_ns();
        if process.protocol.is_overdue(now) {
            process
                .protocol
                .handle_overdue(now, &mut sink!(process, log));
        }
        while let Some(IoEvent::PeerGone(peer, certainty)) = process.io.poll_event() {
            let mut sink = sink!(process, log);
            let certain = certainty == PeerGone::Certain;
            process
                .protocol
                .handle_peer_gone(now, PeerId(peer.0), certain, &mut sink);
        }
        for _ in 0..BURSTS_A_TURN {
            let process = self.process();
            let count = process.io.split().0.rx_burst().expect("no errors");
            for index in 0..count {
                self.receive_one(index, log)?;
            }
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes a datagram of the burst, unless it goes to a worker.
    fn receive_one(&mut self, index: usize, log: &mut CallLog) -> Result<(), Violation> {
        let process = self.process();
        let mut bytes = std::mem::take(&mut process.datagram);
        bytes.clear();
        let datagram = process.io.split().0.datagram(index);
        bytes.extend_from_slice(datagram.bytes);
        if log.planted_bug == Some(PlantedBug::CreditOffByOne) {
            planted_bug::give_one_more(&mut bytes, self.config.credits);
        }
        let process = self.process();
        let datagram = process.io.split().0.datagram(index);
        let source = match datagram.source {
            starling_io::Source::Peer(peer) => Source::Peer(PeerId(peer.0)),
            starling_io::Source::Unknown(address) => Source::Unknown(address),
        };
        let marked = datagram.ecn == Ecn::CongestionExperienced;
        let workers = process.workers.as_mut();
        if let Some(peer) = workers.and_then(|workers| workers.take(source, &bytes)) {
            let datagram = bytes.clone();
            let step = Step::Begin {
                peer,
                marked,
                datagram,
            };
            self.plan_step(0, step, log);
        } else {
            let before = log.outcomes.executed;
            self.handle_datagram(source, marked, &bytes, log)?;
            if log.outcomes.executed > before
                && let Some(copy) = planted_bug::as_new_request(&bytes)
                && log.bug_triggers(PlantedBug::HandlerTwice)
            {
                self.handle_datagram(source, marked, &copy, log)?;
            }
        }
        self.process().datagram = bytes;
        Ok(())
    }

    /// Gives a datagram to the protocol and handles the results.
    pub(super) fn handle_datagram(
        &mut self,
        source: Source,
        marked: bool,
        bytes: &[u8],
        log: &mut CallLog,
    ) -> Result<(), Violation> {
        let process = self.process();
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        let protocol = &mut process.protocol;
        let opened = protocol.handle_datagram(now, source, marked, bytes, &mut sink);
        let Ok(mut frames) = opened else {
            return Ok(());
        };
        loop {
            let process = self.process();
            let mut sink = sink!(process, log);
            let protocol = &mut process.protocol;
            let Some(incoming) = protocol.poll_incoming(now, &mut frames, &mut sink) else {
                return Ok(());
            };
            match incoming {
                Incoming::Request {
                    id,
                    peer,
                    ext,
                    body,
                } => {
                    if log.attacked {
                        in_own_session(&process.protocol, now, id, peer)?;
                    }
                    self.handle_request(id, ext, body, log)?;
                }
                Incoming::Response { tag, ext, body, .. } => {
                    self.handle_response(key_of(tag), ext, body, log)?;
                }
                // The handler cannot be stopped: no caller waits for its answer.
                Incoming::Cancelled { id } => log.record(self.id, "cancel heard", id.number(), 0),
            }
        }
    }

    /// Runs a request: answers it at once, after the planned delay, or after a call of its own.
    fn handle_request(
        &mut self,
        id: RequestId,
        ext: bool,
        body: Body<'_>,
        log: &mut CallLog,
    ) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let response = process.protocol.buffer();
        let expected = log.execute(self.id, body.bytes())?;
        log.check_ext(expected, ext)?;
        if let Body::Owned(buffer) = body {
            process.protocol.recycle(buffer);
        }
        let incarnation = self.incarnation;
        let onward = log.relay(expected);
        // Flipped bits may name another caller's request.
        if let Some(channel) = onward.filter(|&it| self.channels[it].client == self.id) {
            let task = Task::Relay {
                incarnation,
                id,
                expected,
                response,
                channel,
            };
            self.schedule.add(log.now_ns(), task);
        } else if expected.delay_us > 0 {
            let at_ns = log.now_ns() + u64::from(expected.delay_us) * US;
            let task = Task::Respond {
                incarnation,
                id,
                expected,
                response,
            };
            self.schedule.add(at_ns, task);
        } else {
            let now = process.clock.now_ns();
            let mut sink = sink!(process, log);
            let protocol = &mut process.protocol;
            respond(protocol, now, id, expected, response, &mut sink, log);
        }
        Ok(())
    }

    fn handle_response(
        &mut self,
        tag: Tag,
        ext: bool,
        body: Body<'_>,
        log: &mut CallLog,
    ) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        process.calls.remove(&tag);
        process.recallable.remove(&tag);
        if let Some((channel, _)) = process.probes.remove(&tag) {
            self.unheard.remove(&channel);
        }
        if let Some(relay) = process.relays.remove(&tag) {
            self.schedule
                .add(log.now_ns(), relay.task(self.incarnation));
        }
        log.answered(self.id, tag, ext, body.bytes())?;
        if let Body::Owned(buffer) = body {
            process.protocol.recycle(buffer);
        }
        Ok(())
    }

    /// Handles the protocol's events.
    pub(super) fn drain_events(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        let retry_ns = self.retry_ns;
        let process = self.process.as_mut().expect("within a turn");
        while let Some(event) = process.protocol.poll_event() {
            match event {
                Event::Connected { session } => {
                    log.record(
                        self.id,
                        "connected: session",
                        u64::from(session.to_wire()),
                        0,
                    );
                }
                // Bare protocols do not shut down in a run.
                Event::SessionDraining { .. } | Event::Standstill { .. } => {}
                Event::SessionEnded { session, error } => {
                    if log.bug_triggers(PlantedBug::SilentEnd) {
                        continue;
                    }
                    let mut open = process.sessions.iter();
                    let channel = open.find(|(_, open)| **open == session);
                    let channel = channel.map(|(channel, _)| *channel);
                    log.session_ended(self.id, channel, session, error)?;
                    process.sessions.retain(|_, open| *open != session);
                }
                Event::RequestFailed {
                    tag,
                    request,
                    error,
                    may_have_run,
                    ..
                } => {
                    let tag = key_of(tag);
                    process.calls.remove(&tag);
                    let again = process.recallable.remove(&tag);
                    let unsent = !may_have_run && matches!(error, RequestError::Session(_));
                    if let Some(plan) = again.filter(|_| unsent) {
                        self.schedule.add(log.now_ns(), Task::Recall(plan));
                    }
                    log.failed(self.id, tag, error, &request, may_have_run)?;
                    if log.bug_triggers(PlantedBug::DoubleFailure) {
                        log.failed(self.id, tag, error, &request, may_have_run)?;
                    }
                    process.protocol.recycle(request);
                    if let Some(relay) = process.relays.remove(&tag) {
                        let task = relay.task(self.incarnation);
                        self.schedule.add(log.now_ns(), task);
                    }
                    if let Some((channel, attempt)) = process.probes.remove(&tag) {
                        if attempt == MAX_PROBES {
                            let refused = self.tight.then_some(());
                            refused.ok_or_else(|| unhealed(self.id, channel, &error))?;
                            self.unheard.remove(&channel);
                            continue;
                        }
                        let at_ns = log.now_ns() + retry_ns;
                        let attempt = attempt + 1;
                        let probe = PlannedTask::Probe { channel, attempt };
                        self.schedule.add(at_ns, Task::Planned(probe));
                    }
                }
                Event::RequestAbandoned { .. } => {}
                Event::PeerReleased { peer } => process.released.push(peer),
            }
        }
        Ok(())
    }
}

/// Fails if a request is taken in the session of another peer than its sender.
fn in_own_session(
    protocol: &Protocol,
    now: u64,
    id: RequestId,
    sender: PeerId,
) -> Result<(), Violation> {
    let place = id.session().index();
    let page = protocol.server_sessions(now, place, 1);
    let owner = page.sessions.first().map(|session| session.peer);
    if owner == Some(sender) {
        return Ok(());
    }
    let text = format!("a request of peer {sender:?} is taken in a session of {owner:?}");
    Err(Violation::new("sessions", text))
}
