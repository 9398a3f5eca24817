//! Workers and the dispatcher over one slot, in all interleavings with at most three preemptions: of
//! two workers and the dispatcher, and of one worker and a session that ends.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p starling-proto --lib --release loom
//! ```

use loom::sync::Arc;
use loom::thread;

use super::*;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // All interleavings would take hours: those in which threads are interrupted now and then.
    builder.preemption_bound = Some(3);
    builder.check(check);
}

fn own_preamble(uses: u8) -> [u8; PREAMBLE_BYTES] {
    let token = Token::from_wire((300 + u64::from(uses)) << 16);
    token.expect("a token").preamble()
}

fn info(uses: u8) -> SessionInfo {
    let id = SessionId::new(0, uses);
    SessionInfo {
        handle: SessionHandle::new(id, 0),
        peer: PeerId(uses.into()),
        remote: 100 + u32::from(uses),
        token: Token::from_wire((200 + u64::from(uses)) << 16).expect("a token"),
        own_preamble: own_preamble(uses),
        small_buffer: 300 + u32::from(uses),
    }
}

fn opened() -> Arc<Claims> {
    let claims = Claims::new(1, 1);
    claims.open(&info(0), [0].into_iter());
    Arc::new(claims)
}

/// A request on the session at the only place, of that generation.
fn candidate(uses: u8, number: u64) -> Candidate<'static> {
    let header = Header {
        kind: Kind::Request,
        flags: 0,
        slot: 0,
        session: info(uses).handle.id().to_wire(),
        number,
    };
    Candidate {
        peer: PeerId(uses.into()),
        preamble: own_preamble(uses),
        frame: Frame {
            header,
            payload: &[],
        },
    }
}

#[test]
fn loom_one_of_two_workers_and_the_dispatcher_has_a_request() {
    model(|| {
        let claims = opened();
        let workers = [0, 1].map(|_| {
            let claims = Arc::clone(&claims);
            thread::spawn(move || claims.claim(&candidate(0, 1), false).is_some())
        });
        let dispatcher = claims.raise(info(0).handle.id(), 0, 1) < 1;
        let winners = workers.map(|worker| worker.join().unwrap());
        let count = winners.into_iter().filter(|won| *won).count();
        assert_eq!(count + usize::from(dispatcher), 1);
    });
}

#[test]
fn loom_numbers_only_grow() {
    model(|| {
        let claims = opened();
        let other = Arc::clone(&claims);
        // A worker that has an old request and then a new one, and one that has them late.
        let worker = thread::spawn(move || {
            let first = other.claim(&candidate(0, 1), false).is_some();
            (first, other.claim(&candidate(0, 3), false).is_some())
        });
        let before = claims.raise(info(0).handle.id(), 0, 2);
        let (first, third) = worker.join().unwrap();
        // A thread that tries to claim 1 after 2 was claimed does not get it.
        assert_eq!(first, before != 0);
        // A step that another one came between fails: the dispatcher has it then.
        assert!(third || before < 3);
        let highest = if third { 3 } else { 2 };
        assert_eq!(claims.raise(info(0).handle.id(), 0, 0), highest);
    });
}

#[test]
fn loom_a_claim_knows_its_own_session() {
    for uses in [0, 1] {
        model(move || {
            let claims = opened();
            let other = Arc::clone(&claims);
            let worker = thread::spawn(move || other.claim(&candidate(uses, 1), false));
            claims.close(info(0).handle.id(), |_, _| {});
            claims.open(&info(1), [0].into_iter());
            if let Some(claim) = worker.join().unwrap() {
                assert_eq!(claim.info, info(uses));
            }
        });
    }
}

#[test]
fn loom_closing_a_session_reports_the_claimed_requests() {
    model(|| {
        let claims = opened();
        let other = Arc::clone(&claims);
        let worker = thread::spawn(move || other.claim(&candidate(0, 1), false).is_some());
        let mut highest = None;
        claims.close(info(0).handle.id(), |slot, number| {
            assert_eq!(slot, 0);
            highest = Some(number);
        });
        assert_eq!(highest, Some(u64::from(worker.join().unwrap())));
    });
}
