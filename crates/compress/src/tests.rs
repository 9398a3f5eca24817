//! All algorithms that the program was built with: messages come back, and nothing else does.

use super::*;

fn available() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.into_iter().filter(|it| it.is_available())
}

/// Text of this length that gets shorter.
fn text(len: usize) -> Vec<u8> {
    let words = ["a storage engine ", "writes ", "logs, ", "and reads them "];
    let mut bytes: Vec<u8> = Vec::new();
    let mut state = 1u32;
    while bytes.len() < len {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12345);
        bytes.extend_from_slice(words[(state >> 16) as usize % words.len()].as_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes that do not get shorter.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn messages_of_all_sizes_come_back_behind_what_is_there() {
    for algorithm in available() {
        for len in [100, 1_000, 65_536, (1 << 20) + 7] {
            let levels: &[_] = match len {
                ..10_000 => &[None, Some(1), Some(-1), Some(100)],
                _ => &[None],
            };
            for level in levels.iter().copied() {
                let input = text(len);
                let mut packed = b"head".to_vec();
                assert!(compress(algorithm, level, &input, &mut packed));
                assert!(packed.len() < 4 + len, "{algorithm:?} {len}");
                let mut back = b"room".to_vec();
                decompress(algorithm, &packed[4..], len, &mut back).expect("as it was made");
                assert!(back.starts_with(b"room") && back[4..] == input);
            }
        }
    }
}

#[test]
fn a_level_that_an_algorithm_does_not_have_is_the_nearest_one() {
    for (algorithm, least, most) in [(Algorithm::Gzip, 1, 9), (Algorithm::Zstd, -7, 22)] {
        if !algorithm.is_available() {
            continue;
        }
        let packed = |level| {
            let mut packed = Vec::new();
            assert!(compress(algorithm, Some(level), &text(10_000), &mut packed));
            packed
        };
        assert!(packed(least) == packed(-99), "{algorithm:?}");
        assert!(packed(most) == packed(99), "{algorithm:?}");
        assert!(packed(least) != packed(most), "{algorithm:?}");
    }
}

#[test]
fn what_does_not_get_shorter_is_left() {
    for algorithm in available() {
        for input in [Vec::new(), b"x".to_vec(), noise(10), noise(100_000)] {
            let mut out = b"head".to_vec();
            assert!(!compress(algorithm, None, &input, &mut out));
            assert_eq!(out, b"head", "{algorithm:?}");
        }
    }
}

#[test]
fn another_length_and_cut_or_longer_input_are_refused() {
    for algorithm in available() {
        let input = text(10_000);
        let mut packed = Vec::new();
        assert!(compress(algorithm, None, &input, &mut packed));
        let mut out = b"head".to_vec();
        for len in [0, 1, 9_999, 10_001, 20_000] {
            let refused = decompress(algorithm, &packed, len, &mut out);
            assert!(refused.is_err(), "{algorithm:?} {len}");
        }
        for cut in [0, 1, packed.len() / 2, packed.len() - 1] {
            assert!(decompress(algorithm, &packed[..cut], 10_000, &mut out).is_err());
        }
        packed.extend_from_slice(b"more");
        assert!(decompress(algorithm, &packed, 10_000, &mut out).is_err());
        assert_eq!(out, b"head");
        // The thread's memory is as good as before.
        packed.truncate(packed.len() - 4);
        decompress(algorithm, &packed, 10_000, &mut out).expect("as it was made");
    }
}

/// The messages that grow most are possible, and no longer ones are.
#[test]
fn a_length_that_cannot_be_is_refused_before_memory_is_taken() {
    const LEN: usize = 8 << 20;
    for algorithm in available() {
        let mut packed = Vec::new();
        assert!(compress(algorithm, Some(9), &vec![0; LEN], &mut packed));
        let mut out = Vec::new();
        decompress(algorithm, &packed, LEN, &mut out).expect("it is possible");
        let mut out = Vec::new();
        let error = decompress(algorithm, &packed, usize::MAX, &mut out);
        let bytes = packed.len();
        let len = usize::MAX;
        let impossible = DecompressError::Impossible {
            algorithm,
            bytes,
            len,
        };
        assert_eq!(error, Err(impossible));
        let error = decompress(algorithm, &packed, algorithm.most_from(bytes) + 1, &mut out);
        assert!(matches!(error, Err(DecompressError::Impossible { .. })));
        assert_eq!(out.capacity(), 0, "memory was taken");
    }
}

#[test]
fn an_algorithm_that_is_not_there_is_an_error_that_names_those_that_are() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| !it.is_available()) {
        let mut out = Vec::new();
        assert!(!compress(algorithm, None, &text(1_000), &mut out));
        let error = decompress(algorithm, b"", 0, &mut out).expect_err("it is not there");
        assert_eq!(error, DecompressError::Unavailable(algorithm));
        assert!(error.to_string().contains(algorithm.name()));
    }
}

#[test]
fn a_set_has_what_was_put_into_it_and_its_bits_are_numbers() {
    let set = AlgorithmSet::from_bits(0b1110);
    assert!(Algorithm::ALL.into_iter().all(|it| set.has(it)));
    assert_eq!(set.to_string(), "gzip, zstd, lz4");
    assert_eq!(AlgorithmSet::NONE.to_string(), "none");
    for number in 0..=255 {
        let known = Algorithm::from_number(number);
        assert!(known.is_none_or(|known| known.number() == number));
    }
    assert!(available().all(|it| AlgorithmSet::AVAILABLE.has(it)));
}

/// No bytes make it panic or write anything else than the length that was said.
#[test]
fn fuzz_decompress() {
    bolero::check!()
        .with_type::<(u8, u16, Vec<u8>)>()
        .for_each(|(number, len, bytes)| {
            let Some(algorithm) = Algorithm::from_number(number % 4) else {
                return;
            };
            let mut out = Vec::new();
            match decompress(algorithm, bytes, usize::from(*len), &mut out) {
                Ok(()) => assert_eq!(out.len(), usize::from(*len)),
                Err(_) => assert!(out.is_empty()),
            }
        });
}

/// So do messages with a byte changed.
#[test]
fn fuzz_damaged() {
    bolero::check!()
        .with_type::<(u8, u16, u8, u16)>()
        .for_each(|(number, at, flip, len)| {
            let Some(algorithm) = Algorithm::from_number(number % 4) else {
                return;
            };
            let input = text(200 + usize::from(*len) % 5_000);
            let mut packed = Vec::new();
            if !compress(algorithm, None, &input, &mut packed) {
                return;
            }
            let at = usize::from(*at) % packed.len();
            packed[at] ^= flip;
            let mut out = Vec::new();
            match decompress(algorithm, &packed, input.len(), &mut out) {
                Ok(()) => assert_eq!(out.len(), input.len()),
                Err(_) => assert!(out.is_empty()),
            }
        });
}
