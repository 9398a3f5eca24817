//! The session that is to take the place of a route's: whether it opens, and whether its server says what the
//! application was told.

use std::time::Duration;

use starling_endpoint::{CallOptions, Encoding, SessionState, Status};
use starling_io::Clock;

use super::{LinkId, Runtime, Successor};
use crate::forwarded::ForwardedRequest;
use crate::link::Ended;
use crate::runtime::reading::OWN_CALL;
use crate::runtime::routes::{RouteId, RouteState};

/// Set in the tags of the questions of trials.
const OF_TRIAL: u64 = 1 << 62;
/// How long a server may take for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Sessions of before that one route may have.
const MAX_PREVIOUS: usize = 8;
const TOO_MANY: &str = "it has too many methods to ask the server of them once more";

impl Runtime {
    /// Begins to open a session on a link, which is to take the place of a route's.
    pub(super) fn begin_trial(
        &mut self,
        replacing: u64,
        id: RouteId,
        link: LinkId,
        until_ns: u64,
    ) -> Result<(), Status> {
        let gone = || Status::unavailable("the service no longer reaches the server");
        let route = self.routes.get(id).ok_or_else(gone)?;
        let refused = |text: &'static str| Err(Status::failed_precondition(text));
        if route.successor.is_some() {
            return refused(super::UNDER_WAY);
        }
        if until_ns <= self.clock.now_ns() {
            return refused("the upgrade has taken too long already: upgrade again");
        }
        if route.previous.len() >= MAX_PREVIOUS {
            return refused(
                "calls and streams still run in 8 sessions that earlier upgrades have replaced: upgrade when they \
                 are over",
            );
        }
        if route.streams.has_forgotten() {
            return refused("it has too many streams to tell which of them run");
        }
        if route.bindings.questions().is_none() {
            return refused(TOO_MANY);
        }
        let (callers, address) = (route.callers, route.address.clone());
        let local = route.local.clone();
        let session = self.begin_session(link, &address)?;
        let may_reach = match &local {
            Some(local) => {
                let listens = self.who_listens(link, session);
                listens.is_some() && listens == local.identity.process
            }
            None => self.may_reach(callers, link, session),
        };
        if !may_reach {
            self.close(link, session);
            return refused("another application listens there by now");
        }
        let trial = self.upgrading.number();
        let route = self.routes.get_mut(id).ok_or_else(gone)?;
        route.successor = Some(Successor {
            link,
            session,
            replacing,
            trial,
            is_open: false,
            asked: 0,
            until_ns,
        });
        if let Some(entry) = self.links.get_mut(link) {
            entry.routes += 1;
            entry.connecting += 1;
        }
        Ok(())
    }

