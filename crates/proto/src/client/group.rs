//! Session groups: a session grows when slow requests hold its slots and others wait behind them.
//!
//! A session has few slots, so that a server's memory for it is small. The caller of a session does
//! not see its *members*, the further sessions with the same peer. They share the session's queue and
//! the numbers of its requests:
//!
//! ```text
//!  request ─▶ slot of the session ─ none free ─▶ slot of a member ─ none free ─▶ queue
//!                                                                                  │
//!        a slot of the session or of a member becomes free, or a member opens ◀────┘
//! ```
//!
//! Requests that end quickly need no members, nor do those that wait for the server's thread: more
//! slots would only move their queue to the server. So only requests count that the server has said
//! it executes, in answer to a repeat. A timeout follows the time that handlers take, so it does not
//! repeat those that all take equally long: of each session, one is repeated when others wait.
//!
//! A group grows by as many slots as hold such requests, times [`GROWTH`], and no faster than a
//! handshake. It grows ahead when the last slot is taken: a server that shuts down opens no session for those who have
//! to go on. A member without requests for [`IDLE_NS`] to twice that is closed, unless few slots would be left free.

use std::collections::{BTreeMap, VecDeque};

use super::Client;
use super::session::{ClientSession, Queued, State};
use super::standstill::Standing;
use crate::peer::Role;
use crate::shared::Shared;
use crate::{FrameSink, RequestNumber, SessionError, SessionId};

/// A request is slow, and one that waits has waited for long, after this time.
const SLOW_NS: u64 = 1_000_000;
/// Sessions of a group, at most, that have a request repeated in one look.
const ASKED: usize = 16;
/// When a group that cannot grow now is looked at again.
const STUCK_NS: u64 = 100_000_000;
/// Slots that are added for each slow request: a group of slow requests quadruples.
const GROWTH: usize = 3;
/// A group grows by one slot at least for so many slow requests, however few others wait.
const AHEAD: usize = 4;
/// The pause after a member that did not open: its server wants no more sessions for now.
const REFUSED_PAUSE_NS: u64 = 1_000_000_000;
/// Members that were idle since the last look, so long ago, are closed.
const IDLE_NS: u64 = 1_000_000_000;

/// The groups of a client's sessions.
pub(super) struct Groups {
    /// By the session that the caller has. A session without members has no group.
    by_first: BTreeMap<u32, Group>,
    /// Sessions with requests that wait, and when they are looked at: in that order. Each session is in
    /// one of these two once.
    waiting: VecDeque<(u64, SessionId)>,
    stuck: VecDeque<(u64, SessionId)>,
    /// Sessions with members, each once, and when idle members are looked for: in that order.
    grown: VecDeque<(u64, SessionId)>,
    /// Open members of sessions that have ended. The next flush closes them.
    orphans: Vec<SessionId>,
    /// When the next of all this is due.
    due_at: u64,
    /// See [`Client::group_version`].
    version: u64,
    /// The groups that cannot grow while requests wait, by their first sessions.
    pub(super) standing: BTreeMap<u32, Standing>,
}

/// Whether a group has as many slots as are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotRoom {
    /// It has.
    Enough,
    /// It opens further sessions.
    Growing,
    /// It has not, and cannot grow now: by a limit of its own or of the server, or because the server shuts down.
    None,
}

#[derive(Default)]
struct Group {
    members: Vec<Member>,
    /// Members that may have a free slot.
    available: Vec<SessionId>,
    connecting: usize,
    /// A member did not open.
    refused: bool,
    /// The server has said no to the member that was last to open.
    is_denied: bool,
    /// No member is added before this time.
    grow_at: u64,
}

