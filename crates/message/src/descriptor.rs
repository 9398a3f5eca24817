//! Service descriptors, which generated code provides.

use crate::layout::MessageLayout;

/// Where a method's handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In the dispatch thread, to completion: for handlers of at most a few microseconds.
    Inline,
    /// In a worker thread: for handlers that compute or block for longer.
    Worker,
    /// In the dispatch thread, with a later answer: for handlers that wait for calls of their own.
    Nested,
}

/// A method of a service: a static table made by generated code.
#[derive(Debug)]
pub struct MethodDescriptor {
    /// The path that gRPC uses: `/kv.Kv/Get`.
    pub path: &'static str,
    /// [`method_id`] of the path, unique in its service.
    pub id: u32,
    /// Where its handler runs unless the server says otherwise.
    pub mode: Mode,
    /// The request's layout.
    pub request: &'static MessageLayout,
    /// The response's layout.
    pub response: &'static MessageLayout,
    /// The client sends a stream of requests.
    pub client_streaming: bool,
    /// The server sends a stream of responses.
    pub server_streaming: bool,
    /// A call that runs twice does no more than one that runs once: `option idempotency_level` of protobuf says
    /// so (`IDEMPOTENT`, or `NO_SIDE_EFFECTS`).
    pub idempotent: bool,
}

/// A service: a static table made by generated code.
#[derive(Debug)]
pub struct ServiceDescriptor {
    /// Full name: `kv.Kv`.
    pub name: &'static str,
    /// Its methods, in the order of the `.proto` file.
    pub methods: &'static [MethodDescriptor],
    /// Equal on both sides if every message has the same layout. See [`crate::schema`].
    pub schema_hash: u64,
    /// The compact form that peers with different hashes exchange. See [`crate::schema`].
    pub schema: &'static [u8],
    /// An encoded `google.protobuf.FileDescriptorSet` with all that the service needs, for reflection.
    pub file_descriptor_set: &'static [u8],
}

/// The method id: the number of a method on the wire. It is the 64-bit FNV-1a hash of the method's
/// path, with its halves combined by exclusive or.
pub fn method_id(path: &str) -> u32 {
    let hash = fnv1a(path.as_bytes());
    (hash ^ (hash >> 32)) as u32
}

/// The index of a method by its name in the `.proto` file. Its handler must not be a nested one.
///
/// # Panics
/// If there is no such method, its handler is nested, or it has streams.
#[doc(hidden)]
pub fn method_index(service: &ServiceDescriptor, name: &str) -> usize {
    let named = |method: &MethodDescriptor| method.path.rsplit('/').next() == Some(name);
    let index = service.methods.iter().position(named);
    let index = index.unwrap_or_else(|| panic!("{} has no method {name}", service.name));
    let method = &service.methods[index];
    assert!(
        !method.client_streaming && !method.server_streaming,
        "{}.{name} has streams: its .proto file says where it runs",
        service.name
    );
    assert!(
        method.mode != Mode::Nested,
        "{}.{name} is nested: it always runs in the dispatch thread",
        service.name
    );
    index
}

/// 64-bit FNV-1a: short, well known, the same everywhere. Hand-made because it is four lines. It
/// guards against mistakes, not against attacks: no code trusts bytes because their hash is right.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_its_published_vectors() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
