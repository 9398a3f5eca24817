//! A host that opens sessions as every client does, and keeps to no rule in them. It answers CHALLENGEs, perhaps
//! CREDITs, and nothing else: it fetches no responses and acknowledges none.

use std::collections::{BTreeMap, BTreeSet};

use starling_io::{PacketIo, PacketRx, PacketTx, Source};
use starling_proto::{HEADER_BYTES, PREAMBLE_BYTES};

use super::material::{self, Cookie, any_frame};
use super::server::Server;
use super::{Attack, AttackPlan, HostileRequest, Scene};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::frames::{
    ACCEPT, CANCEL, CHALLENGE, CLOSE, CONNECT, CREDIT, CREDIT_ACK, DRAIN_ACK, Frame, LEAST_TOKEN,
    PING, REQUEST, REQUEST_FOR_RESPONSE, REQUEST_FRAGMENT, RESET, RESPONSE, begin, frame, frames,
    token_of, u32_at, u64_at,
};
use crate::io::SimIo;
use crate::rng::{Rng, mix};

/// Datagrams that it sends in a run.
const MOST_DATAGRAMS: u32 = 4_000;
/// Of its own datagrams to one host, those that it can send again.
const KEPT: usize = 64;
/// The session that it asks for when it wants a cookie only.
const NO_SESSION: u32 = u32::MAX;
/// The most sessions that it opens before its first attack on a host.
const MOST_AT_FIRST: u64 = 8;
/// Halves of requests for each time that the plan counts.
const HALVES: u32 = 4;
/// Bytes of a whole request, and some more.
const LONGEST_REQUEST: u64 = 300;
/// The most bundles of one attack.
const MOST_BUNDLES: u32 = 8;

pub(super) struct HostilePeer {
    fabric: SharedFabric,
    id: HostId,
    scene: Scene,
    io: SimIo,
    relations: BTreeMap<HostId, Relation>,
    cookies: BTreeMap<HostId, Cookie>,
    /// Its server, for the clients that it answers.
    server: Server,
    /// The keys of all requests that it has sent.
    keys: BTreeSet<u64>,
    /// Datagrams that it may still send.
    left: u32,
    /// What it has sent, and not told yet.
    pub(super) requests: Vec<HostileRequest>,
    pub(super) made: Vec<Attack>,
}

/// What it is to one honest host.
struct Relation {
    /// Its own token for that host.
    token: u64,
    /// That host's token for it; 0: it has no session.
    known_by: u64,
    next_session: u32,
    sessions: Vec<Session>,
    sent: Vec<Vec<u8>>,
    /// Attacks that begin when it has a session.
    waiting: Vec<AttackPlan>,
}

struct Session {
    id: u32,
    /// Its own number.
    remote: u32,
    /// Bytes of data in a full fragment.
    fragment: u32,
    max_message: u32,
    /// The last request number of each slot.
    numbers: Vec<u64>,
}

impl HostilePeer {
    pub(super) fn new(fabric: &SharedFabric, id: HostId, scene: Scene) -> Self {
        Self {
            fabric: fabric.clone(),
            id,
            scene,
            io: SimIo::new(fabric, id),
            relations: BTreeMap::new(),
            cookies: BTreeMap::new(),
            server: Server::new(id, scene),
            keys: BTreeSet::new(),
            left: MOST_DATAGRAMS,
            requests: Vec::new(),
            made: Vec::new(),
        }
    }

    /// A cookie that `on` has made for this host.
    pub(super) fn cookie(&self, on: HostId) -> Option<Cookie> {
        self.cookies.get(&on).copied()
    }

    /// Asks for one.
    pub(super) fn ask_cookie(&mut self, on: HostId) {
        self.connect(on, NO_SESSION, [0, 0]);
        self.end_turn();
    }

    /// Makes an attack, once there is a session.
    pub(super) fn begin(&mut self, plan: &AttackPlan) {
        self.attack_or_open(plan);
        self.end_turn();
    }

