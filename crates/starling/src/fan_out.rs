//! One call to several servers at once.
//!
//! ```text
//!            ┌─▶ a ─▶ response   ┐
//!  call ─────┼─▶ b ─▶ status     ├─▶ Answers: what each one said, whether it is enough
//!            └─▶ c    cancelled  ┘
//! ```
//!
//! It works with the calls of any client, of channels and local channels, and with any other future that ends as a
//! call does. brpc has it as its parallel and selective channels.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use atomic_waker::AtomicWaker;
use starling_endpoint::Status;

use crate::channel::Channel;
use crate::wait::block_on;

/// Clients of several servers, for calls to all or some of them.
///
/// ```no_run
/// # use starling_test_protos::hello::*;
/// # async fn ask(channel: starling::Channel) -> Result<(), starling::Status> {
/// use starling::FanOut;
///
/// let servers = FanOut::over(&channel, HelloClient::new);
/// let request = HelloRequest::new().with_name("all");
///
/// // All of them. What each one said:
/// let answers = servers.call(|hello| hello.greet(&request)).await;
/// for (server, status) in answers.failed() {
///     println!("{server}: {status}");
/// }
///
/// // The first two that succeed; the others are cancelled.
/// let two = servers.call(|hello| hello.greet(&request)).enough(2).await.successes()?;
///
/// // One, and another one only if it fails.
/// let one = servers.call(|hello| hello.greet(&request)).at_once(1).enough(1).await.successes()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FanOut<C> {
    targets: Vec<(String, C)>,
}

impl<C> FanOut<C> {
    /// Clients with names, such as the addresses of their servers.
    pub fn new<N: Into<String>>(clients: impl IntoIterator<Item = (N, C)>) -> Self {
        let named = clients
            .into_iter()
            .map(|(name, client)| (name.into(), client));
        Self {
            targets: named.collect(),
        }
    }

    /// A client of each server behind a channel, as they are now ([`Channel::each_backend`]). A channel that is new or
    /// idle has none yet: `channel.ready().await` first.
    pub fn over(channel: &Channel, client: impl Fn(Channel) -> C) -> Self {
        let each = channel.each_backend().into_iter();
        Self::new(each.map(|channel| (channel.address().to_owned(), client(channel))))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// A call by each client, when the result is awaited. By default all calls are made at once, and all are
    /// waited for.
    pub fn call<'a, M, F, T>(&'a self, make: M) -> FannedCall<'a, C, M>
    where
        M: FnMut(&'a C) -> F,
        F: Future<Output = Result<T, Status>>,
    {
        FannedCall {
            targets: &self.targets,
            make,
            at_once: usize::MAX,
            enough: None,
            tolerated: usize::MAX,
        }
    }
}

/// A call by several clients, before it is made: `.await` it, or [`FannedCall::wait`] for it.
#[must_use = "it is made when it is awaited"]
pub struct FannedCall<'a, C, M> {
    targets: &'a [(String, C)],
    make: M,
    at_once: usize,
    enough: Option<usize>,
    tolerated: usize,
}

