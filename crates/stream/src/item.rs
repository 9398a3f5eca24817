//! How items lie in a message's body: each is its length, a little-endian u32, and its bytes.

use bytes::{Buf, Bytes};

const LENGTH: usize = 4;

/// A body is not a series of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an item of {item} bytes is in a message with {left} bytes left")]
pub struct ItemError {
    item: usize,
    left: usize,
}

/// Bytes that an item takes in a body.
pub(crate) fn len_of(head: &[u8], tail: Option<&Bytes>) -> usize {
    LENGTH + head.len() + tail.map_or(0, Bytes::len)
}

/// Appends an item, but for its tail.
///
/// # Panics
/// If it has 4 GiB or more, which no session carries.
pub(crate) fn put(out: &mut Vec<u8>, head: &[u8], tail: Option<&Bytes>) {
    let len = u32::try_from(head.len() + tail.map_or(0, Bytes::len)).expect("less than 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(head);
}

/// Appends an item that `write` appends.
///
/// # Errors
/// What `write` returns.
///
/// # Panics
/// If it has 4 GiB or more.
pub fn put_item<E>(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let at = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    write(out)?;
    let len = u32::try_from(out.len() - at - LENGTH).expect("less than 4 GiB");
    out[at..at + LENGTH].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

/// The items of a body.
#[derive(Clone, Debug)]
pub struct Items(Bytes);

impl Items {
    /// The items of a body that this end has made, or that was checked.
    pub fn new(body: Bytes) -> Self {
        Self(body)
    }
}

impl Iterator for Items {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        take(&mut self.0)
    }
}

/// Checks that a body is a series of items.
pub(crate) fn check(mut body: &[u8]) -> Result<(), ItemError> {
    while !body.is_empty() {
        let item = first_len(body).unwrap_or(usize::MAX);
        let rest = body.get(LENGTH..).and_then(|rest| rest.get(item..));
        body = rest.ok_or(ItemError {
            item,
            left: body.len(),
        })?;
    }
    Ok(())
}

/// Takes the first item of a body that was checked.
pub(crate) fn take(body: &mut Bytes) -> Option<Bytes> {
    let len = first_len(body)?;
    body.advance(LENGTH);
    Some(body.split_to(len))
}

fn first_len(body: &[u8]) -> Option<usize> {
    let len = body.first_chunk::<LENGTH>()?;
    Some(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_back_as_they_were() {
        let items: [&[u8]; 4] = [b"one", b"", b"three", &[7; 300]];
        let mut body = Vec::new();
        for item in items {
            let before = body.len();
            put(&mut body, item, None);
            assert_eq!(body.len() - before, len_of(item, None));
        }
        assert_eq!(check(&body), Ok(()));
        for cut in 1..4 {
            assert!(check(&body[..body.len() - cut]).is_err());
        }
        let mut body = Bytes::from(body);
        for item in items {
            assert_eq!(take(&mut body).as_deref(), Some(item));
        }
        assert_eq!(take(&mut body), None);
    }

    #[test]
    fn a_length_beyond_the_body_is_an_error() {
        assert!(check(&[1, 0, 0]).is_err());
        assert!(check(&[0xff, 0xff, 0xff, 0xff, 1]).is_err());
        assert_eq!(check(&[]), Ok(()));
    }
}