    fn attack_or_open(&mut self, plan: &AttackPlan) {
        if plan.attack == Attack::Answers {
            return self.server.serve(plan.on);
        }
        let relation = self.relation(plan.on);
        if relation.sessions.is_empty() {
            relation.waiting.push(plan.clone());
            let sessions = Rng::new(plan.seed).log_range(1, MOST_AT_FIRST);
            (0..sessions).for_each(|_| self.open(plan.on));
        } else {
            self.attack(plan);
        }
    }

    /// Reads what has come.
    pub(super) fn turn(&mut self) {
        let is_over = self.fabric.lock().now_ns() >= self.scene.heal_ns;
        loop {
            let count = self.io.split().0.rx_burst().expect("no errors");
            if count == 0 {
                break;
            }
            for index in (0..count).filter(|_| !is_over) {
                let datagram = self.io.split().0.datagram(index);
                let Source::Unknown(address) = datagram.source else {
                    unreachable!("the device has no peers");
                };
                let bytes = datagram.bytes.to_vec();
                if let Some(from) = HostId::of_address(address) {
                    self.read(from, &bytes);
                }
            }
        }
        self.end_turn();
    }

    fn end_turn(&mut self) {
        self.fabric.lock().end_turn(self.id, Work::default());
    }

    fn relation(&mut self, on: HostId) -> &mut Relation {
        let first = mix(u64::from(self.id.0) << 32 | u64::from(on.0));
        self.relations.entry(on).or_insert_with(|| Relation {
            token: first.max(LEAST_TOKEN),
            known_by: 0,
            next_session: 0,
            sessions: Vec::new(),
            sent: Vec::new(),
            waiting: Vec::new(),
        })
    }

    fn read(&mut self, from: HostId, datagram: &[u8]) {
        let relation = self.relation(from);
        let (own, known_by) = (relation.token, relation.known_by);
        let token = token_of(datagram);
        for frame in frames(datagram) {
            let answers = self.server.answers(from, own, token, &frame);
            if !answers.is_empty() && self.server.begins(from) {
                self.made.push(Attack::Answers);
            }
            for datagram in answers {
                self.send(from, datagram);
            }
            if token == Some(0) && frame.kind == RESET && frame.number == known_by {
                let relation = self.relation(from);
                relation.sessions.clear();
                relation.known_by = 0;
            } else if token == Some(own) {
                self.read_frame(from, &frame);
            }
        }
    }

    fn read_frame(&mut self, from: HostId, frame: &Frame<'_>) {
        match frame.kind {
            CHALLENGE => {
                let word = |at| u64_at(frame.payload, at);
                let (Some(time), Some(code)) = (word(0), word(8)) else {
                    return;
                };
                let words = [time, code];
                let (token, session) = (self.relation(from).token, frame.session);
                let cookie = Cookie {
                    token,
                    session,
                    words,
                };
                self.cookies.insert(from, cookie);
                if session != NO_SESSION {
                    self.connect(from, session, words);
                }
            }
            ACCEPT => self.accepted(from, frame),
            CREDIT => self.keep_credits(from, frame),
            _ => {}
        }
    }

    /// Confirms what it is told of credits, and says that it keeps all. Half of the hosts do; the others say nothing.
    fn keep_credits(&mut self, on: HostId, frame: &Frame<'_>) {
        const ALL: u32 = 1024;
        let relation = self.relation(on);
        let mut sessions = relation.sessions.iter();
        let session = sessions.find(|session| session.remote == frame.session);
        if relation.token & 1 == 0
            && let Some(id) = session.map(|session| session.id)
        {
            let payload = ALL.to_le_bytes();
            let ack = crate::frames::frame(CREDIT_ACK, 0, id, frame.number, &payload);
            self.send_frames(on, vec![ack], false);
        }
    }

