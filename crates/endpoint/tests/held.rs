//! Replies that are held together: one cancellation for all of them, and no answer ends it.

mod common;

use std::sync::Arc;

use common::{Pair, code};
use parking_lot::Mutex;
use starling_endpoint::{Cancellation, Code, Handler, HeldReply, MethodId};

/// Has method 1 hold its replies with this cancellation.
fn hold_replies(pair: &mut Pair, cancellation: &Cancellation) -> Arc<Mutex<Vec<HeldReply>>> {
    let (kept, cancellation) = (Arc::new(Mutex::new(Vec::new())), cancellation.clone());
    let into = Arc::clone(&kept);
    let hold =
        move |reply: starling_endpoint::Reply<'_>| into.lock().push(reply.hold(&cancellation));
    pair.server
        .register(MethodId(1), Handler::inline(move |_, _, reply| hold(reply)));
    kept
}

#[test]
fn an_answer_does_not_end_the_others_and_a_cancelled_call_cancels_them_all() {
    let (mut pair, cancellation) = (Pair::new(), Cancellation::default());
    let kept = hold_replies(&mut pair, &cancellation);
    pair.call(1, b"", 0);
    let second = pair.call(1, b"", 1);
    pair.settle();
    assert_eq!(pair.server.requests_pending(), 2);
    let mut reply = kept.lock().remove(0).into_reply(&cancellation);
    reply.buffer().push(7);
    pair.server.complete_with(reply, Ok(()));
    assert_eq!(pair.one_end().unwrap().body(), [7]);
    assert_eq!(pair.server.requests_pending(), 1);
    assert!(!cancellation.is_finished() && !cancellation.is_cancelled());
    pair.client.cancel(second);
    pair.settle();
    assert!(cancellation.is_cancelled());
    // It is not answered any more, whatever becomes of it.
    kept.lock().clear();
    pair.settle();
    assert_eq!(pair.server.requests_pending(), 0);
}

#[test]
fn one_that_is_dropped_is_internal_and_one_that_is_answered_at_once_is_not_pending() {
    let (mut pair, cancellation) = (Pair::new(), Cancellation::default());
    let kept = hold_replies(&mut pair, &cancellation);
    pair.call(1, b"", 0);
    pair.settle();
    kept.lock().clear();
    assert_eq!(code(&pair.one_end()), Code::Internal);
    assert_eq!(pair.server.stats().abandoned, 1);
    let its_own = cancellation.clone();
    let answer = Handler::inline(move |context, _, reply| {
        let reply = reply.hold(&its_own).into_reply(&its_own);
        context.complete(reply, |buffer| buffer.push(9));
    });
    pair.server.register(MethodId(2), answer);
    pair.call(2, b"", 0);
    assert_eq!(pair.one_end().unwrap().body(), [9]);
    assert_eq!(pair.server.requests_pending(), 0);
    assert!(!cancellation.is_finished());
}