impl<'a, C, M, F, T> FannedCall<'a, C, M>
where
    M: FnMut(&'a C) -> F,
    F: Future<Output = Result<T, Status>>,
{
    /// Is over when so many calls have succeeded; the others are cancelled or not made. At least 1.
    ///
    /// If there are not as many clients, no call is made, and [`Answers::successes`] is INVALID_ARGUMENT.
    pub fn enough(mut self, successes: usize) -> Self {
        self.enough = Some(successes.max(1));
        self
    }

    /// Makes so many calls at once, at least 1; the next one when one of them fails, or succeeds and is not
    /// enough.
    pub fn at_once(mut self, calls: usize) -> Self {
        self.at_once = calls.max(1);
        self
    }

    /// Is over when more calls than these have failed; the others are cancelled or not made. By default it goes
    /// on.
    pub fn tolerate(mut self, failures: usize) -> Self {
        self.tolerated = failures;
        self
    }

    /// Makes the calls and waits for them, in a plain thread. Not for use inside an executor.
    pub fn wait(self) -> Answers<T> {
        block_on(self.into_future())
    }
}

impl<'a, C, M, F, T> IntoFuture for FannedCall<'a, C, M>
where
    M: FnMut(&'a C) -> F,
    F: Future<Output = Result<T, Status>>,
{
    type Output = Answers<T>;
    type IntoFuture = Fanned<'a, C, M, F, T>;

    fn into_future(self) -> Self::IntoFuture {
        // Nobody is never enough: a channel may have no backends now.
        let enough = self.enough.unwrap_or(self.targets.len().max(1));
        let names = self.targets.iter().map(|(name, _)| name.clone());
        let answers = Answers {
            answers: names.map(|name| (name, None)).collect(),
            called: 0,
            enough,
        };
        Fanned {
            call: self,
            open: Vec::new(),
            answers,
            waker: Arc::default(),
        }
    }
}

impl<C, M> fmt::Debug for FannedCall<'_, C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FannedCall")
            .field("targets", &self.targets.len())
            .finish_non_exhaustive()
    }
}

/// A call that is not over.
struct Open<F> {
    target: usize,
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
}

/// A call by several clients. Dropping it cancels what is not over.
pub struct Fanned<'a, C, M, F, T> {
    call: FannedCall<'a, C, M>,
    open: Vec<Open<F>>,
    answers: Answers<T>,
    waker: Arc<AtomicWaker>,
}

// The calls themselves are pinned in their boxes.
impl<C, M, F, T> Unpin for Fanned<'_, C, M, F, T> {}

impl<'a, C, M, F, T> Fanned<'a, C, M, F, T>
where
    M: FnMut(&'a C) -> F,
    F: Future<Output = Result<T, Status>>,
{
    fn is_over(&self) -> bool {
        let failures = self.answers.failed().count();
        self.answers.is_enough()
            || !self.answers.may_be_enough()
            || failures > self.call.tolerated
            || (self.open.is_empty() && self.answers.called == self.call.targets.len())
    }

    fn make(&mut self) {
        let targets = self.call.targets;
        while self.open.len() < self.call.at_once
            && let Some((_, client)) = targets.get(self.answers.called)
        {
            let woken = Arc::new(Woken {
                is_woken: AtomicBool::new(true),
                waker: Arc::clone(&self.waker),
            });
            self.open.push(Open {
                target: self.answers.called,
                future: Box::pin((self.call.make)(client)),
                woken,
            });
            self.answers.called += 1;
        }
    }
}

impl<'a, C, M, F, T> Future for Fanned<'a, C, M, F, T>
where
    M: FnMut(&'a C) -> F,
    F: Future<Output = Result<T, Status>>,
{
    type Output = Answers<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answers<T>> {
        let this = &mut *self;
        this.waker.register(cx.waker());
        while !this.is_over() {
            this.make();
            let mut at = 0;
            let mut has_ended = false;
            while let Some(open) = this.open.get_mut(at) {
                let result = match open.woken.is_woken.swap(false, Ordering::AcqRel) {
                    false => Poll::Pending,
                    true => {
                        let waker = Waker::from(Arc::clone(&open.woken));
                        open.future.as_mut().poll(&mut Context::from_waker(&waker))
                    }
                };
                match result {
                    Poll::Pending => at += 1,
                    Poll::Ready(result) => {
                        let target = this.open.swap_remove(at).target;
                        this.answers.answers[target].1 = Some(result);
                        has_ended = true;
                        // What ends together with the last one that was wanted is one too many.
                        if this.is_over() {
                            break;
                        }
                    }
                }
            }
            if !has_ended {
                return Poll::Pending;
            }
        }
        // The others are cancelled now.
        this.open.clear();
        let none = Answers {
            answers: Vec::new(),
            called: 0,
            enough: 0,
        };
        Poll::Ready(std::mem::replace(&mut this.answers, none))
    }
}

impl<C, M, F, T> fmt::Debug for Fanned<'_, C, M, F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fanned(..)")
    }
}