    fn accepted(&mut self, by: HostId, frame: &Frame<'_>) {
        let payload = frame.payload;
        let word = |at| u32_at(payload, at);
        let (Some(token), Some(id), Some(max_datagram)) = (u64_at(payload, 0), word(8), word(12))
        else {
            return;
        };
        let (Some(max_message), Some(limits)) = (word(16), word(20)) else {
            return;
        };
        // Flipped bits may say more.
        let most_datagram = self.scene.max_datagram as u32;
        let relation = self.relation(by);
        relation.known_by = token;
        if relation.sessions.iter().all(|session| session.id != id) {
            relation.sessions.push(Session {
                id,
                remote: frame.session,
                fragment: max_datagram.clamp(33, most_datagram) - 32,
                max_message,
                numbers: vec![0; usize::from(limits as u16).clamp(1, 64)],
            });
        }
        for plan in std::mem::take(&mut relation.waiting) {
            self.attack_or_open(&plan);
        }
    }

    /// Begins to open a session.
    fn open(&mut self, on: HostId) {
        let relation = self.relation(on);
        let session = relation.next_session;
        relation.next_session += 1;
        self.connect(on, session, [0, 0]);
    }

    fn connect(&mut self, on: HostId, session: u32, words: [u64; 2]) {
        let token = self.relation(on).token;
        let cookie = Cookie {
            token,
            session,
            words,
        };
        let mut rng = Rng::new(token ^ u64::from(session));
        let payload = material::connect(&mut rng, self.scene, token, Some(cookie));
        self.send(on, [begin(0), frame(CONNECT, 0, 0, 0, &payload)].concat());
    }

    fn send(&mut self, on: HostId, datagram: Vec<u8>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        (self.io.split().1).send_to_unknown(on.address(), &datagram);
        let sent = &mut self.relation(on).sent;
        if sent.len() < KEPT {
            sent.push(datagram);
        }
    }

    /// Sends frames under the token that the host knows this one by, in as few datagrams as `bundles` says, or one in
    /// each.
    fn send_frames(&mut self, on: HostId, frames: Vec<Vec<u8>>, bundles: bool) {
        let known_by = self.relation(on).known_by;
        let mut datagram = begin(known_by);
        for frame in frames {
            let full = datagram.len() + frame.len() > self.scene.max_datagram;
            if datagram.len() > PREAMBLE_BYTES && (full || !bundles) {
                let full = std::mem::replace(&mut datagram, begin(known_by));
                self.send(on, full);
            }
            datagram.extend(frame);
        }
        if datagram.len() > PREAMBLE_BYTES {
            self.send(on, datagram);
        }
    }

    fn attack(&mut self, plan: &AttackPlan) {
        let mut rng = Rng::new(plan.seed);
        let (on, count) = (plan.on, plan.count);
        let bundles = rng.chance(500_000);
        match plan.attack {
            Attack::UsedSlots => {
                let frames = self.used_slots(on, count, &mut rng);
                self.send_frames(on, frames, bundles);
            }
            Attack::OwnReplays => {
                for _ in 0..count {
                    let sent = &self.relation(on).sent;
                    let datagram = sent[rng.below(sent.len() as u64) as usize].clone();
                    self.send(on, datagram);
                }
            }
            Attack::HalfRequests => {
                let frames = self.half_requests(on, count, &mut rng);
                self.send_frames(on, frames, bundles);
            }
            Attack::Cancels => {
                let frames = (0..count).map(|_| self.own_frame(on, &mut rng)).collect();
                self.send_frames(on, frames, bundles);
            }
            Attack::OthersSessions => {
                let frames = self.others_frames(on, count, &mut rng);
                self.send_frames(on, frames, bundles);
            }
            Attack::Bundles => {
                for _ in 0..count.min(MOST_BUNDLES) {
                    let frames = self.bundle(on, &mut rng);
                    self.send_frames(on, frames, true);
                }
            }
            Attack::ManySessions => (0..count).for_each(|_| self.open(on)),
            Attack::UnreadAnswers => {
                let frames = self.unread_answers(on, count, &mut rng);
                self.send_frames(on, frames, bundles);
            }
            Attack::NewIncarnation => {
                let relation = self.relation(on);
                relation.token = rng.next_u64().max(LEAST_TOKEN);
                relation.sessions.clear();
                self.open(on);
            }
            _ => unreachable!("an attack of another position"),
        }
        self.made.push(plan.attack);
    }

