//! What hostile hosts make frames of.

use std::ops::RangeInclusive;

use super::Scene;
use crate::check::content::{self, Expected};
use crate::frames::{
    ACCEPT, CHALLENGE, CONNECT, CREDIT, CREDIT_ACK, CREDIT_RETURN, REFUSE, REJECT, REQUEST,
    REQUEST_FOR_RESPONSE, REQUEST_FRAGMENT, RESET, RESPONSE, RESPONSE_FRAGMENT, frame,
};
use crate::harness::plan::{MAX_DELAY_US, MAX_RESPONSE};
use crate::rng::Rng;

/// Marks the keys of requests of hostile hosts. They are even, as the extension bit is not set.
const HOSTILE: u64 = 1 << 62;

/// Methods of whole endpoints whose handlers read requests of the harness.
const METHODS: RangeInclusive<u64> = 1..=3;

/// The key that `word` stands for.
pub(super) fn key(word: u64) -> u64 {
    HOSTILE | (word & (HOSTILE - 1) & !1)
}

/// A request that a handler can read.
pub(super) fn request(rng: &mut Rng, scene: Scene, key: u64, longest_response: u64) -> Vec<u8> {
    let expected = Expected {
        key,
        response_len: rng.log_range(0, longest_response.min(MAX_RESPONSE)) as u32,
        delay_us: rng.log_range(0, MAX_DELAY_US) as u32,
    };
    let len = rng.log_range(content::HEADER as u64, 200) as usize;
    let (body, _) = content::request(expected, len);
    if !scene.has_calls {
        return body;
    }
    let method = rng.range(*METHODS.start(), *METHODS.end()) as u32;
    [&method.to_le_bytes()[..], &body].concat()
}

/// An id of a session that somebody may have: tables are filled from their beginning.
pub(super) fn session(rng: &mut Rng) -> u32 {
    match rng.below(8) {
        0 => rng.next_u64() as u32,
        1 => rng.below(300) as u32 | (rng.below(3) as u32) << 24,
        _ => rng.log_range(0, 12) as u32,
    }
}

/// A request number that a session may have come to.
pub(super) fn number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.next_u64(),
        1 => u64::MAX,
        _ => rng.log_range(0, 100),
    }
}

/// A frame of any kind with the payload that such a frame has. `token` is the one that it names, if it names one.
pub(super) fn any_frame(
    rng: &mut Rng,
    scene: Scene,
    kind: u8,
    session: u32,
    token: u64,
) -> Vec<u8> {
    let (slot, number) = match kind {
        // The reason is where others have the slot.
        RESET => (rng.below(4) as u8, token),
        _ => (rng.log_range(0, 63) as u8, number(rng)),
    };
    frame(
        kind,
        slot,
        session,
        number,
        &payload(rng, scene, kind, token),
    )
}

pub(super) fn payload(rng: &mut Rng, scene: Scene, kind: u8, token: u64) -> Vec<u8> {
    let mut words = |count: u64, most: u64| -> Vec<u8> {
        let words = (0..count).map(|_| rng.log_range(0, most) as u32);
        words.flat_map(u32::to_le_bytes).collect()
    };
    match kind {
        REQUEST => {
            let key = key(rng.next_u64());
            request(rng, scene, key, 300)
        }
        RESPONSE => words(4, u32::MAX.into()),
        REQUEST_FRAGMENT | RESPONSE_FRAGMENT => {
            let total = rng.log_range(0, 1 << 21) as u32;
            let index = rng.log_range(0, 64) as u32;
            let data = rng.range(0, scene.max_datagram as u64 - 32) as usize;
            let mut payload = [total.to_le_bytes(), index.to_le_bytes()].concat();
            payload.resize(8 + data, 0xee);
            payload
        }
        CREDIT_RETURN | REQUEST_FOR_RESPONSE => words(4, u32::MAX.into()),
        REJECT => words(1, 6),
        CONNECT => connect(rng, scene, token, None),
        CHALLENGE => words(4, u32::MAX.into()),
        ACCEPT => {
            let session = session(rng);
            let slots = rng.range(1, 64) as u32 | (rng.range(1, 64) as u32) << 16;
            let words = [session, scene.max_datagram as u32, 1 << 20, slots, 16];
            let words = words.into_iter().flat_map(u32::to_le_bytes);
            token.to_le_bytes().into_iter().chain(words).collect()
        }
        REFUSE => words(2, 8),
        CREDIT | CREDIT_ACK => words(1, 100),
        _ => Vec::new(),
    }
}

/// A cookie, with what it was made for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cookie {
    pub(super) token: u64,
    pub(super) session: u32,
    pub(super) words: [u64; 2],
}

/// The payload of a CONNECT under `token`, or with what a cookie was made for.
pub(super) fn connect(rng: &mut Rng, scene: Scene, token: u64, cookie: Option<Cookie>) -> Vec<u8> {
    let cookie = cookie.unwrap_or_else(|| Cookie {
        token,
        session: rng.below(4) as u32,
        words: match rng.chance(500_000) {
            true => [0, 0],
            false => [rng.log_range(0, scene.heal_ns), rng.next_u64()],
        },
    });
    let mut payload = cookie.token.to_le_bytes().to_vec();
    let slots = rng.pick(&[1u32, 8, 64]);
    let credits = rng.pick(&[1u32, 8, 64]);
    let words = [
        cookie.session,
        scene.max_datagram as u32,
        8 << 20,
        slots | credits << 16,
    ];
    payload.extend(words.into_iter().flat_map(u32::to_le_bytes));
    payload.extend(cookie.words.into_iter().flat_map(u64::to_le_bytes));
    payload
}
