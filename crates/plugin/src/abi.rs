//! What crosses between a service and a plug-in: plain data, and never Rust objects. Memory belongs to the side that
//! made it; the other reads it during the call that shows it, and copies what it keeps.
//!
//! A service takes a table of its own [`VERSION`] and [`LAYOUT`] only. The header of a table stays as it is in all
//! versions, so that a service can tell what it does not take.

use std::ffi::c_void;
use std::mem::offset_of;

/// What a table begins with.
pub const MAGIC: [u8; 8] = *b"STARPLUG";
/// Of all that is in this module. A change of a meaning that the layout does not show raises it, too.
pub const VERSION: u32 = 1;
/// The name of the table in a library.
pub const SYMBOL: &str = "STARLING_POLICY_PLUGIN";

/// The call of a function has succeeded.
pub const DONE: u32 = 0;
/// It has not, and the text says why.
pub const FAILED: u32 = 1;
/// It has panicked, and the text says with what.
pub const PANICKED: u32 = 2;

/// Bytes of a text that a service takes, at most. States may be longer.
pub const MAX_TEXT: usize = 4096;

/// There is no such time, or no such number.
pub const NONE: u64 = u64::MAX;

/// Declares structs of this interface, each with a hash of its layout.
macro_rules! interface {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $($(#[$of])* pub $field: $type,)* }
        )*

        /// A hash of the layouts of all structs: names, fields, offsets, sizes.
        pub const LAYOUT: u64 = {
            let mut hash = 0xcbf2_9ce4_8422_2325;
            $(
                hash = hash_text(hash, stringify!($name));
                $(
                    hash = hash_text(hash, stringify!($field));
                    hash = hash_number(hash, offset_of!($name, $field));
                    hash = hash_number(hash, size_of::<$type>());
                )*
                hash = hash_number(hash, size_of::<$name>());
            )*
            hash
        };
    };
}

interface! {
    /// Bytes of the side that shows them.
    pub struct Bytes {
        /// Where. Anything, if there are none.
        pub data: *const u8,
        /// How many.
        pub len: usize,
    }

    /// Where a plug-in leaves a text or a state: the service copies it.
    pub struct Sink {
        /// The service's.
        pub context: *mut c_void,
        /// Adds bytes.
        pub write: unsafe extern "C" fn(context: *mut c_void, bytes: Bytes),
    }

    /// What a policy reads and changes of a call, by functions of the service.
    pub struct Options {
        /// The service's.
        pub context: *mut c_void,
        /// The first value with a key. Returns 1 if there is one, else 0.
        pub value: unsafe extern "C" fn(context: *mut c_void, key: Bytes, value: *mut Bytes) -> u32,
        /// The pair of this number, from 0. Returns 1 if there is one, else 0.
        pub pair: unsafe extern "C" fn(context: *mut c_void, number: u64, key: *mut Bytes, value: *mut Bytes) -> u32,
        /// Adds a pair, behind those that have its key. Returns one of [`ADDED`] and what follows it.
        pub insert: unsafe extern "C" fn(context: *mut c_void, key: Bytes, value: Bytes) -> u32,
        /// Adds a pair, in place of those that have its key. Returns one of [`ADDED`] and what follows it.
        pub set: unsafe extern "C" fn(context: *mut c_void, key: Bytes, value: Bytes) -> u32,
        /// Removes the pairs of a key. Returns 1 if there was one, else 0.
        pub remove: unsafe extern "C" fn(context: *mut c_void, key: Bytes) -> u32,
        /// Has the call end so many nanoseconds from now. [`NONE`]: without a deadline.
        pub set_timeout: unsafe extern "C" fn(context: *mut c_void, timeout_ns: u64),
    }

    /// A request on its way to the server.
    pub struct Request {
        /// In nanoseconds of the service's clock.
        pub now_ns: u64,
        /// Its end has the same number.
        pub call: u64,
        /// What is left until its deadline. [`NONE`]: it has none.
        pub timeout_ns: u64,
        /// So many that the policy has held are waiting.
        pub held: u64,
        /// No other datapath has it.
        pub datapath: u64,
        /// The method's number.
        pub method: u32,
        /// 0: the application calls. 1: it is called.
        pub side: u32,
        /// 0: the native layout. 1: protobuf.
        pub encoding: u32,
        /// 0: the body is as it was written. Else: compressed.
        pub compressed: u32,
        /// The application's program.
        pub program: Bytes,
        /// The address of the server.
        pub server: Bytes,
        /// The body, as it came.
        pub body: Bytes,
        /// What the policy may change.
        pub options: Options,
    }

    /// A call that a policy let pass is over.
    pub struct End {
        /// In nanoseconds of the service's clock.
        pub now_ns: u64,
        /// As its request.
        pub call: u64,
        /// When it came to the first policy.
        pub since_ns: u64,
        /// Bytes of the request.
        pub request_bytes: u64,
        /// Bytes of the response. [`NONE`]: there was none.
        pub response_bytes: u64,
        /// As its request.
        pub datapath: u64,
        /// As its request.
        pub method: u32,
        /// As its request.
        pub side: u32,
        /// The status code's number.
        pub code: u32,
        /// Nothing.
        pub reserved: u32,
        /// As its request.
        pub program: Bytes,
        /// As its request.
        pub server: Bytes,
    }