    /// One of its sessions with a host, and a slot of it.
    fn pick(&mut self, on: HostId, rng: &mut Rng) -> (usize, usize) {
        let sessions = &self.relation(on).sessions;
        let session = rng.below(sessions.len() as u64) as usize;
        let slots = sessions[session].numbers.len() as u64;
        (session, rng.below(slots) as usize)
    }

    /// A number for a slot: the next one, the last one, a lower one, or one far above.
    fn number(&mut self, on: HostId, (session, slot): (usize, usize), rng: &mut Rng) -> u64 {
        let last = &mut self.relation(on).sessions[session].numbers[slot];
        let number = match rng.below(8) {
            0..=2 => last.saturating_add(1),
            3 | 4 => (*last).max(1),
            5 => rng.range(1, (*last).max(1)),
            6 => last.saturating_add(1 << rng.below(63)),
            _ => rng.pick(&[u64::MAX, u64::MAX / 2, last.saturating_add(1)]),
        };
        *last = (*last).max(number);
        number
    }

    /// A whole request. All that have the same place and number have the same key, which is issued once.
    fn request(
        &mut self,
        on: HostId,
        (id, slot, number): (u32, u8, u64),
        longest_response: u64,
        rng: &mut Rng,
    ) -> Vec<u8> {
        let place = u64::from(id) << 8 | u64::from(slot);
        let place = mix(mix(self.relation(on).known_by) ^ place);
        let key = material::key(mix(place ^ mix(number)));
        if self.keys.insert(key) {
            let slot = place;
            self.requests.push(HostileRequest { key, slot, number });
        }
        let body = material::request(rng, self.scene, key, longest_response);
        let mut frame = frame(REQUEST, slot, id, number, &body);
        if self.scene.has_calls && rng.chance(50_000) && key & 0xffff > LONGEST_REQUEST {
            // An extension that is longer than the request: its length is where the key begins.
            frame[0] |= 1 << 5;
        }
        frame
    }

    fn used_slots(&mut self, on: HostId, count: u32, rng: &mut Rng) -> Vec<Vec<u8>> {
        let (session, slot) = self.pick(on, rng);
        let mut frames = Vec::new();
        for _ in 0..count {
            let number = self.number(on, (session, slot), rng);
            let id = self.relation(on).sessions[session].id;
            frames.push(self.request(on, (id, slot as u8, number), 300, rng));
        }
        frames
    }

    fn half_requests(&mut self, on: HostId, count: u32, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for _ in 0..HALVES * count {
            let (session, slot) = self.pick(on, rng);
            let it = &mut self.relation(on).sessions[session];
            it.numbers[slot] = it.numbers[slot].saturating_add(1);
            let (id, number, fragment) = (it.id, it.numbers[slot], u64::from(it.fragment));
            if u64::from(it.max_message) <= fragment {
                continue;
            }
            let most = u64::from(it.max_message);
            let [some, few] = [
                rng.range(fragment + 1, most),
                rng.log_range(fragment + 1, most),
            ];
            let total = rng.pick(&[few, some, most]);
            let last = total.div_ceil(fragment) - 1;
            // The last one never comes.
            for index in 0..last.min(rng.log_range(1, 3)) {
                let mut payload = (total as u32).to_le_bytes().to_vec();
                payload.extend((index as u32).to_le_bytes());
                payload.resize(8 + fragment as usize, 0xaa);
                let kind = REQUEST_FRAGMENT;
                frames.push(frame(kind, slot as u8, id, number, &payload));
            }
        }
        frames
    }

    /// A frame about a request of its own, which may be over or to come.
    fn own_frame(&mut self, on: HostId, rng: &mut Rng) -> Vec<u8> {
        let (session, slot) = self.pick(on, rng);
        let number = self.number(on, (session, slot), rng);
        let id = self.relation(on).sessions[session].id;
        let words = rng.next_u64().to_le_bytes();
        match rng.below(5) {
            0 | 1 => frame(CANCEL, slot as u8, id, number, &[]),
            2 => {
                let payload = [[0; 8], rng.pick(&[[0; 8], [0xff; 8], words])].concat();
                frame(REQUEST_FOR_RESPONSE, slot as u8, id, number, &payload)
            }
            3 => frame(CREDIT_ACK, 0, id, rng.log_range(1, 50), &words[..4]),
            _ => self.request(on, (id, slot as u8, number), 300, rng),
        }
    }

