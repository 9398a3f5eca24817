//! What a plug-in gets in hand during a call: where it leaves texts, and what it may read and change of a request.
//!
//! Lengths, keys and texts are checked: a plug-in in error is told so, or fails. Its addresses cannot be.

use std::ffi::c_void;
use std::time::Duration;

use starling_call::{CallOptions, MetadataError};
use starling_plugin::abi;

/// The longest key of metadata.
const MAX_KEY: usize = 255;
/// The longest metadata.
const MAX_VALUE: usize = 8192;

/// What a plug-in has left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) bytes: Vec<u8>,
    most: usize,
    /// It wanted to leave so many.
    pub(crate) too_many: Option<usize>,
}

impl Left {
    /// Nothing yet, and this many bytes at most.
    pub(crate) fn at_most(most: usize) -> Self {
        Self {
            bytes: Vec::new(),
            most,
            too_many: None,
        }
    }

    pub(crate) fn sink(&mut self) -> abi::Sink {
        abi::Sink {
            context: std::ptr::from_mut(self).cast(),
            write,
        }
    }

    /// As a text to read, whatever it is.
    pub(crate) fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let is_odd = |c: char| c.is_control() && c != '\n';
        text.replace(is_odd, "\u{fffd}").replace('\n', " ")
    }
}

unsafe extern "C" fn write(context: *mut c_void, bytes: abi::Bytes) {
    // SAFETY: the context of `sink`, of a call that is not over.
    let left = unsafe { &mut *context.cast::<Left>() };
    let room = left.most - left.bytes.len();
    if bytes.len > room || (bytes.data.is_null() && bytes.len > 0) {
        left.too_many = Some(left.bytes.len().saturating_add(bytes.len));
        return;
    }
    // SAFETY: the plug-in shows them for the time of this call.
    left.bytes.extend_from_slice(unsafe { bytes.as_slice() });
}

/// What a policy may read and change of a call, for as long as these options are there and nobody else uses them.
pub(crate) fn options(of: &mut CallOptions) -> abi::Options {
    abi::Options {
        context: std::ptr::from_mut(of).cast(),
        value,
        pair,
        insert,
        set,
        remove,
        set_timeout,
    }
}

/// # Safety
/// The context of [`options`], and nobody changes the options meanwhile.
unsafe fn read<'a>(context: *mut c_void) -> &'a CallOptions {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<CallOptions>() }
}

/// # Safety
/// The context of [`options`], and nobody else uses the options meanwhile.
unsafe fn options_of<'a>(context: *mut c_void) -> &'a mut CallOptions {
    // SAFETY: the caller's promise.
    unsafe { &mut *context.cast::<CallOptions>() }
}

/// A key, if it can be one.
///
/// # Safety
/// If its length is possible, it is there.
unsafe fn key_of<'a>(bytes: abi::Bytes) -> Option<&'a str> {
    if bytes.len > MAX_KEY || bytes.data.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { bytes.as_slice() }).ok()
}

unsafe extern "C" fn value(context: *mut c_void, key: abi::Bytes, found: *mut abi::Bytes) -> u32 {
    // SAFETY: the plug-in gives the context, and shows the key, for the time of this call.
    let (options, key) = unsafe { (read(context), key_of(key)) };
    match key.and_then(|key| options.metadata.value(key)) {
        Some(value) => {
            // SAFETY: the plug-in's.
            unsafe { found.write(abi::Bytes::of(value)) };
            1
        }
        None => 0,
    }
}

unsafe extern "C" fn pair(
    context: *mut c_void,
    number: u64,
    key: *mut abi::Bytes,
    value: *mut abi::Bytes,
) -> u32 {
    // SAFETY: the plug-in gives the context for the time of this call.
    let options = unsafe { read(context) };
    let pairs = options.metadata.view();
    let number = usize::try_from(number).unwrap_or(usize::MAX);
    match pairs.iter().nth(number) {
        Some((of, with)) => {
            // SAFETY: the plug-in's.
            unsafe { key.write(abi::Bytes::of(of.as_bytes())) };
            // SAFETY: the plug-in's.
            unsafe { value.write(abi::Bytes::of(with)) };
            1
        }
        None => 0,
    }
}

unsafe extern "C" fn insert(context: *mut c_void, key: abi::Bytes, value: abi::Bytes) -> u32 {
    // SAFETY: the plug-in gives the context, and shows the pair, for the time of this call.
    unsafe {
        add(context, key, value, |options, key, value| {
            options.metadata.insert(key, value)
        })
    }
}