    /// Takes in how the session is.
    pub(in crate::runtime) fn check_successor(&mut self, id: RouteId) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let Some(successor) = &mut route.successor else {
            return;
        };
        let Some(entry) = self.links.get_mut(successor.link) else {
            return;
        };
        match entry.link.state(successor.session) {
            Some(SessionState::Connecting) => {}
            Some(SessionState::Connected) if successor.is_open => {}
            Some(SessionState::Connected) => {
                successor.is_open = true;
                entry.connecting -= 1;
                match route.bindings.questions() {
                    Some(questions) => {
                        for question in questions {
                            self.ask_again(id, question);
                        }
                        self.decide(id);
                    }
                    None => self.fail_trial(id, TOO_MANY),
                }
            }
            Some(SessionState::Draining) => self.fail_trial(id, "its server shuts down"),
            Some(SessionState::Ended(error)) => {
                let text = format!("connect {}: {error}", route.address);
                self.fail_trial(id, &text);
            }
            None => self.fail_trial(id, "the new session has ended"),
        }
    }

    /// A question of an application to its server is over, with an answer or without. If another session is tried
    /// meanwhile, the answer has to be the same there.
    pub(in crate::runtime) fn ask_too(
        &mut self,
        id: RouteId,
        from: LinkId,
        answered: Option<Box<[u8]>>,
    ) {
        // Another route may have its number by now.
        let route = self.routes.get(id).filter(|route| route.from() == from);
        let successor = route.and_then(|route| route.successor.as_ref());
        if successor.is_some_and(|it| it.is_open) {
            if let Some(question) = answered {
                self.ask_again(id, question);
            }
            self.decide(id);
        }
    }

    fn ask_again(&mut self, id: RouteId, question: Box<[u8]>) {
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let Some(successor) = &mut route.successor else {
            return;
        };
        let options = CallOptions {
            encoding: Encoding::Protobuf,
            timeout: Some(ANSWER_TIME),
            ..CallOptions::default()
        };
        let request = ForwardedRequest::new(self.bind, options, question.to_vec());
        let tag = OWN_CALL | OF_TRIAL | self.upgrading.number();
        let asked = self.links.awake(successor.link).map(|entry| {
            let session = successor.session;
            entry.link.call(session, request, tag)
        });
        match asked {
            Some(Ok(_)) => {
                successor.asked += 1;
                let question = (id, successor.trial, question);
                self.upgrading.questions.insert(tag, question);
            }
            Some(Err(error)) => self.fail_trial(id, &error.to_string()),
            None => self.fail_trial(id, "the new device has failed"),
        }
    }

    /// Whether a call of the service's own is the question of a trial: then it is over.
    pub(in crate::runtime) fn is_of_trial(ended: &Ended) -> bool {
        ended.tag & OF_TRIAL != 0
    }

    /// Takes in what the server has said.
    pub(in crate::runtime) fn handle_answer(&mut self, ended: Ended) {
        let Some((id, trial, question)) = self.upgrading.questions.remove(&ended.tag) else {
            return;
        };
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let Some(successor) = route.successor.as_mut().filter(|it| it.trial == trial) else {
            return;
        };
        successor.asked -= 1;
        match ended.result {
            Ok(answer) => {
                let by = &self.shared.answers;
                match route.bindings.is_same(&question, answer.body(), by) {
                    true => self.decide(id),
                    false => self.fail_trial(
                        id,
                        "the server says something else of its methods in a new session, so it is another one",
                    ),
                }
            }
            Err(status) => {
                let text = format!("the server does not say what methods it has: {status}");
                self.fail_trial(id, &text);
            }
        }
    }

    /// The session takes the place of the route's, if all is known and the same.
    fn decide(&mut self, id: RouteId) {
        let Some(route) = self.routes.get(id) else {
            return;
        };
        let Some(successor) = &route.successor else {
            return;
        };
        let is_asking = |link| (self.calls).has(link, |call| call.route == id && call.asks());
        if !successor.is_open || successor.asked > 0 || is_asking(route.link) {
            return;
        }
        let (link, session, replacing) = (successor.link, successor.session, successor.replacing);
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        let outstanding = self.calls.count(route.link, |call| call.route == id);
        route.successor = None;
        route.replace_session(link, session, outstanding);
        self.asking.forget(&std::mem::take(&mut route.known));
        if !route.reading.is_empty() {
            self.asking.look_at(id);
        }
        self.keep_previous(id);
        if let Some(replacing) = self.upgrading.get_mut(replacing) {
            replacing.waiting -= 1;
            replacing.moved += 1;
        }
        self.release_waiting(id);
        self.go_on_replacing(replacing);
    }

    /// The route stays as it is.
    pub(in crate::runtime) fn fail_trial(&mut self, id: RouteId, why: &str) {
        self.end_trial(id, why);
        self.release_waiting(id);
    }

    /// The same. What waits for the end of the trial goes on waiting.
    pub(in crate::runtime) fn end_trial(&mut self, id: RouteId, why: &str) {
        let route = self.routes.get_mut(id);
        let Some(successor) = route.and_then(|route| route.successor.take()) else {
            return;
        };
        if let Some(entry) = self.links.awake(successor.link) {
            entry.connecting -= usize::from(!successor.is_open);
            entry.link.close(successor.session);
        }
        self.leave_link(successor.link);
        let trial = successor.trial;
        (self.upgrading.questions).retain(|_, (_, of, _)| *of != trial);
        if let Some(replacing) = self.upgrading.get_mut(successor.replacing) {
            replacing.waiting -= 1;
        }
        self.note_stayed(successor.replacing, id, why);
        self.go_on_replacing(successor.replacing);
    }

    /// The trial of a route is over: its questions to its server go on.
    fn release_waiting(&mut self, id: RouteId) {
        let route = self.routes.get_mut(id);
        let is_open = |route: &&mut super::Route| matches!(route.state, RouteState::Open(_));
        let Some(route) = route.filter(is_open) else {
            return;
        };
        for arrived in std::mem::take(&mut route.waiting) {
            self.admit(id, arrived);
        }
    }

    /// Ends the trials that take too long.
    pub(super) fn end_late_trials(&mut self, now_ns: u64) {
        let is_late = |successor: &Successor| successor.until_ns <= now_ns;
        while let Some(id) = self.routes.with_successor(is_late) {
            self.fail_trial(id, "the new session was not ready in time");
        }
    }

    /// A device has failed by which sessions were to be opened, or that was to be replaced.
    pub(in crate::runtime) fn fail_trials_on(&mut self, link: LinkId, failure: &str) {
        let replacing = self
            .upgrading
            .operations
            .iter()
            .flat_map(|it| &it.replacing);
        let of_link = replacing.filter(|replacing| replacing.old == link);
        // What replaces it knows it by a number that is another's soon.
        let numbers: Vec<u64> = of_link.map(|replacing| replacing.number).collect();
        let is_of_it = |it: &Successor| it.link == link || numbers.contains(&it.replacing);
        while let Some(id) = self.routes.with_successor(is_of_it) {
            self.fail_trial(id, failure);
        }
    }
}