    /// Frames about sessions of other hosts with the same server, or of that host with other servers. Some have all
    /// kinds; some try one number after the other.
    fn others_frames(&mut self, on: HostId, count: u32, rng: &mut Rng) -> Vec<Vec<u8>> {
        let kinds = [REQUEST, RESPONSE, RESPONSE, CANCEL, CLOSE];
        let only = rng.chance(600_000).then(|| rng.pick(&kinds));
        let (id, first) = (material::session(rng), rng.log_range(0, 100));
        let count = if only.is_some() { 4 * count } else { count };
        let mut frames = Vec::new();
        for number in first..first + u64::from(count) {
            frames.push(match only {
                Some(kind) => self.others_frame(on, kind, (id, number), rng),
                None => {
                    let kind = rng.range(REQUEST.into(), DRAIN_ACK.into()) as u8;
                    let place = (material::session(rng), material::number(rng));
                    self.others_frame(on, kind, place, rng)
                }
            });
        }
        frames
    }

    fn others_frame(
        &mut self,
        on: HostId,
        kind: u8,
        (id, number): (u32, u64),
        rng: &mut Rng,
    ) -> Vec<u8> {
        let slot = rng.log_range(0, 15) as u8;
        let relation = self.relation(on);
        let (token, known_by) = (relation.token, relation.known_by);
        match kind {
            REQUEST => self.request(on, (id, slot, number), 300, rng),
            RESPONSE => frame(RESPONSE, slot, id, number, &[0x99; 20]),
            CANCEL => frame(CANCEL, slot, id, number, &[]),
            CLOSE => frame(CLOSE, 0, id, rng.log_range(0, 16), &[]),
            // It is another incarnation then.
            CONNECT => frame(PING, 0, id, number, &[]),
            kind => {
                let named = rng.pick(&[token, known_by]);
                any_frame(rng, self.scene, kind, id, named)
            }
        }
    }

    /// Frames of one kind for one slot, as many as a datagram takes.
    fn bundle(&mut self, on: HostId, rng: &mut Rng) -> Vec<Vec<u8>> {
        let (session, slot) = self.pick(on, rng);
        let id = self.relation(on).sessions[session].id;
        let kind = rng.pick(&[
            REQUEST,
            REQUEST,
            CANCEL,
            REQUEST_FOR_RESPONSE,
            PING,
            CREDIT_ACK,
        ]);
        let unknown = rng.chance(200_000);
        let id = if unknown { id ^ 0x80_0000 } else { id };
        let mut frames = Vec::new();
        let mut left = self.scene.max_datagram - PREAMBLE_BYTES;
        while left >= HEADER_BYTES {
            let last = &mut self.relation(on).sessions[session].numbers[slot];
            *last = last.saturating_add(1);
            let number = *last;
            let frame = match kind {
                REQUEST => self.request(on, (id, slot as u8, number), 100, rng),
                REQUEST_FOR_RESPONSE => frame(kind, slot as u8, id, number, &[0xff; 16]),
                kind => frame(kind, slot as u8, id, number, &[0; 4]),
            };
            if frame.len() > left {
                break;
            }
            left -= frame.len();
            frames.push(frame);
        }
        frames
    }

    fn unread_answers(&mut self, on: HostId, count: u32, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for _ in 0..count {
            let (session, slot) = self.pick(on, rng);
            let it = &mut self.relation(on).sessions[session];
            it.numbers[slot] = it.numbers[slot].saturating_add(1);
            let (id, number) = (it.id, it.numbers[slot]);
            let request = self.request(on, (id, slot as u8, number), u64::MAX, rng);
            frames.push(request);
            if rng.chance(300_000) {
                let payload = [[0; 8], [0xff; 8]].concat();
                let kind = REQUEST_FOR_RESPONSE;
                frames.push(frame(kind, slot as u8, id, number, &payload));
            }
        }
        frames
    }
}
