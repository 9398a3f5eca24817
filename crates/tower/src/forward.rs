//! How a call gets from its layers to what stands behind them.
//!
//! ```text
//!  the interceptor's future ── poll ──▶ the layers' service ── poll ──▶ ForwardedCall
//!      │        ▲                       (in this task or in another)      │   ▲
//!      │        └────── Forwarding: calls that were forwarded ◀───────────┘   │
//!      └─ poll ─▶ next.run(call) ──▶ Forwarding: its outcome ─────────────────┘
//! ```
//!
//! Services and what they are given live on their own, and may go to another task. What stands behind an
//! interceptor is borrowed for one call. So the interceptor's own future runs it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use starling::{InterceptedCall, InterceptedResponse, Next, Status};

type Outcome = Result<InterceptedResponse, Status>;

/// The calls that the layers have forwarded for one call of a user.
#[derive(Default)]
pub(crate) struct Forwarding(Mutex<State>);

#[derive(Default)]
struct State {
    /// Of the interceptor's future.
    waker: Option<Waker>,
    calls: Vec<Entry>,
    last_number: u64,
    /// The interceptor's future has ended.
    is_over: bool,
}

struct Entry {
    number: u64,
    stage: Stage,
    /// Of the [`ForwardedCall`].
    waker: Waker,
}

enum Stage {
    New(InterceptedCall),
    Running,
    Ended(Outcome),
}

impl Forwarding {
    /// The interceptor's future is polled.
    pub(crate) fn register(&self, waker: &Waker) {
        match &mut self.0.lock().waker {
            Some(kept) => kept.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Ends all that was forwarded when it is dropped, with the interceptor's future.
    pub(crate) fn end_when_dropped(self: &Arc<Self>) -> EndWhenDropped {
        EndWhenDropped(Arc::clone(self))
    }
}

impl fmt::Debug for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding").finish_non_exhaustive()
    }
}

/// See [`Forwarding::end_when_dropped`].
pub(crate) struct EndWhenDropped(Arc<Forwarding>);

impl Drop for EndWhenDropped {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_over = true;
        let wakers: Vec<_> = state.calls.drain(..).map(|entry| entry.waker).collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A call that is forwarded, as the layers see it: the future of [`InnerService`](crate::InnerService). The call
/// begins when this is polled, and is cancelled when it is dropped.
#[derive(Debug)]
pub struct ForwardedCall {
    forwarding: Arc<Forwarding>,
    stage: Waiting,
}

#[derive(Debug)]
enum Waiting {
    // Boxed because a waiting future is kept, and the call is large.
    Unpolled(Option<Box<InterceptedCall>>),
    For(u64),
}

impl ForwardedCall {
    pub(crate) fn new(forwarding: Arc<Forwarding>, call: InterceptedCall) -> Self {
        Self {
            forwarding,
            stage: Waiting::Unpolled(Some(Box::new(call))),
        }
    }
}

impl Future for ForwardedCall {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Self { forwarding, stage } = &mut *self;
        let mut state = forwarding.0.lock();
        if state.is_over {
            let text = "the call is over; its layers went on without it";
            return Poll::Ready(Err(Status::cancelled(text).with_not_run()));
        }
        match stage {
            Waiting::Unpolled(call) => {
                let Some(call) = call.take() else {
                    panic!("a call was polled after it had ended");
                };
                state.last_number += 1;
                let number = state.last_number;
                state.calls.push(Entry {
                    number,
                    stage: Stage::New(*call),
                    waker: cx.waker().clone(),
                });
                *stage = Waiting::For(number);
                wake(state.waker.as_ref(), cx);
                Poll::Pending
            }
            Waiting::For(number) => {
                let number = *number;
                let calls = &mut state.calls;
                let index = calls.iter().position(|entry| entry.number == number);
                let Some(index) = index else {
                    panic!("a call was polled after it had ended");
                };
                calls[index].waker.clone_from(cx.waker());
                if !matches!(calls[index].stage, Stage::Ended(_)) {
                    return Poll::Pending;
                }
                match calls.swap_remove(index).stage {
                    Stage::Ended(outcome) => Poll::Ready(outcome),
                    Stage::New(_) | Stage::Running => unreachable!("it has ended"),
                }
            }
        }
    }
}

impl Drop for ForwardedCall {
    fn drop(&mut self) {
        let Waiting::For(number) = self.stage else {
            return;
        };
        let mut state = self.forwarding.0.lock();
        let index = state.calls.iter().position(|entry| entry.number == number);
        // Dropped without the lock: so is the call that it may still have.
        let entry = index.map(|index| state.calls.swap_remove(index));
        let waker = entry.as_ref().and_then(|_| state.waker.clone());
        drop(state);
        drop(entry);
        // The interceptor's future cancels the call.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Wakes another task than the one that runs now: that one looks by itself.
fn wake(waker: Option<&Waker>, cx: &Context<'_>) {
    if let Some(waker) = waker
        && !waker.will_wake(cx.waker())
    {
        waker.wake_by_ref();
    }
}

type Run<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// The calls that run behind the layers, in the interceptor's future.
#[derive(Default)]
pub(crate) struct Runs<'a>(Vec<(u64, Run<'a>)>);

impl<'a> Runs<'a> {
    /// Begins the calls that were forwarded, cancels those that the layers have dropped, and has the others go
    /// on. True if the layers have something new to see.
    pub(crate) fn poll(
        &mut self,
        forwarding: &Forwarding,
        next: Next<'a>,
        cx: &mut Context<'_>,
    ) -> bool {
        let mut begun = Vec::new();
        let mut state = forwarding.0.lock();
        for entry in &mut state.calls {
            if let Stage::New(_) = &entry.stage
                && let Stage::New(call) = std::mem::replace(&mut entry.stage, Stage::Running)
            {
                begun.push((entry.number, call));
            }
        }
        let is_dropped = |(number, _): &mut (u64, Run<'a>)| {
            let mut entries = state.calls.iter();
            !entries.any(|entry| entry.number == *number)
        };
        let cancelled: Vec<_> = self.0.extract_if(.., is_dropped).collect();
        drop(state);
        // Without the lock: destructors may call back.
        drop(cancelled);
        for (number, call) in begun {
            self.0.push((number, Box::pin(next.run(call))));
        }
        let mut any = false;
        self.0
            .retain_mut(|(number, run)| match run.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(outcome) => {
                    any = true;
                    let mut state = forwarding.0.lock();
                    let mut entries = state.calls.iter_mut();
                    if let Some(entry) = entries.find(|entry| entry.number == *number) {
                        entry.stage = Stage::Ended(outcome);
                        let waker = entry.waker.clone();
                        drop(state);
                        wake(Some(&waker), cx);
                    }
                    false
                }
            });
        any
    }
}