unsafe extern "C" fn set(context: *mut c_void, key: abi::Bytes, value: abi::Bytes) -> u32 {
    // SAFETY: the plug-in gives the context, and shows the pair, for the time of this call.
    unsafe {
        add(context, key, value, |options, key, value| {
            options.metadata.set(key, value)
        })
    }
}

/// # Safety
/// As of [`options_of`] and [`key_of`].
unsafe fn add(
    context: *mut c_void,
    key: abi::Bytes,
    value: abi::Bytes,
    by: fn(&mut CallOptions, &str, &[u8]) -> Result<(), MetadataError>,
) -> u32 {
    // SAFETY: the caller's promise.
    let Some(key) = (unsafe { key_of(key) }) else {
        return abi::WRONG_KEY;
    };
    if value.len > MAX_VALUE || (value.data.is_null() && value.len > 0) {
        return abi::TOO_LARGE;
    }
    // What it shows may lie in the options themselves, which move when they grow.
    // SAFETY: the caller's promise.
    let (key, value) = (key.to_owned(), unsafe { value.as_slice() }.to_vec());
    // SAFETY: the caller's promise.
    let added = unsafe { by(options_of(context), &key, &value) };
    match added {
        Ok(()) => abi::ADDED,
        Err(MetadataError::Key) => abi::WRONG_KEY,
        Err(MetadataError::TooLarge) => abi::TOO_LARGE,
    }
}

unsafe extern "C" fn remove(context: *mut c_void, key: abi::Bytes) -> u32 {
    // It may lie in the options themselves.
    // SAFETY: the plug-in shows the key for the time of this call.
    let key = unsafe { key_of(key) }.map(str::to_owned);
    // SAFETY: the plug-in gives the context for the time of this call.
    let options = unsafe { options_of(context) };
    key.is_some_and(|key| options.metadata.remove(&key)).into()
}

unsafe extern "C" fn set_timeout(context: *mut c_void, timeout_ns: u64) {
    // SAFETY: the plug-in gives the context for the time of this call.
    let options = unsafe { options_of(context) };
    let timeout = (timeout_ns != abi::NONE).then(|| Duration::from_nanos(timeout_ns));
    options.timeout = timeout;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none_of(len: usize) -> abi::Bytes {
        let data = std::ptr::null();
        abi::Bytes { data, len }
    }

    #[test]
    fn what_is_left_has_a_bound() {
        let mut left = Left::at_most(4);
        let sink = left.sink();
        let put = |bytes| {
            // SAFETY: the sink's context is there.
            unsafe { (sink.write)(sink.context, bytes) };
        };
        put(abi::Bytes::of(b"a\x1bb"));
        for wrong in [abi::Bytes::of(b"cd"), none_of(usize::MAX), none_of(1)] {
            put(wrong);
        }
        put(none_of(0));
        assert_eq!(
            (left.text().as_str(), left.too_many),
            ("a\u{fffd}b", Some(4))
        );
    }

    #[test]
    fn metadata_of_a_plugin_is_checked() {
        let mut of = CallOptions::default();
        let options = options(&mut of);
        let insert = |key: abi::Bytes, value: abi::Bytes| {
            // SAFETY: the context is there.
            unsafe { (options.insert)(options.context, key, value) }
        };
        let (key, value) = (abi::Bytes::of(b"key"), abi::Bytes::of(b"value"));
        assert_eq!(insert(key, value), abi::ADDED);
        assert_eq!(insert(key, none_of(0)), abi::ADDED);
        let wrong = [&b"Key"[..], b"\xff", b"", &[b'k'; 300]];
        for wrong in wrong
            .map(abi::Bytes::of)
            .into_iter()
            .chain([none_of(3), none_of(0)])
        {
            assert_eq!(insert(wrong, value), abi::WRONG_KEY, "{wrong:?}");
        }
        for wrong in [none_of(1), none_of(usize::MAX), abi::Bytes::of(&[0; 8192])] {
            assert_eq!(insert(key, wrong), abi::TOO_LARGE, "{wrong:?}");
        }
        let pairs: Vec<_> = of.metadata.view().iter().collect();
        assert_eq!(pairs, [("key", &b"value"[..]), ("key", b"")]);
    }
}
