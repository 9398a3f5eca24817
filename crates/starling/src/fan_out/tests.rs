use std::cell::{Cell, RefCell};
use std::rc::Rc;

use starling_endpoint::Code;

use super::*;

/// A server of a test: its calls end when it says so.
#[derive(Clone, Default)]
struct Server(Rc<State>);

#[derive(Default)]
struct State {
    calls: Cell<usize>,
    dropped: Cell<usize>,
    result: RefCell<Option<Result<u32, Status>>>,
    waker: RefCell<Option<Waker>>,
}

struct Call(Server);

impl Server {
    fn call(&self) -> Call {
        self.0.calls.set(self.0.calls.get() + 1);
        Call(self.clone())
    }

    fn end(&self, result: Result<u32, Status>) {
        *self.0.result.borrow_mut() = Some(result);
        if let Some(waker) = self.0.waker.take() {
            waker.wake();
        }
    }
}

impl Future for Call {
    type Output = Result<u32, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.0.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                *self.0.0.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let state = &self.0.0;
        state.dropped.set(state.dropped.get() + 1);
    }
}

fn servers(n: usize) -> (Vec<Server>, FanOut<Server>) {
    let servers: Vec<Server> = (0..n).map(|_| Server::default()).collect();
    let named = servers.iter().enumerate();
    let fan_out = FanOut::new(named.map(|(at, server)| (format!("s{at}"), server.clone())));
    (servers, fan_out)
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn calls(servers: &[Server]) -> Vec<usize> {
    servers.iter().map(|server| server.0.calls.get()).collect()
}

fn dropped(servers: &[Server]) -> Vec<usize> {
    servers
        .iter()
        .map(|server| server.0.dropped.get())
        .collect()
}

fn unavailable() -> Result<u32, Status> {
    Err(Status::unavailable("gone"))
}

#[test]
fn all_are_called_at_once_and_all_are_waited_for() {
    let (servers, fan_out) = servers(3);
    let mut call = fan_out.call(Server::call).into_future();
    assert!(poll(&mut call).is_pending());
    assert_eq!(calls(&servers), [1, 1, 1]);
    servers[2].end(Ok(2));
    servers[0].end(Ok(0));
    assert!(poll(&mut call).is_pending());
    servers[1].end(unavailable());
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("all have answered");
    };
    let succeeded: Vec<_> = answers.succeeded().collect();
    assert_eq!(succeeded, [("s0", &0), ("s2", &2)]);
    assert!(!answers.is_enough());
    let status = answers.successes().expect_err("one failed");
    assert_eq!(status.code(), Code::Unavailable);
    let text = "2 of 3 calls succeeded where 3 were wanted, and 1 failed: s1: UNAVAILABLE: gone";
    assert_eq!(status.message(), text);
    assert!(status.may_have_run());
}

#[test]
fn when_enough_have_succeeded_the_others_are_cancelled() {
    let (servers, fan_out) = servers(4);
    let mut call = fan_out.call(Server::call).enough(2).into_future();
    assert!(poll(&mut call).is_pending());
    servers[3].end(Ok(3));
    servers[1].end(unavailable());
    assert!(poll(&mut call).is_pending());
    servers[0].end(Ok(10));
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("two have succeeded");
    };
    assert_eq!(dropped(&servers), [1, 1, 1, 1]);
    assert_eq!(answers.failed().count(), 1);
    assert!(answers.clone().into_all()[2].1.is_none());
    assert_eq!(answers.merge(0, |sum, it| sum + it), Ok(13));
}

#[test]
fn those_that_succeed_together_are_not_more_than_enough() {
    let (servers, fan_out) = servers(4);
    let mut call = fan_out.call(Server::call).enough(2).into_future();
    assert!(poll(&mut call).is_pending());
    servers.iter().for_each(|server| server.end(Ok(1)));
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("four have succeeded");
    };
    assert_eq!(dropped(&servers), [1, 1, 1, 1]);
    assert_eq!(answers.successes(), Ok(vec![1, 1]));
}

