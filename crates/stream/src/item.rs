//! How items lie in a message's body: each is its length, a little-endian u32, and its bytes.

use std::ops::Range;

use bytes::Bytes;

/// Bytes in front of each item, which say how long it is.
pub const LENGTH: usize = 4;

/// A body is not a series of items: another one does not fit in what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the last {left} bytes of a message are no item")]
pub struct ItemError {
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
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, head: &[u8], tail: Option<&Bytes>) {
    out.extend_from_slice(&length_of(head.len() + tail.map_or(0, Bytes::len)));
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
    let len = out.len() - at - LENGTH;
    out[at..at + LENGTH].copy_from_slice(&length_of(len));
    Ok(())
}

/// Says how long the item is that begins behind these bytes, of which the last [`LENGTH`] are for that.
///
/// # Panics
/// If it has 4 GiB or more.
#[inline]
pub fn set_length(front: &mut [u8], len: usize) {
    let place = front.last_chunk_mut().expect("room for the length");
    *place = length_of(len);
}

#[inline]
fn length_of(len: usize) -> [u8; LENGTH] {
    u32::try_from(len).expect("less than 4 GiB").to_le_bytes()
}

/// The items of a body, from the first that was not taken on. They are checked as they are taken.
#[derive(Clone, Debug, Default)]
pub struct Items {
    body: Bytes,
    at: usize,
}

impl Items {
    /// The items of a body.
    pub fn new(body: Bytes) -> Self {
        Self { body, at: 0 }
    }

    /// Whether all were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.body.len()
    }

    /// Takes the next item: its place in [`Items::body`].
    ///
    /// # Errors
    /// If what is left is no item.
    #[inline]
    pub fn next_range(&mut self) -> Result<Option<Range<usize>>, ItemError> {
        let mut slices = self.slices();
        let Some(item) = slices.next() else {
            return slices.finish().map(|()| None);
        };
        let begin = self.at + LENGTH;
        self.at = begin + item.len();
        Ok(Some(begin..self.at))
    }

    /// One item, in memory of its own.
    ///
    /// # Panics
    /// If it has 4 GiB or more.
    pub fn one(item: &[u8]) -> Self {
        let mut body = Vec::with_capacity(LENGTH + item.len());
        put(&mut body, item, None);
        Self::new(Bytes::from(body))
    }

    /// Takes the next item, where it lies, as the only one of the result.
    ///
    /// # Errors
    /// If what is left is no item.
    pub fn take_one(&mut self) -> Result<Option<Self>, ItemError> {
        let begin = self.at;
        let place = self.next_range()?;
        Ok(place.map(|place| Self::new(self.body.slice(begin..place.end))))
    }

    /// The body that the items lie in.
    #[inline]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The items that were not taken, where they lie.
    #[inline]
    pub fn slices(&self) -> ItemSlices<'_> {
        ItemSlices(self.body.get(self.at..).unwrap_or_default())
    }
}

/// Ends where the body does, or where it is no item.
impl Iterator for Items {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let range = self.next_range().ok()??;
        Some(self.body.slice(range))
    }
}

/// Items where they lie. It ends where the body does, or where it is no item.
#[derive(Clone, Debug)]
pub struct ItemSlices<'a>(&'a [u8]);

impl<'a> ItemSlices<'a> {
    /// The items of these bytes.
    pub fn new(items: &'a [u8]) -> Self {
        Self(items)
    }

    /// Whether it ended where the body does.
    ///
    /// # Errors
    /// If not.
    #[inline]
    pub fn finish(&self) -> Result<(), ItemError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(ItemError { left }),
        }
    }
}

impl<'a> Iterator for ItemSlices<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<LENGTH>()?;
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(item)
    }
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
        let mut written = Vec::new();
        for item in items {
            written.extend_from_slice(&[0; LENGTH]);
            set_length(&mut written, item.len());
            written.extend_from_slice(item);
        }
        assert_eq!(written, body);
        let mut received = Items::new(Bytes::from(body));
        assert!(received.slices().eq(items));
        let first = received.take_one().unwrap().unwrap();
        assert!(first.slices().eq(items[..1].iter().copied()));
        assert_eq!(first.body(), Items::one(b"one").body());
        assert!(received.slices().eq(items[1..].iter().copied()));
        assert!(received.eq(&items[1..]));
    }

    #[test]
    fn what_is_no_item_is_an_error() {
        for body in [
            &[1, 0, 0][..],
            &[0xff, 0xff, 0xff, 0xff, 1],
            &[2, 0, 0, 0, 7],
        ] {
            let left = Err(ItemError { left: body.len() });
            let mut items = Items::new(Bytes::copy_from_slice(body));
            assert_eq!(items.next_range(), left.map(|()| None));
            assert_eq!(items.next(), None);
            let mut slices = items.slices();
            assert_eq!(slices.next(), None);
            assert_eq!(slices.finish(), left);
        }
        assert_eq!(Items::default().next_range(), Ok(None));
        assert!(Items::default().is_empty());
    }
}
