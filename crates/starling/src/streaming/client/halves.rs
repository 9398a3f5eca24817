//! What the two halves of a client's stream do with its end.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use parking_lot::MutexGuard;
use starling_endpoint::{Encoding, Metadata, Status};
use starling_io::forks;
use starling_message::Bytes;
use starling_message::protobuf::DecodeLimits;
use starling_stream::{Bundle, ClientEvent, Items};

use super::super::account::HeldBytes;
use super::super::{StreamEnd, only_servers_send};
use super::{ClientEnd, State, belongs_to_parent};
use crate::coding::unpacked_more;
use crate::plane::Waiting;

impl StreamEnd for ClientEnd {
    fn poll_ready(&self, cx: &mut Context<'_>, waiting: &mut Waiting) -> Poll<()> {
        if self.process != forks() {
            return Poll::Ready(());
        }
        let is_ready = |state: &State| state.stream.may_push();
        if is_ready(&self.state.lock()) {
            return Poll::Ready(());
        }
        self.transmit();
        {
            let mut state = self.state.lock();
            if is_ready(&state) {
                return Poll::Ready(());
            }
            state.writer = Some(cx.waker().clone());
        }
        self.route.drive(waiting);
        match is_ready(&self.state.lock()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn poll_push(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
        head: &[u8],
        tail: Option<&Bytes>,
    ) -> Poll<Result<(), Box<Status>>> {
        if self.process != forks() {
            return Poll::Ready(Err(Box::new(belongs_to_parent())));
        }
        let mut state = self.state.lock();
        if !state.stream.may_push() {
            drop(state);
            if self.poll_ready(cx, waiting).is_pending() {
                return Poll::Pending;
            }
            state = self.state.lock();
        }
        let pushed = state.stream.push(head, tail);
        self.send_soon(state);
        Poll::Ready(pushed.map_err(Box::new))
    }

    fn push(&self, head: &[u8], tail: Option<&Bytes>, is_last: bool) -> Result<(), Status> {
        if self.process != forks() {
            return Err(belongs_to_parent());
        }
        let packed = (self.uncommon.coding()).is_some_and(|coding| coding.algorithm().is_some());
        let unpacked = match packed {
            true => unpacked_more(head, tail.map_or(0, |tail| tail.len())),
            false => 0,
        };
        let mut state = self.state.lock();
        state.stream.push_packed(head, tail, unpacked)?;
        if is_last {
            state.stream.close();
        }
        self.send_soon(state);
        Ok(())
    }

    fn new_bundle(&self, bytes: usize) -> Option<Bundle> {
        let is_own = self.process == forks();
        is_own.then(|| self.state.lock().stream.new_bundle(bytes))
    }

    fn push_bundle(&self, bundle: Bundle) -> Result<(), Status> {
        if self.process != forks() {
            return Err(belongs_to_parent());
        }
        let mut state = self.state.lock();
        state.stream.push_bundle(bundle)?;
        self.send_soon(state);
        Ok(())
    }

    fn encoding(&self) -> Encoding {
        // Where the server has another version, the call is converted when it leaves.
        Encoding::Native
    }

    fn is_coded(&self) -> bool {
        self.process == forks() && self.is_coded.load(Ordering::Relaxed)
    }

    fn close(&self) {
        if self.process != forks() {
            return;
        }
        self.state.lock().stream.close();
        if self.transmit() {
            self.route.flush();
        }
    }

    fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.process != forks() {
            return Poll::Ready(belongs_to_parent());
        }
        let mut state = self.state.lock();
        if let Some(status) = state.stream.closed() {
            return Poll::Ready(status);
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_failed(&self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.process != forks() {
            return Poll::Ready(belongs_to_parent());
        }
        let mut state = self.state.lock();
        if let Some(status) = state.stream.broken() {
            return Poll::Ready(status.clone());
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn fail(&self, status: Status) {
        self.cancel(status);
    }

    fn abort(&self) {
        self.cancel(Status::cancelled("the thread that sent items has panicked"));
    }

    fn poll_items(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Option<(Items, Encoding)>, Status>> {
        if self.process != forks() {
            return Poll::Ready(Err(belongs_to_parent()));
        }
        let mut next = self.next_event();
        if next.is_none() {
            self.wait(cx, waiting);
            next = self.next_event();
        }
        match next {
            None => Poll::Pending,
            Some((ClientEvent::Items(items), encoding)) => {
                // Perhaps the server has to know that there is room again.
                self.send_soon(self.state.lock());
                Poll::Ready(Ok(Some((items, encoding))))
            }
            Some((ClientEvent::End(result), _)) => Poll::Ready(result.map(|()| None)),
        }
    }

    fn hold(&self, bytes: usize) -> Result<HeldBytes, Status> {
        let account = self.route.account();
        let held = account.hold(None, bytes);
        held.ok_or_else(|| account.no_room(bytes, "ChannelBuilder"))
    }

    fn decode_limits(&self) -> DecodeLimits {
        self.route.decode_limits()
    }

    fn reject(&self, why: &str) -> Status {
        let status = Status::internal(format!("the server broke the stream: {why}"));
        self.cancel(status.clone());
        status
    }

    fn stop_reading(&self) {
        self.cancel(Status::cancelled("the client no longer reads the stream"));
    }

    fn headers(&self) -> Option<Metadata> {
        if self.process != forks() {
            return None;
        }
        self.state.lock().stream.headers()?.ok()
    }

    fn poll_headers(
        &self,
        cx: &mut Context<'_>,
        waiting: &mut Waiting,
    ) -> Poll<Result<Metadata, Status>> {
        if self.process != forks() {
            return Poll::Ready(Err(belongs_to_parent()));
        }
        let headers = || self.state.lock().stream.headers();
        let mut found = headers();
        if found.is_none() {
            self.wait(cx, waiting);
            found = headers();
        }
        found.map_or(Poll::Pending, Poll::Ready)
    }

    fn trailers(&self) -> Option<Metadata> {
        if self.process != forks() {
            return None;
        }
        self.state.lock().stream.trailers().cloned()
    }

    fn send_headers(&self, _: Metadata) -> Result<(), Status> {
        Err(only_servers_send())
    }

    fn set_trailers(&self, _: Metadata) -> Result<(), Status> {
        Err(only_servers_send())
    }
}

impl ClientEnd {
    fn next_event(&self) -> Option<(ClientEvent, Encoding)> {
        let mut state = self.state.lock();
        let event = state.stream.poll()?;
        let encoding = match self.is_protobuf.load(Ordering::Relaxed) {
            true => Encoding::Protobuf,
            false => Encoding::Native,
        };
        Some((event, encoding))
    }

    /// The reader waits: it has to look again.
    fn wait(&self, cx: &Context<'_>, waiting: &mut Waiting) {
        self.transmit();
        self.state.lock().reader = Some(cx.waker().clone());
        self.route.drive(waiting);
    }

    /// Has what may leave leave, though nobody waits. Most items only wait for others to leave with them.
    #[inline]
    fn send_soon(&self, state: MutexGuard<'_, State>) {
        let leaves = state.stream.has_request();
        drop(state);
        if leaves && self.transmit() {
            self.route.flush();
        }
    }
}