#[test]
fn more_than_there_are_servers_are_refused_before_any_call() {
    let (servers, fan_out) = servers(3);
    let mut call = fan_out.call(Server::call).enough(9).into_future();
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("nine of three never succeed");
    };
    assert_eq!(calls(&servers), [0, 0, 0]);
    let status = answers.successes().expect_err("three are not nine");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(!status.may_have_run());
    let text = "9 calls are wanted to succeed, and there are 3 servers: no call was made";
    assert_eq!(status.message(), text);
}

#[test]
fn one_after_the_other_is_called_until_one_succeeds() {
    let (servers, fan_out) = servers(3);
    let mut call = fan_out
        .call(Server::call)
        .at_once(1)
        .enough(1)
        .into_future();
    assert!(poll(&mut call).is_pending());
    assert_eq!(calls(&servers), [1, 0, 0]);
    servers[0].end(unavailable());
    assert!(poll(&mut call).is_pending());
    assert_eq!(calls(&servers), [1, 1, 0]);
    servers[1].end(Ok(7));
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("one has succeeded");
    };
    assert_eq!(calls(&servers), [1, 1, 0]);
    assert_eq!(answers.successes(), Ok(vec![7]));
}

#[test]
fn more_failures_than_are_tolerated_end_it() {
    let (servers, fan_out) = servers(3);
    let mut call = fan_out.call(Server::call).tolerate(0).into_future();
    assert!(poll(&mut call).is_pending());
    servers[1].end(unavailable());
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("one failure is too many");
    };
    assert_eq!(dropped(&servers), [1, 1, 1]);
    assert!(answers.successes().is_err());
}

#[test]
fn the_failure_of_all_has_their_code_and_says_whether_any_may_have_run() {
    let end = |results: [Result<u32, Status>; 2]| {
        let (servers, fan_out) = servers(2);
        let mut call = fan_out.call(Server::call).into_future();
        assert!(poll(&mut call).is_pending());
        for (server, result) in servers.iter().zip(results) {
            server.end(result);
        }
        match poll(&mut call) {
            Poll::Ready(answers) => answers.successes().expect_err("both failed"),
            Poll::Pending => panic!("both have answered"),
        }
    };
    let not_run = || Err(Status::unavailable("gone").with_not_run());
    assert!(!end([not_run(), not_run()]).may_have_run());
    assert!(end([not_run(), unavailable()]).may_have_run());
    let (servers, fan_out) = servers(3);
    servers[0].end(not_run());
    let call = fan_out.call(Server::call).at_once(1).tolerate(0);
    let Poll::Ready(answers) = poll(&mut call.into_future()) else {
        panic!("one has failed");
    };
    assert_eq!(calls(&servers), [1, 0, 0]);
    let status = answers.successes().expect_err("one failed");
    assert!(!status.may_have_run(), "nobody else was called");
    let mixed = end([unavailable(), Err(Status::not_found("key"))]);
    assert_eq!(mixed.code(), Code::Unknown);
}

#[test]
fn a_call_to_nobody_is_over_and_has_failed() {
    let (_, fan_out) = servers(0);
    assert!(fan_out.is_empty());
    let mut call = fan_out.call(Server::call).into_future();
    let Poll::Ready(answers) = poll(&mut call) else {
        panic!("nobody is waited for");
    };
    assert!(answers.successes().is_err());
}

#[test]
fn only_calls_that_were_woken_are_looked_at() {
    let (servers, fan_out) = servers(2);
    let mut call = fan_out.call(Server::call).into_future();
    assert!(poll(&mut call).is_pending());
    // A result that nobody has announced is not seen.
    *servers[0].0.result.borrow_mut() = Some(Ok(1));
    servers[1].end(Ok(2));
    assert!(poll(&mut call).is_pending());
    servers[0].end(Ok(1));
    assert!(poll(&mut call).is_ready());
}
