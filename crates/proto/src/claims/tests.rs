use super::*;

fn token(number: u64) -> Token {
    Token::from_wire(number << 16).expect("a token")
}

fn info(index: usize, round: u32) -> SessionInfo {
    SessionInfo {
        handle: SessionHandle::new(SessionId::new(index, 3), round),
        peer: PeerId(7),
        remote: 11,
        token: token(13),
        own_preamble: token(9).preamble(),
        small_buffer: 100,
    }
}

fn datagram(session: SessionId, slot: u8, number: u64, flags: u8) -> Vec<u8> {
    let header = Header {
        kind: Kind::Request,
        flags,
        slot,
        session: session.to_wire(),
        number,
    };
    [&token(9).preamble()[..], &header.to_bytes(4), b"body"].concat()
}

fn claim(claims: &Claims, datagram: &[u8]) -> Option<Claim> {
    let candidate = claims.parse(PeerId(7), datagram)?;
    assert_eq!(candidate.payload(), b"body");
    claims.claim(&candidate, true)
}

#[test]
fn a_request_is_claimed_once_and_never_an_older_one() {
    let claims = Claims::new(2, 2);
    let info = info(1, 256);
    let id = info.handle.id();
    assert!(
        claim(&claims, &datagram(id, 0, 1, 0)).is_none(),
        "no session"
    );
    claims.open(&info, [0, 40].into_iter());
    let first = claim(&claims, &datagram(id, 0, 5, 0)).expect("nobody had it");
    assert_eq!(
        first.id(),
        RequestId::new(SessionHandle::new(id, 256), 0, 5)
    );
    for number in [0, 4, 5] {
        assert!(claim(&claims, &datagram(id, 0, number, 0)).is_none());
    }
    assert!(claim(&claims, &datagram(id, 1, 40, 0)).is_none());
    assert!(claim(&claims, &datagram(id, 1, 41, 0)).is_some());
    // The dispatcher's look tells what workers had; its own claims keep them away.
    assert_eq!(claims.raise(id, 0, 4), 5);
    assert_eq!(claims.raise(id, 0, 6), 5);
    assert!(claim(&claims, &datagram(id, 0, 6, 0)).is_none());
    // The datagram names no slot, no place, or another session.
    assert!(claim(&claims, &datagram(id, 2, 7, 0)).is_none());
    assert_eq!(claims.raise(id, 2, 7), 0);
    assert!(claim(&claims, &datagram(SessionId::new(2, 3), 0, 7, 0)).is_none());
    assert!(claim(&claims, &datagram(SessionId::new(1, 4), 0, 7, 0)).is_none());
    let other = datagram(id, 0, 7, 0);
    let other = claims.parse(PeerId(8), &other).expect("well-formed");
    assert!(claims.claim(&other, false).is_none());
    let mut highest = Vec::new();
    claims.close(id, |slot, number| highest.push((slot, number)));
    assert_eq!(highest, [(0, 6), (1, 41)]);
    assert!(claim(&claims, &datagram(id, 0, 7, 0)).is_none());
    assert_eq!(claims.raise(id, 0, 7), 0);
    claims.open(&info, [0, 0].into_iter());
    assert!(
        claim(&claims, &datagram(id, 0, 1, 0)).is_some(),
        "it begins anew"
    );
}

#[test]
fn numbers_above_48_bits_belong_to_the_dispatcher() {
    let claims = Claims::new(1, 1);
    let info = info(0, 0);
    let id = info.handle.id();
    claims.open(&info, [LAST_NUMBER - 1].into_iter());
    assert!(claim(&claims, &datagram(id, 0, LAST_NUMBER + 1, 0)).is_none());
    assert!(claim(&claims, &datagram(id, 0, u64::MAX, 0)).is_none());
    assert!(claim(&claims, &datagram(id, 0, LAST_NUMBER, 0)).is_some());
    assert_eq!(claims.raise(id, 0, u64::MAX), LAST_NUMBER);
    assert_eq!(claims.raise(id, 0, u64::MAX), 0, "it knows itself");
    claims.close(id, |_, _| {});
    claims.open(&info, [u64::MAX].into_iter());
    assert!(claim(&claims, &datagram(id, 0, LAST_NUMBER, 0)).is_none());
}

#[test]
fn only_whole_plain_requests_are_candidates() {
    let claims = Claims::new(1, 1);
    let good = datagram(SessionId::new(0, 3), 0, 1, 0);
    let is_one = |datagram: &[u8]| claims.parse(PeerId(7), datagram).is_some();
    assert!(is_one(&good));
    assert!(is_one(&datagram(SessionId::new(0, 3), 0, 1, flags::ECHO)));
    for flag in [flags::EXT, flags::WANT] {
        assert!(!is_one(&datagram(SessionId::new(0, 3), 0, 1, flag)));
    }
    for len in 0..good.len() {
        assert!(!is_one(&good[..len]));
    }
    assert!(!is_one(&[&good[..], &good[8..]].concat()));
}

#[test]
fn a_request_with_another_preamble_than_its_clients_is_not_claimed() {
    let claims = Claims::new(1, 1);
    let info = info(0, 0);
    claims.open(&info, [0].into_iter());
    let good = datagram(info.handle.id(), 0, 1, 0);
    for (at, bit) in (0..8).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut other = good.clone();
        other[at] ^= 1 << bit;
        assert!(claim(&claims, &other).is_none(), "byte {at}, bit {bit}");
    }
    assert!(claim(&claims, &good).is_some());
}

#[test]
fn a_response_that_fits_has_a_head() {
    let claims = Claims::new(1, 1);
    let info = info(0, 0);
    claims.open(&info, [0].into_iter());
    let claim = claim(&claims, &datagram(info.handle.id(), 0, 1, 0)).expect("nobody had it");
    let (start, head) = claim
        .response_head(&Msgbuf::from_vec(vec![0; 100]))
        .expect("fits");
    assert_eq!(start, token(13).preamble());
    assert_eq!(head[0], Kind::Response as u8 | flags::LATE | flags::ECHO);
    assert_eq!(head[4..8], 11_u32.to_le_bytes());
    assert!(
        claim
            .response_head(&Msgbuf::from_vec(vec![0; 101]))
            .is_none()
    );
    assert!(
        claim
            .response_head(&Msgbuf::from_vec(Vec::with_capacity(8192)))
            .is_none()
    );
}

/// Any bytes: a candidate whose payload is the datagram's end, or none; never a panic.
#[test]
fn fuzz_steered_datagram() {
    let claims = Claims::new(2, 2);
    claims.open(&info(1, 0), [0, 0].into_iter());
    bolero::check!().for_each(|bytes: &[u8]| {
        // Mostly past the preamble, which few random bytes are.
        let datagram = [&token(9).preamble()[..], bytes].concat();
        for datagram in [bytes, &datagram] {
            if let Some(candidate) = claims.parse(PeerId(7), datagram) {
                assert!(datagram.ends_with(candidate.payload()));
                let first = claims.claim(&candidate, false);
                assert!(first.is_none() || claims.claim(&candidate, false).is_none());
            }
        }
    });
}
