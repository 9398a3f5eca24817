//! What a service needs that calls on for its clients: a handler for all methods, and the ends of single clients.

mod common;

use std::sync::Arc;

use common::Pair;
use parking_lot::Mutex;
use starling_endpoint::{Code, Handler, MethodId, SessionState};

#[test]
fn one_handler_takes_all_methods_that_have_none() {
    let mut pair = Pair::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    pair.server
        .register_others(Handler::deferring(move |_, request, mut reply| {
            into.lock().push(request.method());
            reply.buffer().extend_from_slice(b"other");
            reply.ok();
        }));
    pair.server.register(
        MethodId(1),
        Handler::inline(|_, _, mut reply| {
            reply.buffer().extend_from_slice(b"own");
            reply.ok();
        }),
    );
    for (method, expected) in [(1, &b"own"[..]), (2, b"other"), (1, b"own"), (7, b"other")] {
        pair.call(method, b"", 0);
        assert_eq!(pair.one_end().unwrap().body(), expected);
    }
    assert_eq!(*seen.lock(), [MethodId(2), MethodId(7)]);
}

#[test]
fn a_peer_whose_sessions_are_ended_learns_it_and_connects_again() {
    let mut pair = Pair::new();
    let peers = Arc::new(Mutex::new(Vec::new()));
    let into = peers.clone();
    pair.server.register(
        MethodId(1),
        Handler::inline(move |_, request, reply| {
            into.lock().push(request.peer());
            reply.ok();
        }),
    );
    let deferred = Arc::new(Mutex::new(Vec::new()));
    let keeps = deferred.clone();
    pair.server.register(
        MethodId(2),
        Handler::deferring(move |_, _, reply| keeps.lock().push(reply.defer())),
    );
    pair.call(1, b"", 1);
    pair.one_end().unwrap();
    pair.call(2, b"", 2);
    pair.settle();
    let peer = peers.lock()[0];
    pair.server.end_sessions_of(peer);
    pair.settle();
    assert!(deferred.lock()[0].is_cancelled());
    let ends = pair.take_ends();
    let [(2, Err(lost))] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!(
        (lost.code(), lost.may_have_run()),
        (Code::Unavailable, true)
    );
    assert!(matches!(
        pair.client.session_state(pair.session),
        Some(SessionState::Ended(_))
    ));
    pair.session = pair.client.connect(&pair.server.local_address()).unwrap();
    pair.call(1, b"", 4);
    pair.one_end().unwrap();
    assert_eq!(peers.lock().len(), 2);
}

#[test]
fn a_peer_that_has_to_leave_sends_its_requests_elsewhere_and_is_known_to_have_left() {
    let mut pair = Pair::new();
    let replies = Arc::new(Mutex::new(Vec::new()));
    let keeps = replies.clone();
    pair.server
        .register_others(Handler::deferring(move |_, request, reply| {
            keeps.lock().push((request.peer(), reply.defer()));
        }));
    pair.call(1, b"", 1);
    pair.settle();
    let (peer, first) = replies.lock().remove(0);
    // One more is on its way.
    pair.call(1, b"", 2);
    pair.server.drain_peer(peer);
    pair.settle();
    assert_eq!(
        pair.client.session_state(pair.session),
        Some(SessionState::Draining)
    );
    assert!(!pair.server.has_left(peer), "two are outstanding");
    let (_, second) = replies.lock().remove(0);
    pair.server.refuse_draining(second);
    pair.settle();
    let mut ends = pair.take_ends();
    let (tag, refused) = ends.remove(0);
    let mut refused = refused.unwrap_err();
    assert_eq!(
        (tag, refused.code(), refused.may_have_run()),
        (2, Code::Unavailable, false)
    );
    assert!(starling_endpoint::unsent_message(&mut refused).is_some());
    pair.server
        .complete(first, |body| body.extend_from_slice(b"done"));
    assert_eq!(pair.one_end().unwrap().body(), b"done");
    // It is asked again now and then.
    pair.pass(std::time::Duration::from_millis(200));
    assert!(pair.server.has_left(peer));
    pair.server.end_sessions_of(peer);
    pair.settle();
    assert!(matches!(
        pair.client.session_state(pair.session),
        Some(SessionState::Ended(_))
    ));
}

/// Else its client could make the request here again, where it was refused.
#[test]
fn a_peer_learns_that_it_has_to_leave_before_its_requests_are_refused() {
    for all in [false, true] {
        let mut pair = Pair::new();
        let replies = Arc::new(Mutex::new(Vec::new()));
        let keeps = replies.clone();
        pair.server
            .register_others(Handler::deferring(move |_, request, reply| {
                keeps.lock().push((request.peer(), reply.defer()));
            }));
        pair.call(1, b"", 1);
        pair.settle();
        let (peer, reply) = replies.lock().remove(0);
        match all {
            true => pair.server.start_drain(),
            false => pair.server.drain_peer(peer),
        }
        pair.server.refuse_draining(reply);
        // The server takes no turn.
        pair.client.poll().unwrap();
        assert_eq!(pair.one_end().unwrap_err().code(), Code::Unavailable);
        let state = pair.client.session_state(pair.session);
        assert_eq!(state, Some(SessionState::Draining));
    }
}

/// A thread with several endpoints: while others take their turns, this one's handlers take no time.
#[test]
fn time_that_others_use_is_no_handlers() {
    for has_others in [false, true] {
        let mut pair = Pair::new();
        (pair.server).register(MethodId(1), Handler::inline(|_, _, reply| reply.ok()));
        for tag in 0..10 {
            pair.call(1, b"", tag);
            pair.settle();
            pair.network
                .clock()
                .advance(std::time::Duration::from_millis(60));
            pair.call(1, b"", tag);
            pair.client.poll().unwrap();
            if has_others {
                pair.server.handle_other_work();
            }
            // The turn with a request, and the one that reads the clock after it.
            pair.server.poll().unwrap();
            pair.network
                .clock()
                .advance(std::time::Duration::from_millis(60));
            if has_others {
                pair.server.handle_other_work();
            }
            pair.server.poll().unwrap();
            pair.settle();
        }
        assert_eq!(pair.server.stats().stalls == 0, has_others);
    }
}
