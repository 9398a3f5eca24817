//! Key-value pairs beside a message, such as the caller's name, a trace or a tenant.
//!
//! They are kept in their wire format (fields of the call header, see [`crate::header`]), so that
//! sending is a copy and receiving reads the datagram in place.

use std::fmt;

use crate::field::{
    Field, Fields, MAX_METADATA, is_lone_stream, key_is_valid, metadata_field_len, put_metadata,
};

/// Why a pair was not added.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The key is empty, too long or has a character that is not allowed.
    #[error("a metadata key is 1 to 255 characters of a-z, 0-9, '-', '_' and '.'")]
    Key,
    /// All pairs together would be longer than [`MAX_METADATA`].
    #[error("metadata of one message is at most {MAX_METADATA} bytes; send more in the message")]
    TooLarge,
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Metadata to send, or a copy of received metadata. At most [`MAX_METADATA`] bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    fields: Vec<u8>,
}

impl Metadata {
    /// No metadata. Does not allocate.
    pub const fn new() -> Self {
        Self { fields: Vec::new() }
    }

    /// Adds a pair. A key may occur more than once.
    ///
    /// # Errors
    /// If the key is not allowed, or the metadata would be too long; nothing is added then.
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        let value = value.as_ref();
        if !key_is_valid(key.as_bytes()) {
            return Err(MetadataError::Key);
        }
        if self.fields.len() + metadata_field_len(key, value) > MAX_METADATA {
            return Err(MetadataError::TooLarge);
        }
        put_metadata(&mut self.fields, key, value);
        Ok(())
    }

    /// Adds the pairs of another one, behind its own.
    ///
    /// # Errors
    /// If the metadata would be too long; nothing is added then.
    pub fn extend(&mut self, other: &Self) -> Result<(), MetadataError> {
        if self.fields.len() + other.fields.len() > MAX_METADATA {
            return Err(MetadataError::TooLarge);
        }
        self.fields.extend_from_slice(&other.fields);
        Ok(())
    }

    /// Adds a pair in place of all that have its key.
    ///
    /// # Errors
    /// If the key is not allowed, or the metadata would be too long; nothing is changed then.
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), MetadataError> {
        let mut rest = self.clone();
        rest.remove(key);
        rest.insert(key, value)?;
        *self = rest;
        Ok(())
    }

    /// Removes all pairs with this key. Returns whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let mut rest = Self::new();
        for (own, value) in self.view().iter().filter(|(own, _)| *own != key) {
            put_metadata(&mut rest.fields, own, value);
        }
        let removed = rest.fields.len() < self.fields.len();
        *self = rest;
        removed
    }

    /// The pairs, as a view like that of received metadata.
    pub fn view(&self) -> MetadataView<'_> {
        MetadataView {
            fields: &self.fields,
        }
    }

    /// The first value with this key.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        self.view().value(key)
    }

    /// Whether there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    pub(crate) fn as_fields(&self) -> &[u8] {
        &self.fields
    }
}

/// Metadata of a received message, read in place.
#[derive(Clone, Copy, Default)]
pub struct MetadataView<'a> {
    /// Fields of an extension that was validated as a whole; other fields are skipped.
    fields: &'a [u8],
}

impl<'a> MetadataView<'a> {
    /// The metadata among the fields of an extension that was validated as a whole.
    pub fn of_extension(fields: &'a [u8]) -> Self {
        Self { fields }
    }

    /// The pairs in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        Fields::new(self.fields).filter_map(|field| match field {
            Ok(Field::Metadata { key, value }) => Some((key, value)),
            _ => None,
        })
    }

    /// The first value with this key.
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Whether the message came without an extension, as most do: then there are no pairs.
    #[inline]
    pub fn has_no_extension(&self) -> bool {
        self.fields.is_empty()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether these are the pairs of `metadata`, in the same order.
    pub fn is_equal(&self, metadata: &Metadata) -> bool {
        self.fields == metadata.fields || self.iter().eq(metadata.view().iter())
    }

    /// A copy that outlives the message.
    pub fn to_owned(&self) -> Metadata {
        if is_lone_stream(self.fields) {
            return Metadata::default();
        }
        let mut fields = Vec::new();
        for (key, value) in self.iter() {
            put_metadata(&mut fields, key, value);
        }
        Metadata { fields }
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl fmt::Debug for MetadataView<'_> {
    /// Keys and values. A value that is not UTF-8 appears as its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in self.iter() {
            match std::str::from_utf8(value) {
                Ok(text) => map.entry(&key, &text),
                Err(_) => map.entry(&key, &value),
            };
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_is_set_replaces_those_with_its_key() {
        let mut metadata = Metadata::new();
        for (key, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
            metadata.insert(key, value).unwrap();
        }
        metadata.set("a", "4").unwrap();
        let pairs: Vec<_> = metadata.view().iter().collect();
        assert_eq!(pairs, [("b", &b"2"[..]), ("a", &b"4"[..])]);
        assert_eq!(
            metadata.set("b", vec![0; MAX_METADATA]),
            Err(MetadataError::TooLarge)
        );
        assert_eq!(metadata.set("B", ""), Err(MetadataError::Key));
        assert_eq!(metadata.value("b"), Some(&b"2"[..]));
        assert!(metadata.remove("b") && !metadata.remove("b"));
        assert!(metadata.remove("a") && metadata.is_empty());
    }

    #[test]
    fn pairs_come_back_in_order() {
        let mut metadata = Metadata::new();
        metadata.insert("trace-id", "17").unwrap();
        metadata.insert("b.in_1", [0u8, 255]).unwrap();
        metadata.insert("trace-id", "18").unwrap();
        let pairs: Vec<_> = metadata.view().iter().collect();
        assert_eq!(
            pairs,
            [
                ("trace-id", &b"17"[..]),
                ("b.in_1", &[0, 255][..]),
                ("trace-id", &b"18"[..])
            ]
        );
        assert_eq!(metadata.value("trace-id"), Some(&b"17"[..]));
        assert_eq!(metadata.value("none"), None);
        assert_eq!(metadata.view().to_owned(), metadata);
        assert!(metadata.view().is_equal(&metadata.clone()));
        assert!(!metadata.view().is_equal(&Metadata::new()));
        let shown = r#"{"trace-id": "17", "b.in_1": [0, 255], "trace-id": "18"}"#;
        assert_eq!(format!("{metadata:?}"), shown);
    }

    #[test]
    fn bad_keys_and_too_much_are_refused_and_change_nothing() {
        let mut metadata = Metadata::new();
        for key in ["", "Upper", "space d", "é", &"k".repeat(256)] {
            assert_eq!(metadata.insert(key, "v"), Err(MetadataError::Key));
        }
        assert!(metadata.is_empty());
        let big = vec![0u8; MAX_METADATA];
        assert_eq!(metadata.insert("k", &big), Err(MetadataError::TooLarge));
        let overhead = metadata_field_len("k", &[]);
        metadata.insert("k", &big[overhead..]).unwrap();
        assert_eq!(metadata.insert("k", ""), Err(MetadataError::TooLarge));
    }
}
