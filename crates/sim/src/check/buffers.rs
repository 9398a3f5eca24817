//! A buffer that the application hands to the protocol comes back exactly once, and as it was:
//! the same memory with the same contents.

use std::collections::BTreeMap;

use super::{Tag, Violation};
use crate::rng::mix;

/// The request buffers that the protocol holds.
#[derive(Debug, Default)]
pub struct Buffers {
    lent: BTreeMap<Tag, Loan>,
}

#[derive(Debug, PartialEq, Eq)]
struct Loan {
    address: usize,
    len: usize,
    digest: u64,
}

impl Loan {
    fn of(head: &[u8], tail: &[u8]) -> Self {
        Self {
            address: head.as_ptr().addr(),
            len: head.len() + tail.len(),
            digest: mix(digest(head) ^ digest(tail).rotate_left(1)),
        }
    }
}

impl Buffers {
    /// A buffer of these parts goes to the protocol with call `tag`.
    pub fn lent(&mut self, tag: Tag, head: &[u8], tail: &[u8]) {
        self.lent.insert(tag, Loan::of(head, tail));
    }

    /// The protocol gives a buffer of these parts back, for call `tag`.
    pub fn returned(&mut self, tag: Tag, head: &[u8], tail: &[u8]) -> Result<(), Violation> {
        let Some(loan) = self.lent.remove(&tag) else {
            return Err(violation(format!(
                "the buffer of call {tag} came back, but was not lent"
            )));
        };
        let now = Loan::of(head, tail);
        if (now.len, now.digest) != (loan.len, loan.digest) {
            return Err(violation(format!(
                "the buffer of call {tag} came back altered: {} bytes were lent, {} came back",
                loan.len, now.len
            )));
        }
        if now.address != loan.address {
            return Err(violation(format!(
                "call {tag} got a different buffer back than it lent"
            )));
        }
        Ok(())
    }

    /// The buffer will not come back. Either the response came and the protocol keeps the buffer,
    /// or the process that lent it died with its memory.
    pub fn abandon(&mut self, tag: Tag) {
        self.lent.remove(&tag);
    }

    /// Fails if buffers are still out. Callers use it when no call is open.
    pub fn check_all_returned(&self) -> Result<(), Violation> {
        match self.lent.keys().next() {
            None => Ok(()),
            Some(tag) => Err(violation(format!(
                "{} buffers never came back, the first is that of call {tag}",
                self.lent.len()
            ))),
        }
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest = mix(digest ^ u64::from_le_bytes(word));
    }
    digest
}

fn violation(detail: String) -> Violation {
    Violation::new("buffers", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaked_buffer_is_found() {
        let mut buffers = Buffers::default();
        let (first, second) = (vec![1; 30], vec![2; 30]);
        buffers.lent(1, &first, b"tail");
        buffers.lent(2, &second, b"");
        assert_eq!(buffers.returned(1, &first, b"tail"), Ok(()));
        let found = buffers.check_all_returned().unwrap_err();
        assert!(found.detail.contains("call 2"), "{found}");
        buffers.abandon(2);
        assert_eq!(buffers.check_all_returned(), Ok(()));
    }

    #[test]
    fn a_buffer_that_comes_back_twice_altered_or_exchanged_is_found() {
        let mut buffers = Buffers::default();
        let mut bytes = vec![1; 30];
        buffers.lent(1, &bytes, b"");
        buffers.returned(1, &bytes, b"").unwrap();
        assert!(buffers.returned(1, &bytes, b"").is_err(), "twice");
        buffers.lent(2, &bytes, b"");
        bytes[29] = 0;
        assert!(buffers.returned(2, &bytes, b"").is_err(), "altered");
        buffers.lent(3, &bytes, b"");
        assert!(
            buffers.returned(3, &bytes.clone(), b"").is_err(),
            "exchanged"
        );
        buffers.lent(4, &bytes, b"12");
        assert!(buffers.returned(4, &bytes, b"").is_err(), "cut");
    }
}