/// Has one call looked at, and not all of them.
struct Woken {
    is_woken: AtomicBool,
    waker: Arc<AtomicWaker>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// What each server answered, in the order of the clients.
#[derive(Clone, Debug)]
pub struct Answers<T> {
    /// None: it was not called, or its call was cancelled.
    answers: Vec<(String, Option<Result<T, Status>>)>,
    /// Those before this one were called.
    called: usize,
    enough: usize,
}

impl<T> Answers<T> {
    /// Whether as many calls succeeded as were wanted: all, unless [`FannedCall::enough`] said otherwise.
    pub fn is_enough(&self) -> bool {
        self.succeeded().count() >= self.enough
    }

    /// Whether there are as many servers as are wanted to succeed.
    fn may_be_enough(&self) -> bool {
        self.enough <= self.answers.len()
    }

    /// The servers whose calls succeeded, with their responses.
    pub fn succeeded(&self) -> impl Iterator<Item = (&str, &T)> {
        let answers = self.answers.iter();
        answers.filter_map(|(name, result)| match result {
            Some(Ok(response)) => Some((name.as_str(), response)),
            _ => None,
        })
    }

    /// The servers whose calls failed.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &Status)> {
        let answers = self.answers.iter();
        answers.filter_map(|(name, result)| match result {
            Some(Err(status)) => Some((name.as_str(), status)),
            _ => None,
        })
    }

    /// All servers with what they answered; nothing of those that were not called or whose call was cancelled.
    pub fn into_all(self) -> Vec<(String, Option<Result<T, Status>>)> {
        self.answers
    }

    /// The responses, if they are enough.
    ///
    /// # Errors
    /// If they are not: how many calls failed, and why. The code is theirs if all failed with one code, else
    /// UNKNOWN. If no call was made: UNAVAILABLE if there is no server, INVALID_ARGUMENT if there are fewer than
    /// [`FannedCall::enough`] wants.
    pub fn successes(self) -> Result<Vec<T>, Status> {
        if !self.is_enough() {
            return Err(self.failure());
        }
        let results = self.answers.into_iter().filter_map(|(_, result)| result);
        Ok(results.filter_map(Result::ok).collect())
    }

    /// The responses merged into one value, if they are enough.
    ///
    /// # Errors
    /// As of [`Answers::successes`].
    pub fn merge<A>(self, first: A, merge: impl FnMut(A, T) -> A) -> Result<A, Status> {
        Ok(self.successes()?.into_iter().fold(first, merge))
    }

    fn failure(&self) -> Status {
        if self.answers.is_empty() {
            let text = "there is no server to call: a channel that is new or idle has none yet, `ready` finds them";
            return Status::unavailable(text).with_not_run();
        }
        if !self.may_be_enough() {
            let text = format!(
                "{} calls are wanted to succeed, and there are {} servers: no call was made",
                self.enough,
                self.answers.len()
            );
            return Status::invalid_argument(text).with_not_run();
        }
        let mut codes = self.failed().map(|(_, status)| status.code());
        let code = codes
            .next()
            .filter(|first| codes.all(|code| code == *first));
        let failed = self.failed().count();
        let (all, succeeded) = (self.answers.len(), self.succeeded().count());
        let reasons = self.failed().take(3);
        let reasons: Vec<_> = reasons
            .map(|(name, status)| format!("{name}: {status}"))
            .collect();
        let text = format!(
            "{succeeded} of {all} calls succeeded where {} were wanted, and {failed} failed: {}",
            self.enough,
            reasons.join("; ")
        );
        let status = Status::new(code.unwrap_or(starling_endpoint::Code::Unknown), text);
        let is_sure = succeeded == 0
            && self.answers[..self.called]
                .iter()
                .all(|(_, result)| match result {
                    Some(Err(status)) => !status.may_have_run(),
                    _ => false,
                });
        match is_sure {
            true => status.with_not_run(),
            false => status,
        }
    }
}

#[cfg(test)]
mod tests;
