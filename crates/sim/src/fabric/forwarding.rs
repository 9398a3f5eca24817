//! The path of a datagram through the fabric, from the ring in which it is posted to its reader.

use std::net::SocketAddr;

use starling_ethernet::{Drop, Received};
use starling_io::{Ecn, Source};

use super::{Departure, Event, Fabric, HostId};
use crate::faults::{Corruption, checksum, flip_bits};
use crate::host_id::NO_HOST;
use crate::net::{End, Framing, Origin, Packet, PacketId, Payload};
use crate::trace::DropCause;

impl Fabric {
    /// A datagram from outside the fabric arrives at `to` at `at_ns`, past all links and rules.
    ///
    /// # Panics
    /// If datagrams cross as frames and `source` is not an IPv4 address.
    pub fn inject(&mut self, at_ns: u64, source: SocketAddr, to: HostId, bytes: Vec<u8>) {
        assert!(
            self.config.framing.is_none() || source.is_ipv4(),
            "{source}"
        );
        let origin = self.packets.add_unknown(source);
        self.arrive_at(at_ns, origin, to, bytes);
    }

    /// A datagram that a host has sent before arrives at `to` now, past all links and rules, as if it came from `from`.
    pub(crate) fn replay(&mut self, from: HostId, to: HostId, bytes: Vec<u8>) {
        self.arrive_at(self.now_ns(), Origin::Host(from), to, bytes);
    }

    /// A datagram of `origin` arrives at `to` at `at_ns`.
    fn arrive_at(&mut self, at_ns: u64, origin: Origin, to: HostId, mut bytes: Vec<u8>) {
        let source = self.packets.address(origin);
        let len = bytes.len() as u32;
        if let Some(framing) = self.config.framing {
            framing.wrap(source, to.address(), Ecn::NotCapable, &mut bytes);
        }
        let packet = self.packets.put(Packet {
            origin,
            to,
            ecn: Ecn::NotCapable,
            checksum: None,
            next: End::Core,
            tail_ns: at_ns,
            len,
            framing: self.config.framing,
            bytes: Payload::take(&mut bytes),
        });
        self.events.push(at_ns, Event::Arrival(packet));
    }

    /// Sends a datagram from `from` to the address `to`; gives it back if there is no room for it
    /// now.
    pub(crate) fn send(
        &mut self,
        from: HostId,
        to: SocketAddr,
        ecn: Ecn,
        bytes: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        assert!(
            bytes.len() <= self.config.max_datagram,
            "a datagram of {} bytes was sent where {} fit",
            bytes.len(),
            self.config.max_datagram
        );
        let now_ns = self.now_ns();
        if self.config.cpu.is_free() {
            if !self
                .network
                .has_room(self.host(from).node, now_ns, bytes.len())
            {
                let again_ns = self.network.room_at_ns(self.host(from).node, bytes.len());
                self.wake_at(from, again_ns);
                return Err(bytes);
            }
            let id = self.put(from, to, ecn, bytes);
            self.launch(from, id);
            return Ok(());
        }
        let most = self.config.ring;
        let state = &mut self.hosts[from.0 as usize];
        if state.ring.len() >= most {
            state.starved = true;
            return Err(bytes);
        }
        state.unannounced += 1;
        state.work.tx_packets += 1;
        state.work.tx_bytes += bytes.len() as u64;
        let id = self.put(from, to, ecn, bytes);
        self.host_mut(from).ring.push_back(id);
        Ok(())
    }

    /// A datagram is posted.
    fn put(&mut self, from: HostId, to: SocketAddr, ecn: Ecn, mut bytes: Vec<u8>) -> PacketId {
        let receiver = HostId::of_address(to);
        // A datagram to an address without a host goes no further than the card.
        let framing = self.config.framing.filter(|_| receiver.is_some());
        let len = bytes.len() as u32;
        if let Some(framing) = framing {
            framing.wrap(from.address(), to, ecn, &mut bytes);
        }
        let packet = Packet {
            origin: Origin::Host(from),
            to: receiver.unwrap_or(NO_HOST),
            ecn,
            checksum: None,
            next: End::Core,
            tail_ns: 0,
            len,
            framing,
            bytes: Payload::take(&mut bytes),
        };
        self.packets.recycle(bytes);
        self.packets.put(packet)
    }