    /// What becomes of a request.
    pub struct Verdict {
        /// One of [`PASS`] and what follows it.
        pub kind: u32,
        /// Of a refusal: the status code's number. The text is in the sink.
        pub code: u32,
        /// Of a request that is held: until when.
        pub until_ns: u64,
    }

    /// A kind of policies. Each function takes an instance that `build` made and `destroy` did not end, from one thread
    /// at a time, leaves a text in the sink if it returns something else than [`DONE`], and does not unwind.
    pub struct Kind {
        /// As operators write it.
        pub name: Bytes,
        /// What it does, in a line.
        pub summary: Bytes,
        /// Settings to begin with, in JSON.
        pub example: Bytes,
        /// The version of the states that it saves, and the newest that it reads. 0: it has none.
        pub state_version: u32,
        /// Nothing.
        pub reserved: u32,
        /// Makes an instance, by settings in JSON.
        pub build: Option<unsafe extern "C" fn(settings: Bytes, instance: *mut *mut c_void, text: Sink) -> u32>,
        /// Ends an instance.
        pub destroy: Option<unsafe extern "C" fn(instance: *mut c_void, text: Sink) -> u32>,
        /// Decides about a request.
        pub on_request: Option<
            unsafe extern "C" fn(instance: *mut c_void, request: *const Request, verdict: *mut Verdict, text: Sink)
                -> u32,
        >,
        /// Takes in the end of a call.
        pub on_end: Option<unsafe extern "C" fn(instance: *mut c_void, end: *const End, text: Sink) -> u32>,
        /// Leaves the state in the sink.
        pub save: Option<unsafe extern "C" fn(instance: *mut c_void, state: Sink) -> u32>,
        /// Goes on with a state.
        pub restore: Option<unsafe extern "C" fn(instance: *mut c_void, version: u32, state: Bytes, text: Sink) -> u32>,
    }

    /// How each table begins, of whatever version.
    pub struct Header {
        /// [`MAGIC`].
        pub magic: [u8; 8],
        /// [`VERSION`].
        pub version: u32,
        /// Bytes of the table.
        pub size: u32,
        /// [`LAYOUT`].
        pub layout: u64,
    }

    /// What a library exports by the name [`SYMBOL`].
    pub struct Table {
        /// Checked before anything else is read.
        pub header: Header,
        /// Of the plug-in.
        pub name: Bytes,
        /// Of the plug-in.
        pub version: Bytes,
        /// The kinds.
        pub kinds: *const Kind,
        /// How many.
        pub kinds_len: usize,
    }
}

/// [`Verdict::kind`]: the request goes on.
pub const PASS: u32 = 0;
/// It goes on later.
pub const HOLD: u32 = 1;
/// It goes on behind those that do not wait.
pub const BEHIND: u32 = 2;
/// It ends, and did not run.
pub const REFUSE: u32 = 3;

/// [`Options::insert`], [`Options::set`]: the pair is added.
pub const ADDED: u32 = 0;
/// The key is not allowed.
pub const WRONG_KEY: u32 = 1;
/// There would be too much metadata.
pub const TOO_LARGE: u32 = 2;

// SAFETY: a table is never written, and all that it points to is static.
unsafe impl Sync for Table {}

impl Bytes {
    /// Those of a slice, for as long as it is there.
    pub const fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// They are there, and nobody changes them, for as long as `'a`.
    pub unsafe fn as_slice<'a>(self) -> &'a [u8] {
        match self.len {
            0 => &[],
            // SAFETY: the caller's promise.
            len => unsafe { std::slice::from_raw_parts(self.data, len) },
        }
    }
}

impl Header {
    /// That of this version.
    pub const CURRENT: Self = Self {
        magic: MAGIC,
        version: VERSION,
        size: size_of::<Table>() as u32,
        layout: LAYOUT,
    };
}

impl Table {
    /// The table of a plug-in.
    pub const fn new(name: &'static str, version: &'static str, kinds: &'static [Kind]) -> Self {
        Self {
            header: Header::CURRENT,
            name: Bytes::of(name.as_bytes()),
            version: Bytes::of(version.as_bytes()),
            kinds: kinds.as_ptr(),
            kinds_len: kinds.len(),
        }
    }
}

/// FNV-1a.
const fn hash_byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

const fn hash_text(mut hash: u64, text: &str) -> u64 {
    let mut index = 0;
    while index < text.len() {
        hash = hash_byte(hash, text.as_bytes()[index]);
        index += 1;
    }
    hash_byte(hash, 0)
}

const fn hash_number(hash: u64, number: usize) -> u64 {
    let (low, high) = (number as u8, (number >> 8) as u8);
    hash_byte(hash_byte(hash, low), high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, plug-ins of before are refused for their layout. Raise [`VERSION`], so that they hear why.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn the_layout_of_this_version_is_as_it_was() {
        assert_eq!((VERSION, LAYOUT), (1, 4_930_539_621_351_867_909));
        assert_eq!(size_of::<Header>(), 24);
        assert_eq!(offset_of!(Table, header), 0);
    }
}