struct Member {
    id: SessionId,
    /// Its next number when idle members were last looked for.
    seen: RequestNumber,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            by_first: BTreeMap::new(),
            waiting: VecDeque::new(),
            stuck: VecDeque::new(),
            grown: VecDeque::new(),
            orphans: Vec::new(),
            due_at: u64::MAX,
            version: 0,
            standing: BTreeMap::new(),
        }
    }

    #[inline]
    pub(super) fn due_at(&self) -> u64 {
        self.due_at
    }

    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    fn get_mut(&mut self, first: SessionId) -> Option<&mut Group> {
        self.by_first.get_mut(&first.to_wire())
    }

    /// Has the queue of a session looked at when its requests have waited for long, and the credits of its group.
    pub(super) fn watch(&mut self, now: u64, session: &mut ClientSession) {
        if !session.watched {
            session.watched = true;
            self.watch_again(now, session.id);
        }
    }

    fn watch_again(&mut self, now: u64, first: SessionId) {
        self.waiting.push_back((now + SLOW_NS, first));
        self.due_at = self.due_at.min(now + SLOW_NS);
    }

    /// A member has a free slot that no request waits for.
    pub(super) fn offer(&mut self, member: &mut ClientSession) {
        if !member.offered
            && let Some(group) = self.get_mut(member.first)
        {
            member.offered = true;
            group.available.push(member.id);
        }
    }

    /// A member is over, or closing.
    pub(super) fn leave(&mut self, member: &ClientSession) {
        self.version += 1;
        let Some(group) = self.get_mut(member.first) else {
            return;
        };
        let before = group.members.len();
        group.members.retain(|own| own.id != member.id);
        group.available.retain(|own| *own != member.id);
        if group.members.len() < before && member.state == State::Connecting {
            group.connecting -= 1;
            group.refused = true;
        }
    }

    fn pop_due(queue: &mut VecDeque<(u64, SessionId)>, now: u64) -> Option<SessionId> {
        let (at, _) = *queue.front()?;
        (at <= now).then(|| queue.pop_front().expect("just seen").1)
    }
}

impl Client {
    /// A member with a free slot.
    pub(super) fn available_member(&mut self, first: SessionId) -> Option<SessionId> {
        let group = self.groups.get_mut(first)?;
        while let Some(id) = group.available.last().copied() {
            match self.sessions.get_mut(id) {
                Some(member) if member.free != 0 && member.state == State::Open => return Some(id),
                Some(member) => member.offered = false,
                None => {}
            }
            group.available.pop();
        }
        None
    }

    /// Whether no session of the group has a free slot.
    fn is_full(&mut self, first: SessionId) -> bool {
        let session = self.sessions.get(first);
        session.is_some_and(|session| session.free == 0) && self.available_member(first).is_none()
    }

    /// The server executes a request of this session: the group grows if that has taken the last slot.
    pub(super) fn watch_if_full(&mut self, now: u64, id: SessionId) {
        let first = self.owner(id);
        if self.is_full(first)
            && let Some(session) = self.sessions.get_mut(first)
        {
            self.groups.watch(now, session);
        }
    }

    /// A session and its members.
    pub(crate) fn group(&self, first: SessionId) -> impl Iterator<Item = SessionId> {
        let group = self.groups.by_first.get(&first.to_wire());
        let members = group.into_iter().flat_map(|group| &group.members);
        std::iter::once(first).chain(members.map(|member| member.id))
    }

    /// Which session of a group holds a request, and in which slot.
    pub(super) fn find_request(
        &self,
        first: SessionId,
        number: RequestNumber,
    ) -> Option<(SessionId, usize)> {
        self.group(first)
            .find_map(|id| Some((id, self.sessions.get(id)?.slot_of(number)?)))
    }