    /// Moves posted datagrams to the card as long as it has room.
    pub(super) fn post(&mut self, from: HostId) {
        let now_ns = self.now_ns();
        loop {
            let state = &mut self.hosts[from.0 as usize];
            if state.posted == 0 || state.waits_for_room {
                break;
            }
            let Some(&first) = state.ring.front() else {
                break;
            };
            let len = self.packets.get(first).len as usize;
            if !self.network.has_room(state.node, now_ns, len) {
                state.waits_for_room = true;
                let room_ns = self.network.room_at_ns(state.node, len);
                self.events.push(room_ns, Event::Room(from));
                break;
            }
            state.ring.pop_front();
            state.posted -= 1;
            self.launch(from, first);
        }
        let half = self.config.ring / 2;
        let state = self.host_mut(from);
        if state.starved && state.ring.len() <= half {
            state.starved = false;
            self.wake_at(from, now_ns);
        }
    }

    /// A datagram leaves its node.
    fn launch(&mut self, from: HostId, id: PacketId) {
        let now_ns = self.now_ns();
        self.counters.sent += 1;
        let node = self.host(from).node;
        let packet = self.packets.get_mut(id);
        let moved = self.network.leave(node, now_ns, packet.len as usize);
        let to = packet.to;
        if to.0 as usize >= self.hosts.len() {
            packet.to = NO_HOST;
            return self.drop_packet(DropCause::NoHost, id);
        }
        let Some(moved) = moved else {
            return self.drop_packet(DropCause::LinkDown, id);
        };
        packet.next = moved.to;
        packet.tail_ns = moved.tail_ns;
        let mut due_ns = moved.due_ns;
        if self.departure_hook.is_some() {
            match self.intercept(from, id, due_ns) {
                Some(delayed_ns) => due_ns = delayed_ns,
                None => return self.drop_packet(DropCause::Loss, id),
            }
        }
        if !self.rules.is_empty() {
            let effect = self.rules.apply(&mut self.rng, now_ns, Some(from), to);
            if let Some(cause) = effect.dropped {
                return self.drop_packet(cause, id);
            }
            let packet = self.packets.get_mut(id);
            if effect.marked {
                packet.mark();
            }
            if effect.misrouted {
                // Any host but the sender.
                let step = 1 + self.rng.below(self.hosts.len() as u64 - 1);
                let wrong = (u64::from(from.0) + step) % self.hosts.len() as u64;
                packet.to = HostId(wrong as u32);
                packet.seal(from);
                self.counters.misrouted += 1;
            }
            self.counters.delayed += u64::from(effect.delay_ns > 0);
            due_ns += effect.delay_ns;
            packet.tail_ns += effect.delay_ns;
            for extra_ns in effect.copies {
                self.counters.duplicated += 1;
                let mut copy = self.packets.get(id).clone();
                copy.tail_ns += extra_ns;
                let copy = self.packets.put(copy);
                self.events.push(due_ns + extra_ns, Event::Arrival(copy));
            }
            self.corrupt(effect.corruption, from, id);
        }
        self.events.push(due_ns, Event::Arrival(id));
    }

    /// Shows a datagram that is due at `due_ns` to the departure hook. Returns when it arrives, ns;
    /// `None` if it is lost.
    fn intercept(&mut self, from: HostId, id: PacketId, due_ns: u64) -> Option<u64> {
        let packet = self.packets.get_mut(id);
        let treatment = self.departure_hook.as_mut()?(Departure {
            number: self.counters.sent,
            from,
            to: packet.to,
            bytes: packet.datagram(),
        });
        if treatment.marked {
            packet.mark();
        }
        packet.tail_ns += treatment.delay_ns;
        let due_ns = due_ns + treatment.delay_ns;
        for _ in 1..treatment.copies {
            let copy = self.packets.get(id).clone();
            let copy = self.packets.put(copy);
            self.events.push(due_ns, Event::Arrival(copy));
        }
        (treatment.copies > 0).then_some(due_ns)
    }

    fn corrupt(&mut self, corruption: Corruption, from: HostId, id: PacketId) {
        let packet = self.packets.get_mut(id);
        match corruption {
            Corruption::None => {}
            // One bit, which the checksum always finds. It misses one corruption in thousands,
            // which no code above a kernel survives; the rule below covers that case.
            Corruption::OnTheWire => {
                packet.checksum = Some(checksum(&packet.bytes));
                match packet.framing {
                    // One draw either way: later draws are the same as without frames.
                    Some(framing) => framing.damage(&mut self.rng.fork(), &mut packet.bytes),
                    None => flip_bits(&mut self.rng, &mut packet.bytes, 1),
                }
            }
            Corruption::InASwitch => {
                let count = self.rng.range(1, 4);
                let headers = packet.framing.map_or(0, Framing::headers);
                flip_bits(&mut self.rng, &mut packet.bytes[headers..], count);
                packet.seal(from);
                self.counters.corrupted += 1;
            }
        }
    }

