//! What the application of a host does by the scenario's plans: calls, cancels, closes, answers.

use std::fmt;

use starling_io::{Clock, PacketIo};
use starling_proto::{ConnectError, Msgbuf, PeerId, Prefix, SessionId};

use super::{Host, Relay, ext_of, key_of, respond, sink, unhealed};
use crate::check::content::{self, Order};
use crate::check::{Tag, Violation};
use crate::harness::protocols::agenda::Task;
use crate::harness::protocols::ledger::Ledger;
use crate::harness::protocols::sink::Sink;
use crate::harness::{CallPlan, Sabotage};

impl Host {
    /// Does what the application has to do by now.
    pub(super) fn work(&mut self, ledger: &mut Ledger) -> Result<(), Violation> {
        let now_ns = ledger.now_ns();
        while let Some(task) = self.agenda.take_due(now_ns) {
            match task {
                Task::Call(plan) => {
                    self.call(&plan, None, ledger)?;
                }
                Task::Probe { channel, attempt } => {
                    self.call(&CallPlan::short(now_ns, channel), Some(attempt), ledger)?;
                }
                Task::Relay {
                    incarnation,
                    id,
                    order,
                    response,
                    channel,
                } => {
                    if incarnation == self.incarnation {
                        let relay = Relay {
                            id,
                            order,
                            response,
                        };
                        self.relay(relay, channel, ledger)?;
                    }
                }
                Task::Worker { incarnation, step } => {
                    if incarnation == self.incarnation {
                        self.step(step, ledger)?;
                    }
                }
                Task::Close(channel) => self.close(channel, ledger),
                Task::Cancel(tag) => self.cancel(tag, ledger)?,
                Task::Respond {
                    incarnation,
                    id,
                    order,
                    response,
                } => {
                    if incarnation == self.incarnation {
                        let process = self.process.as_mut().expect("within a turn");
                        let now = process.clock.now_ns();
                        let mut sink = sink!(process, ledger);
                        let protocol = &mut process.protocol;
                        respond(protocol, now, id, order, response, &mut sink, ledger);
                    }
                }
            }
            self.drain_events(ledger)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        plan: &CallPlan,
        probe: Option<u32>,
        ledger: &mut Ledger,
    ) -> Result<Option<Tag>, Violation> {
        let Some(session) = self.session(plan.channel, ledger)? else {
            self.cannot_probe(plan.channel, probe, &"no room for a session")?;
            return Ok(None);
        };
        let process = self.process.as_mut().expect("within a turn");
        let tag = ledger.new_tag();
        let wanted = Order {
            key: tag,
            response_len: plan.response_len,
            delay_us: plan.delay_us,
        };
        let (mut bytes, order) = content::request(wanted, plan.request_len as usize);
        let tail = bytes.split_off(bytes.len() - plan.tail_len as usize);
        let message = Msgbuf::from_parts(bytes, Some(tail.into()));
        ledger.issue(self.id, tag, order, &message);
        if let Some(channel) = plan.via {
            ledger.relays(order, channel);
        }
        let now = process.clock.now_ns();
        let mut sink = sink!(process, ledger);
        let taken = process.protocol.request(
            now,
            session,
            message,
            prefix_of(order),
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
            Err(rejected) => {
                ledger.rejected(self.id, tag, rejected.reason, &rejected.message)?;
                self.cannot_probe(plan.channel, probe, &rejected.reason)?;
                return Ok(None);
            }
        }
        if let Some(after_ns) = plan.cancel_after_ns {
            let at_ns = ledger.now_ns() + after_ns;
            self.agenda.add(at_ns, Task::Cancel(tag));
        }
        Ok(Some(tag))
    }

    /// A call was not taken. If it was a probe, only limits that are tight can be why, and the
    /// channel is not waited for any more; if it was a late one of the scenario's own, its probe is
    /// still to come.
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

    /// A handler calls on `channel`, and answers then; at once if it cannot.
    fn relay(
        &mut self,
        relay: Relay,
        channel: usize,
        ledger: &mut Ledger,
    ) -> Result<(), Violation> {
        let now_ns = ledger.now_ns();
        match self.call(&CallPlan::short(now_ns, channel), None, ledger)? {
            Some(tag) => {
                let process = self.process.as_mut().expect("within a turn");
                process.relays.insert(tag, relay);
            }
            None => self.agenda.add(now_ns, relay.task(self.incarnation)),
        }
        Ok(())
    }

    /// The channel's session, a new one if it has none.
    fn session(&mut self, channel: usize, ledger: &Ledger) -> Result<Option<SessionId>, Violation> {
        let server = self.channels[channel].server;
        let address = format!("sim://{}", self.fabric.borrow().address(server));
        let process = self.process.as_mut().expect("within a turn");
        if let Some(&session) = process.sessions.get(&channel) {
            return Ok(Some(session));
        }
        let peer = process.io.open_peer(&address).expect("a fabric's address");
        let now = process.clock.now_ns();
        let mut sink = sink!(process, ledger);
        match process.protocol.connect(now, PeerId(peer.0), &mut sink) {
            Ok(session) => {
                process.sessions.insert(channel, session);
                let number = u64::from(session.to_wire());
                ledger.note(
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

    fn close(&mut self, channel: usize, ledger: &mut Ledger) {
        let process = self.process.as_mut().expect("within a turn");
        let Some(session) = process.sessions.remove(&channel) else {
            return;
        };
        ledger.note(self.id, "closes: session", u64::from(session.to_wire()), 0);
        if ledger.saboteur_strikes(Sabotage::LeakedSession) {
            return;
        }
        let now = process.clock.now_ns();
        let mut sink = sink!(process, ledger);
        process.protocol.close(now, session, &mut sink);
    }

    fn cancel(&mut self, tag: Tag, ledger: &mut Ledger) -> Result<(), Violation> {
        let process = self.process.as_mut().expect("within a turn");
        let Some((session, number)) = process.calls.remove(&tag) else {
            return Ok(());
        };
        let now = process.clock.now_ns();
        let mut sink = sink!(process, ledger);
        match process.protocol.cancel(now, session, number, &mut sink) {
            None => Err(Violation::new(
                "every call ends",
                format!("call {tag} is open, but the protocol says that it is over"),
            )),
            Some((its_tag, request)) => {
                ledger.cancelled(self.id, key_of(its_tag), &request)?;
                process.protocol.recycle(request);
                Ok(())
            }
        }
    }
}

/// The bit, on a message that is all body.
pub(super) fn prefix_of(order: Order) -> Prefix {
    Prefix {
        ext: ext_of(order),
        len: 0,
    }
}
