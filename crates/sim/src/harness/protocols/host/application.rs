//! The application of a host: it calls, cancels, closes and answers as the plan says.

use std::fmt;

use starling_io::{Clock, PacketIo};
use starling_proto::{ConnectError, Msgbuf, PeerId, SessionId};

use super::{Host, Relay, key_of, prefix_of, respond, sink, unhealed};
use crate::check::content::{self, Expected};
use crate::check::{Tag, Violation};
use crate::harness::host_set::PlannedTask;
use crate::harness::protocols::call_log::CallLog;
use crate::harness::protocols::schedule::Task;
use crate::harness::protocols::sink::Sink;
use crate::harness::{CallPlan, PlantedBug};

impl Host {
    /// Runs the tasks that are due.
    pub(super) fn work(&mut self, log: &mut CallLog) -> Result<(), Violation> {
        let now_ns = log.now_ns();
        while let Some(task) = self.schedule.take_due(now_ns) {
            match task {
                Task::Planned(PlannedTask::Call(plan)) => {
                    let tag = self.call(&plan, None, log)?;
                    if let Some(tag) = tag.filter(|_| self.recalls) {
                        self.process().recallable.insert(tag, plan);
                    }
                }
                Task::Recall(plan) => {
                    log.outcomes.made_again += 1;
                    self.call(&plan, None, log)?;
                }
                Task::Planned(PlannedTask::Stream(_)) => {
                    unreachable!("streams need whole endpoints")
                }
                Task::Planned(PlannedTask::Probe { channel, attempt }) => {
                    self.call(&CallPlan::short(now_ns, channel), Some(attempt), log)?;
                }
                Task::Relay {
                    incarnation,
                    id,
                    expected,
                    response,
                    channel,
                } => {
                    if incarnation == self.incarnation {
                        let relay = Relay {
                            id,
                            expected,
                            response,
                        };
                        self.relay(relay, channel, log)?;
                    }
                }
                Task::Worker { incarnation, step } => {
                    if incarnation == self.incarnation {
                        self.step(step, log)?;
                    }
                }
                Task::Planned(PlannedTask::Close(channel)) => self.close(channel, log),
                Task::Cancel(tag) => self.cancel(tag, log)?,
                Task::Respond {
                    incarnation,
                    id,
                    expected,
                    response,
                } => {
                    if incarnation == self.incarnation {
                        let process = self.process.as_mut().expect("within a turn");
                        let now = process.clock.now_ns();
                        let mut sink = sink!(process, log);
                        let protocol = &mut process.protocol;
                        respond(protocol, now, id, expected, response, &mut sink, log);
                    }
                }
            }
            self.drain_events(log)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        plan: &CallPlan,
        probe: Option<u32>,
        log: &mut CallLog,
    ) -> Result<Option<Tag>, Violation> {
        let Some(session) = self.session(plan.channel, log)? else {
            self.cannot_probe(plan.channel, probe, &"no room for a session")?;
            return Ok(None);
        };
        let process = self.process.as_mut().expect("within a turn");
        let tag = log.new_tag();
        let wanted = Expected {
            key: tag,
            response_len: plan.response_len,
            delay_us: plan.delay_us,
        };
        let (mut bytes, expected) = content::request(wanted, plan.request_len as usize);
        let tail = bytes.split_off(bytes.len() - plan.tail_len as usize);
        let message = Msgbuf::from_parts(bytes, Some(tail.into()));
        log.issue(self.id, plan.channel, tag, expected, &message);
        if let Some(channel) = plan.via {
            log.plan_relay(expected, channel);
        }
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        let taken = process.protocol.request(
            now,
            session,
            message,
            prefix_of(expected),
            tag.into(),
            &mut sink,
        );
        match taken {
            Ok(number) => {
                process.calls.insert(tag, (session, number));
                if let Some(attempt) = probe {
                    process.probes.insert(tag, (plan.channel, attempt));
                }
            }
            Err(not_made) => {
                log.not_made(self.id, tag, not_made.reason, &not_made.message)?;
                self.cannot_probe(plan.channel, probe, &not_made.reason)?;
                return Ok(None);
            }
        }
        if let Some(after_ns) = plan.cancel_after_ns {
            let at_ns = log.now_ns() + after_ns;
            self.schedule.add(at_ns, Task::Cancel(tag));
        }
        Ok(Some(tag))
    }

    /// The protocol did not make a call. For a probe, only tight limits can be the reason, and the
    /// host stops waiting for the channel. For a late call of the plan, the channel's
    /// probe is still to come.
    fn cannot_probe(
        &mut self,
        channel: usize,
        probe: Option<u32>,
        why: &dyn fmt::Display,
    ) -> Result<(), Violation> {
        if probe.is_none() {
            return Ok(());
        }
        if !self.tight {
            return Err(unhealed(self.id, channel, why));
        }
        self.unheard.remove(&channel);
        Ok(())
    }

    /// A handler calls on `channel` and answers when that call ends, or at once if it cannot call.
    fn relay(&mut self, relay: Relay, channel: usize, log: &mut CallLog) -> Result<(), Violation> {
        let now_ns = log.now_ns();
        match self.call(&CallPlan::short(now_ns, channel), None, log)? {
            Some(tag) => {
                let process = self.process.as_mut().expect("within a turn");
                process.relays.insert(tag, relay);
            }
            None => self.schedule.add(now_ns, relay.task(self.incarnation)),
        }
        Ok(())
    }

    /// The channel's session, a new one if it has none.
    fn session(&mut self, channel: usize, log: &CallLog) -> Result<Option<SessionId>, Violation> {
        let server = self.channels[channel].server;
        let address = format!("sim://{}", self.fabric.lock().address(server));
        let process = self.process.as_mut().expect("within a turn");
        if let Some(&session) = process.sessions.get(&channel) {
            return Ok(Some(session));
        }
        let peer = process.io.open_peer(&address).expect("a fabric's address");
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        match process.protocol.connect(now, PeerId(peer.0), &mut sink) {
            Ok(session) => {
                process.sessions.insert(channel, session);
                let number = u64::from(session.to_wire());
                log.record(
                    self.id,
                    "connects: channel, session",
                    channel as u64,
                    number,
                );
                Ok(Some(session))
            }
            Err(ConnectError::SessionLimit(_)) if self.tight => {
                process.released.push(PeerId(peer.0));
                Ok(None)
            }
            Err(error) => Err(Violation::new("connect", error.to_string())),
        }
    }

    fn close(&mut self, channel: usize, log: &mut CallLog) {
        let process = self.process.as_mut().expect("within a turn");
        let Some(session) = process.sessions.remove(&channel) else {
            return;
        };
        log.record(self.id, "closes: session", u64::from(session.to_wire()), 0);
        if log.bug_triggers(PlantedBug::LeakedSession) {
            return;
        }
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        process.protocol.close(now, session, &mut sink);
    }

    fn cancel(&mut self, tag: Tag, log: &mut CallLog) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let Some((session, number)) = process.calls.remove(&tag) else {
            return Ok(());
        };
        let now = process.clock.now_ns();
        let mut sink = sink!(process, log);
        match process.protocol.cancel(now, session, number, &mut sink) {
            None => Err(Violation::new(
                "every call ends",
                format!("call {tag} is open, but the protocol says that it is over"),
            )),
            Some(cancelled) => {
                log.cancelled(self.id, key_of(cancelled.tag), &cancelled.request)?;
                process.protocol.recycle(cancelled.request);
                Ok(())
            }
        }
    }
}