    /// A packet has arrived at the end of its last link.
    pub(super) fn arrive(&mut self, id: PacketId) {
        let now_ns = self.now_ns();
        let packet = self.packets.get_mut(id);
        let End::Switch(switch) = packet.next else {
            return self.deliver(id);
        };
        let node = self.hosts[packet.to.0 as usize].node;
        match self
            .network
            .forward(switch, node, now_ns, packet, &mut self.rng)
        {
            Ok(moved) => {
                packet.next = moved.to;
                packet.tail_ns = moved.tail_ns;
                self.events.push(moved.due_ns, Event::Arrival(id));
            }
            Err(cause) => self.drop_packet(cause, id),
        }
    }

    /// A packet has arrived at its node.
    fn deliver(&mut self, id: PacketId) {
        let now_ns = self.now_ns();
        if !self.take_in(id) {
            return self.drop_packet(DropCause::Checksum, id);
        }
        let packet = self.packets.get(id);
        let (from, to) = (packet.origin.host(), packet.to);
        if !self.hosts[to.0 as usize].running {
            if let (true, Some(sender)) = (self.config.port_unreachable, from) {
                let at_ns = now_ns + self.config.link.propagation_ns;
                let unreachable = Event::Unreachable { sender, peer: to };
                self.events.push(at_ns, unreachable);
            }
            return self.drop_packet(DropCause::HostDown, id);
        }
        let limits = self.config.receive;
        let starved = self.rules.queue_limit(now_ns, to).unwrap_or(usize::MAX);
        let host = &mut self.hosts[to.0 as usize];
        if host.queue.len() >= limits.datagrams.min(starved)
            || host.queue_bytes + packet.bytes.len() > limits.bytes
        {
            return self.drop_packet(DropCause::QueueFull, id);
        }
        self.counters.delivered += 1;
        self.trace.delivered(now_ns, from, to, &packet.bytes);
        host.queue_bytes += packet.bytes.len();
        host.queue.push_back(id);
        self.wake_at(to, now_ns + self.config.poll_ns);
    }

    /// The receiver's device parses a frame and extracts its datagram. False if it finds damage.
    fn take_in(&mut self, id: PacketId) -> bool {
        let packet = self.packets.get(id);
        let Some(framing) = packet.framing else {
            let left_with = packet.checksum;
            return left_with.is_none_or(|sent| checksum(&packet.bytes) == sent);
        };
        let sender = self.packets.address(packet.origin);
        let packet = self.packets.get_mut(id);
        let counts = &mut self.counters.frames;
        let is_damaged = packet.checksum.is_some();
        counts.damaged += u64::from(is_damaged);
        let expected = Received {
            source: sender,
            ecn: packet.ecn,
            start: framing.headers(),
            len: packet.len as usize,
        };
        let received = match framing.read(&packet.bytes, packet.to.address()) {
            Err(Drop::UdpChecksum) if self.ignores_checksums => expected,
            Err(reason) => {
                *counts.dropped.entry(reason).or_default() += 1;
                counts.misread += u64::from(!is_damaged);
                return false;
            }
            Ok(received) => received,
        };
        counts.passed += u64::from(is_damaged);
        counts.misread += u64::from(received != expected);
        packet.framing = None;
        packet.ecn = received.ecn;
        packet
            .bytes
            .keep(received.start..received.start + received.len);
        true
    }

    /// `host` reads the next datagram from its queue: the source, the ECN codepoint, whether that source sent it,
    /// and the bytes.
    pub(crate) fn read(&mut self, host: HostId) -> Option<(Source, Ecn, bool, Payload)> {
        let host = &mut self.hosts[host.0 as usize];
        let packet = self.packets.take(host.queue.pop_front()?);
        host.queue_bytes -= packet.bytes.len();
        let known = match packet.origin {
            Origin::Host(from) => host.peers.of_host(from),
            origin => host.peers.number(self.packets.address(origin)),
        };
        let source = match known {
            Some(peer) => Source::Peer(peer),
            None => Source::Unknown(self.packets.address(packet.origin)),
        };
        let is_genuine = packet.origin.host().is_some();
        Some((source, packet.ecn, is_genuine, packet.bytes))
    }

    fn drop_packet(&mut self, cause: DropCause, id: PacketId) {
        let packet = self.packets.take(id);
        let (from, to) = (packet.origin.host(), packet.to);
        let to = (to != NO_HOST).then_some(to);
        *self.counters.dropped.entry(cause).or_default() += 1;
        let now_ns = self.now_ns();
        let bytes = packet.datagram();
        self.trace.dropped(now_ns, cause, from, to, bytes);
        self.packets.recycle(packet.bytes.into_memory());
    }
}