    /// A member has opened.
    pub(super) fn handle_member_open<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let member = self.sessions.get(id).expect("the caller has it");
        let (first, preamble) = (member.first, member.preamble);
        let of_same_server = |session: &ClientSession| session.is_known_to(member.peer, preamble);
        let owner = self.sessions.get(first).filter(|it| of_same_server(it));
        let rtt = owner.map(|owner| owner.rtt);
        self.groups.version += 1;
        let Some(group) = self.groups.get_mut(first) else {
            unreachable!("a group ends with its members");
        };
        group.connecting -= 1;
        if let Some(rtt) = rtt {
            // The path is the same.
            let member = self.sessions.get_mut(id).expect("just seen");
            member.rtt = rtt;
            self.send_queued(shared, now, id, sink);
        } else {
            // The server was restarted. The first session will learn it.
            group.refused = true;
            self.end(shared, now, id, SessionError::PeerRestarted, sink);
        }
    }

    /// Moves requests from the queue of a member's group to its free slots.
    pub(super) fn take_queued(&mut self, shared: &mut Shared, now: u64, id: SessionId) {
        loop {
            let member = self.sessions.get_mut(id).expect("the caller has it");
            let first = member.first;
            if member.free == 0 {
                return;
            }
            let first = self.sessions.get_mut(first);
            let Some(request) = first.and_then(|first| first.queue.pop_front()) else {
                break;
            };
            self.assign(shared, now, id, request);
        }
        let member = self.sessions.get_mut(id).expect("the caller has it");
        self.groups.offer(member);
    }

    /// The session that the caller has is over: all requests of its members end with it.
    pub(super) fn disband(&mut self, shared: &mut Shared, first: SessionId, error: SessionError) {
        self.groups.standing.remove(&first.to_wire());
        let Some(group) = self.groups.by_first.remove(&first.to_wire()) else {
            return;
        };
        for Member { id, .. } in group.members {
            self.fail_requests(shared, id, error);
            let member = self.sessions.get(id).expect("a member leaves at its end");
            if member.state == State::Connecting {
                let member = self.sessions.remove(id).expect("just seen");
                let events = &mut shared.events;
                shared.peers.release(member.peer, Role::Client, events);
            } else {
                self.groups.orphans.push(id);
                self.groups.due_at = 0;
            }
        }
    }

    /// Does what is due: grows groups, and closes members.
    #[cold]
    pub(super) fn maintain_groups<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) {
        for id in std::mem::take(&mut self.groups.orphans) {
            let session = self.sessions.get(id);
            if session.is_some_and(|session| session.state == State::Open) {
                self.end(shared, now, id, SessionError::Closed, sink);
            }
        }
        while let Some(first) = Groups::pop_due(&mut self.groups.waiting, now) {
            self.maintain_queue(shared, now, first, sink);
        }
        while let Some(first) = Groups::pop_due(&mut self.groups.stuck, now) {
            self.maintain_queue(shared, now, first, sink);
        }
        while let Some(first) = Groups::pop_due(&mut self.groups.grown, now) {
            self.close_idle_members(shared, now, first, sink);
        }
        let groups = &mut self.groups;
        let queues = [&groups.waiting, &groups.stuck, &groups.grown];
        let next = queues.map(VecDeque::front);
        let next = next.into_iter().flatten().map(|(at, _)| *at);
        groups.due_at = next.min().unwrap_or(u64::MAX);
    }

    /// Adds members to a session whose requests have waited for long.
    fn maintain_queue<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        sink: &mut S,
    ) {
        let lacks_credits = self.ask_where_credits_are_out(shared, now, first, sink);
        let is_full = self.is_full(first);
        let Some(session) = self.sessions.get_mut(first) else {
            return;
        };
        let waits = session.state == State::Open && (!session.queue.is_empty() || lacks_credits);
        session.watched = waits;
        if session.state == State::Open && session.queue.is_empty() && is_full {
            self.grow(shared, now, first, sink);
        }
        if !waits {
            self.groups.standing.remove(&first.to_wire());
            return;
        }
        let session = self.sessions.get(first).expect("just seen");
        let is_late = |queued: &Queued| now.saturating_sub(queued.queued_at) >= SLOW_NS;
        let is_late = !session.suspected && session.queue.front().is_some_and(is_late);
        if is_late && !self.grow(shared, now, first, sink) {
            self.watch_standstill(shared, now, first);
            self.groups.stuck.push_back((now + STUCK_NS, first));
        } else {
            self.groups.watch_again(now, first);
        }
    }

    /// Requests that the server is known to execute hold no credits. Has one repeated in each session whose credits are
    /// out, and returns whether there are any.
    fn ask_where_credits_are_out<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        sink: &mut S,
    ) -> bool {
        let session = |id| self.sessions.get(id);
        let out = self
            .group(first)
            .filter(|id| session(*id).is_some_and(ClientSession::lacks_credits));
        let out: Vec<_> = out.collect();
        for id in &out {
            let session = self.sessions.get(*id).expect("just seen");
            // Not those that only take as long as the path.
            let slow_ns = SLOW_NS.max(2 * session.rtt.smoothed_ns());
            if let Some(index) = session.longest_with_credit(now, slow_ns) {
                self.ask_again(shared, now, *id, 1 << index, sink);
            }
        }
        !out.is_empty()
    }

    /// Adds as many members as slow requests ask for. False if the group cannot grow now.
    fn grow<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        sink: &mut S,
    ) -> bool {
        let session = self.sessions.get(first).expect("the caller has it");
        let slots = usize::from(session.slot_count);
        let queued = session.queue.len();
        let Some(room) = self.room_to_grow(shared, now, first) else {
            return true;
        };
        if room == 0 && queued == 0 {
            return false;
        }
        let sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        let slow: usize = sessions.map(|it| it.slow_requests(now, SLOW_NS)).sum();
        if GROWTH * slow < queued {
            self.ask_of_long_requests(shared, now, first, sink);
        }
        if room == 0 {
            return false;
        }
        // Whoever waits alone is followed by others, as one stream is by the next: each would wait as long.
        let wanted = match queued {
            0 => 1,
            _ => queued.max(slow / AHEAD),
        };
        let wanted = wanted.min(GROWTH * slow);
        let wanted = wanted.div_ceil(slots).min(room);
        self.add_members(shared, now, first, wanted, sink)
    }

    /// Has a group grow to so many slots, at once.
    pub(crate) fn reserve_slots<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        wanted: usize,
        sink: &mut S,
    ) -> SlotRoom {
        let Some(session) = self.sessions.get(first) else {
            return SlotRoom::None;
        };
        let of_each = usize::from(session.slot_count).max(1);
        let (is_open, has) = (session.state == State::Open, self.group_slots(first));
        let is_draining = session.draining;
        if has >= wanted {
            return SlotRoom::Enough;
        }
        match self.room_to_grow(shared, now, first) {
            None => SlotRoom::Growing,
            Some(room) if room > 0 && is_open && !is_draining => {
                let members = (wanted - has).div_ceil(of_each).min(room);
                match self.add_members(shared, now, first, members, sink) {
                    true => SlotRoom::Growing,
                    false => SlotRoom::None,
                }
            }
            // Nobody has said no: it is tried again.
            Some(_) if is_open && !is_draining && self.is_paused(now, first) => SlotRoom::Growing,
            Some(_) => SlotRoom::None,
        }
    }

    /// Whether the group does not grow for a while because a member had no answer.
    pub(super) fn is_paused(&self, now: u64, first: SessionId) -> bool {
        let group = self.groups.by_first.get(&first.to_wire());
        group.is_some_and(|group| now < group.grow_at && !group.is_denied)
    }

    /// The server refuses a session.
    pub(super) fn note_refusal(&mut self, id: SessionId) {
        let first = self.owner(id);
        if let Some(group) = self.groups.get_mut(first) {
            group.is_denied = true;
        }
    }

    /// The slots of all open sessions of a group.
    pub(crate) fn group_slots(&self, first: SessionId) -> usize {
        let sessions = self.group(first).filter_map(|id| self.sessions.get(id));
        let open = sessions.filter(|session| session.state == State::Open);
        open.map(|session| usize::from(session.slot_count)).sum()
    }

    /// Another number when sessions have joined groups or left them.
    pub(crate) fn group_version(&self) -> u64 {
        self.groups.version
    }

    /// How many members may be added now. `None`: some are being added.
    fn room_to_grow(&mut self, shared: &Shared, now: u64, first: SessionId) -> Option<usize> {
        let mut room = usize::from(shared.config.group_sessions) - 1;
        if let Some(group) = self.groups.get_mut(first) {
            if std::mem::take(&mut group.refused) {
                group.grow_at = now + REFUSED_PAUSE_NS;
            }
            if group.connecting > 0 {
                return None;
            }
            room = match now < group.grow_at {
                true => 0,
                false => room.saturating_sub(group.members.len()),
            };
        }
        // The callers' own sessions come first: half of the table is theirs.
        let sessions = (shared.config.max_sessions / 2).saturating_sub(self.sessions.len());
        Some(room.min(sessions))
    }

    /// Returns whether all could be added.
    fn add_members<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        members: usize,
        sink: &mut S,
    ) -> bool {
        let peer = self.sessions.get(first).expect("the caller has it").peer;
        for _ in 0..members {
            let Ok(id) = self.connect(shared, now, peer, sink) else {
                return false;
            };
            self.add_member(now, first, id);
            shared.stats.sessions_added += 1;
        }
        true
    }

    /// Repeats a request of each session that has had no answer for long, so that the server says which ones it
    /// executes.
    fn ask_of_long_requests<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        sink: &mut S,
    ) {
        let unasked = self.group(first).filter_map(|id| {
            let session = self.sessions.get(id)?;
            let is_open = session.state == State::Open;
            let index = is_open.then(|| session.longest_unasked(now, SLOW_NS))??;
            Some((id, index))
        });
        let unasked: Vec<_> = unasked.take(ASKED).collect();
        for (id, index) in unasked {
            self.ask_again(shared, now, id, 1 << index, sink);
        }
    }

    fn add_member(&mut self, now: u64, first: SessionId, id: SessionId) {
        let member = self.sessions.get_mut(id).expect("just opened");
        member.first = first;
        let session = self.sessions.get_mut(first).expect("the caller has it");
        session.has_members = true;
        let group = self.groups.by_first.entry(first.to_wire());
        let group = group.or_insert_with(|| {
            self.groups.grown.push_back((now + IDLE_NS, first));
            Group::default()
        });
        group.connecting += 1;
        group.is_denied = false;
        group.members.push(Member { id, seen: 0 });
    }

    /// Closes members that had no request since the last look.
    fn close_idle_members<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        first: SessionId,
        sink: &mut S,
    ) {
        let Some(group) = self.groups.get_mut(first) else {
            return;
        };
        let mut idle = Vec::new();
        for member in &mut group.members {
            let session = self.sessions.get(member.id).expect("a member leaves");
            let seen = std::mem::replace(&mut member.seen, session.next_number);
            if session.state == State::Open && session.busy() == 0 && seen == session.next_number {
                idle.push(member.id);
            }
        }
        self.keep_spare_slots(first, &mut idle);
        let Some(group) = self.groups.get_mut(first) else {
            return;
        };
        // A group that was refused keeps its pause.
        let is_over = idle.len() == group.members.len() && now >= group.grow_at;
        for id in idle {
            self.end(shared, now, id, SessionError::Closed, sink);
        }
        if is_over {
            self.groups.by_first.remove(&first.to_wire());
            let session = self.sessions.get_mut(first).expect("it has a group");
            session.has_members = false;
        } else {
            self.groups.grown.push_back((now + IDLE_NS, first));
        }
    }

    /// Leaves to be closed as many members as leave a quarter of the others' slots free.
    fn keep_spare_slots(&self, first: SessionId, idle: &mut Vec<SessionId>) {
        let (mut busy, mut slots) = (0, 0);
        for session in self.group(first).filter_map(|id| self.sessions.get(id)) {
            busy += session.busy().count_ones() as usize;
            slots += usize::from(session.slot_count);
        }
        idle.retain(|id| {
            let member = self.sessions.get(*id);
            let left = slots - member.map_or(0, |member| usize::from(member.slot_count));
            let closes = busy * 4 <= left * 3;
            if closes {
                slots = left;
            }
            closes
        });
    }
}
