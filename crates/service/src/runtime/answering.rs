//! The ends of calls: what their callers hear of them.

use starling_endpoint::{Code, OwnedMessage, Status, StreamFlags, unsent_message};

use super::Runtime;
use super::calls::Forwarded;
use super::links::LinkId;
use super::reading::is_own;
use crate::forwarded;
use crate::link::Ended;

impl Runtime {
    /// A call is over that was made on a link.
    pub(super) fn finish(&mut self, on: LinkId, ended: Ended) {
        if is_own(&ended) {
            return self.handle_own(ended);
        }
        let Some(forwarded) = self.calls.remove(on, ended.tag) else {
            return;
        };
        let (route, from, asks) = (forwarded.route, forwarded.from, forwarded.asks());
        self.leave_previous(on, route);
        let answered = self.hand_back(on, forwarded, ended);
        if asks {
            self.ask_too(route, from, answered);
        }
    }

    /// Its caller hears of it. Returns the question to the server that was answered, if it was one.
    #[inline]
    fn hand_back(
        &mut self,
        on: LinkId,
        mut forwarded: Forwarded,
        ended: Ended,
    ) -> Option<Box<[u8]>> {
        // A call is large: it moves only if it may be made again.
        let result = match ended.result {
            Err(status) if forwarded.passed.attempts.is_some() => {
                let (failed, status) = self.fail_attempt(forwarded, status)?;
                forwarded = failed;
                Err(status)
            }
            result => result,
        };
        if forwarded.stream.is_some() || forwarded.asks() {
            self.note_end(on, &forwarded, result.as_ref().ok());
        }
        let Forwarded {
            from,
            mut reply,
            stream_key,
            method,
            mut passed,
            route,
            question,
            charge,
            ..
        } = forwarded;
        let Some(entry) = self.links.awake(from) else {
            self.end_of_policies(&passed, method, Code::Cancelled);
            return None;
        };
        let result = match (result, reply.cancellation().status()) {
            (Ok(response), _) => {
                passed.set_response(response.body().len());
                if let Some(charge) = &charge {
                    charge.count_response(response.body().len() + response.fields().len());
                }
                forwarded::fill(&mut reply, response, stream_key);
                Ok(())
            }
            // The call was cancelled because its caller no longer waits.
            (Err(_), Some(why)) => Err(why),
            (Err(mut status), None) => {
                // Another route may have its number by now.
                let route = self.routes.get(route);
                if let Some(route) = route.filter(|route| route.from() == from) {
                    status = route.named_publicly(status);
                }
                if status.code() == Code::Unavailable && unsent_message(&mut status).is_some() {
                    // No server has it: the caller may make it elsewhere.
                    entry.link.refuse_draining(reply);
                    self.end_of_policies(&passed, method, Code::Cancelled);
                    return None;
                }
                if !status.may_have_run() {
                    reply.set_refused();
                }
                Err(status)
            }
        };
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        entry.link.answer(reply, result);
        self.end_of_policies(&passed, method, code);
        question.filter(|_| code == Code::Ok)
    }

    /// Takes in what the end of a call says of its stream, or of the server's methods.
    fn note_end(&mut self, on: LinkId, call: &Forwarded, response: Option<&OwnedMessage>) {
        // Another route may have its number by now.
        let route = self.routes.get_mut(call.route);
        let Some(route) = route.filter(|route| route.from() == call.from) else {
            return;
        };
        if let (Some(question), Some(response)) = (&call.question, response) {
            (route.bindings).insert(question.clone(), response.body(), &self.shared.answers);
        }
        let (Some(id), Some(streams)) = (call.stream, route.streams_on(on)) else {
            return;
        };
        let (key, position) = ((call.method, id), response.map(OwnedMessage::stream));
        if position.flatten().is_some() {
            streams.insert(key);
        }
        let is_last =
            |flags: StreamFlags| flags.has(StreamFlags::END) || flags.has(StreamFlags::GONE);
        if position.is_none_or(|it| it.is_some_and(|position| is_last(position.flags))) {
            streams.end(key);
        }
    }

    /// Ends a call that did not run.
    pub(super) fn fail(&mut self, on: LinkId, tag: u64, status: Status) {
        let result = Err(status.with_not_run());
        self.finish(on, Ended { tag, result });
    }

    /// The server of a call that was not made shuts down: the caller may make it elsewhere.
    pub(super) fn refuse_draining(&mut self, on: LinkId, tag: u64) {
        let Some(call) = self.calls.remove(on, tag) else {
            return;
        };
        let (route, from, asks) = (call.route, call.from, call.asks());
        self.leave_previous(on, route);
        self.make_elsewhere(from, call.reply, &call.passed, call.method);
        if asks {
            self.ask_too(route, from, None);
        }
    }

    /// Cancels the calls whose callers no longer wait.
    pub(super) fn cancel_given_up(&mut self) {
        for (link, call) in self.calls.take_cancelled() {
            if let Some(entry) = self.links.awake(link) {
                entry.link.cancel(call);
            }
        }
    }
}
