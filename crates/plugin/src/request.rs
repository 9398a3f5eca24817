//! What a policy sees of calls: views of what the service shows, for the time of a call.

use std::time::Duration;

use starling_call::{Code, Encoding, MetadataError, MethodId};

use crate::abi;

/// Which end of calls an application is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It calls.
    Client,
    /// It is called.
    Server,
}

impl Side {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Client,
            _ => Self::Server,
        }
    }
}

/// A request on its way to the server.
#[derive(Debug)]
pub struct Request<'a> {
    raw: &'a abi::Request,
}

impl<'a> Request<'a> {
    /// # Safety
    /// All that it points to is there for as long as `'a`.
    pub(crate) unsafe fn new(raw: &'a abi::Request) -> Self {
        Self { raw }
    }

    /// The time, in nanoseconds of the service's clock.
    pub fn now_ns(&self) -> u64 {
        self.raw.now_ns
    }

    /// Which call it is: its end has the same number.
    pub fn call(&self) -> u64 {
        self.raw.call
    }

    /// The method.
    pub fn method(&self) -> MethodId {
        MethodId(self.raw.method)
    }

    /// So many that the policy has held are still waiting.
    pub fn held(&self) -> usize {
        self.raw.held as usize
    }

    /// Whose call it is: no other datapath has the number.
    pub fn datapath(&self) -> u64 {
        self.raw.datapath
    }

    /// Which end of the call the application is.
    pub fn side(&self) -> Side {
        Side::of(self.raw.side)
    }

    /// The application's program. Empty: it is not to be seen.
    pub fn program(&self) -> &'a str {
        text(self.raw.program)
    }

    /// The address of the server, as its callers write it.
    pub fn server(&self) -> &'a str {
        text(self.raw.server)
    }

    /// How the body is encoded.
    pub fn encoding(&self) -> Encoding {
        match self.raw.encoding {
            0 => Encoding::Native,
            _ => Encoding::Protobuf,
        }
    }

    /// Whether the body is compressed.
    pub fn is_compressed(&self) -> bool {
        self.raw.compressed != 0
    }

    /// The body, as it came.
    pub fn body(&self) -> &'a [u8] {
        // SAFETY: as `new` was promised.
        unsafe { self.raw.body.as_slice() }
    }

    /// What was left until the deadline when the policy was asked.
    pub fn timeout(&self) -> Option<Duration> {
        let timeout_ns = self.raw.timeout_ns;
        (timeout_ns != abi::NONE).then(|| Duration::from_nanos(timeout_ns))
    }

    /// Has the call end after this time, or without a deadline.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        let to_ns = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(abi::NONE);
        let options = &self.raw.options;
        // SAFETY: the service's function, with its context.
        unsafe { (options.set_timeout)(options.context, timeout.map_or(abi::NONE, to_ns)) }
    }

    /// The first value of a key of the metadata.
    pub fn metadata(&self, key: &str) -> Option<&[u8]> {
        let (options, mut value) = (&self.raw.options, abi::Bytes::of(&[]));
        let key = abi::Bytes::of(key.as_bytes());
        // SAFETY: the service's function, with its context.
        let found = unsafe { (options.value)(options.context, key, &raw mut value) };
        // SAFETY: the service changes metadata only by the functions below, which borrow `self` anew.
        (found != 0).then(|| unsafe { value.as_slice() })
    }

    /// All pairs of the metadata, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let options = &self.raw.options;
        let pair = |number| {
            let (mut key, mut value) = (abi::Bytes::of(&[]), abi::Bytes::of(&[]));
            let context = options.context;
            // SAFETY: the service's function, with its context.
            let found = unsafe { (options.pair)(context, number, &raw mut key, &raw mut value) };
            // SAFETY: as of `metadata`.
            (found != 0).then(|| (text(key), unsafe { value.as_slice() }))
        };
        (0..).map_while(pair)
    }

    /// Adds a pair, behind those that have its key.
    ///
    /// # Errors
    /// If the key is not allowed, or there would be too much metadata.
    pub fn insert(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        let options = &self.raw.options;
        let (key, value) = (abi::Bytes::of(key.as_bytes()), abi::Bytes::of(value));
        // SAFETY: the service's function, with its context.
        added(unsafe { (options.insert)(options.context, key, value) })
    }

    /// Adds a pair, in place of those that have its key.
    ///
    /// # Errors
    /// If the key is not allowed, or there would be too much metadata.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        let options = &self.raw.options;
        let (key, value) = (abi::Bytes::of(key.as_bytes()), abi::Bytes::of(value));
        // SAFETY: the service's function, with its context.
        added(unsafe { (options.set)(options.context, key, value) })
    }

    /// Removes the pairs of a key. Returns whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let options = &self.raw.options;
        // SAFETY: the service's function, with its context.
        unsafe { (options.remove)(options.context, abi::Bytes::of(key.as_bytes())) != 0 }
    }
}

fn added(number: u32) -> Result<(), MetadataError> {
    match number {
        abi::ADDED => Ok(()),
        abi::WRONG_KEY => Err(MetadataError::Key),
        _ => Err(MetadataError::TooLarge),
    }
}

/// A call that the policy let pass is over.
#[derive(Debug)]
pub struct End<'a> {
    raw: &'a abi::End,
}

impl<'a> End<'a> {
    /// # Safety
    /// All that it points to is there for as long as `'a`.
    pub(crate) unsafe fn new(raw: &'a abi::End) -> Self {
        Self { raw }
    }

    /// The time, in nanoseconds of the service's clock.
    pub fn now_ns(&self) -> u64 {
        self.raw.now_ns
    }

    /// Which call it was.
    pub fn call(&self) -> u64 {
        self.raw.call
    }

    /// The method.
    pub fn method(&self) -> MethodId {
        MethodId(self.raw.method)
    }

    /// How it ended. `Cancelled`: that says nothing of its server.
    pub fn code(&self) -> Code {
        let code = u8::try_from(self.raw.code).ok().and_then(Code::from_u8);
        code.unwrap_or(Code::Unknown)
    }

    /// When it came to the first policy, in nanoseconds of the same clock.
    pub fn since_ns(&self) -> u64 {
        self.raw.since_ns
    }

    /// Bytes of its request.
    pub fn request_bytes(&self) -> usize {
        self.raw.request_bytes as usize
    }

    /// Bytes of its response, if there was one.
    pub fn response_bytes(&self) -> Option<usize> {
        let bytes = self.raw.response_bytes;
        (bytes != abi::NONE).then_some(bytes as usize)
    }

    /// Whose call it was.
    pub fn datapath(&self) -> u64 {
        self.raw.datapath
    }

    /// Which end of the call the application is.
    pub fn side(&self) -> Side {
        Side::of(self.raw.side)
    }

    /// The application's program.
    pub fn program(&self) -> &'a str {
        text(self.raw.program)
    }

    /// The address of the server.
    pub fn server(&self) -> &'a str {
        text(self.raw.server)
    }
}

/// A text of the service, for the time that its view has.
fn text<'a>(bytes: abi::Bytes) -> &'a str {
    // SAFETY: as the view's `new` was promised.
    let bytes = unsafe { bytes.as_slice() };
    std::str::from_utf8(bytes).unwrap_or_default()
}
