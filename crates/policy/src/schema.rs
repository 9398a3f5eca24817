//! Methods as their servers have them: what policies read messages by.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_call::Status;
use starling_message::schema::{OwnedMethod, Schema, SchemaError};
use starling_message::{FieldChecks, LayoutRef, Reader};

/// A method of a schema.
pub struct PolicyMethod {
    number: u64,
    method: OwnedMethod,
    /// The compact form of its part of the schema.
    bytes: Vec<u8>,
}

/// Methods that share messages have each their own: all together have at most so many bytes.
const MAX_BYTES: usize = 4 << 20;

/// Of all methods of this process.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl PolicyMethod {
    /// All methods of a schema.
    ///
    /// # Errors
    /// If it is none, or too large.
    pub fn all_of(schema: &Schema) -> Result<Vec<Self>, SchemaError> {
        // Each has its own part, which goes when that method is known no more.
        let mut all = Vec::new();
        let mut bytes = 0;
        for method in &schema.methods {
            let part = schema.of_method(&method.path);
            let method = Self::new(&part.ok_or(SchemaError::Malformed("no such message"))?)?;
            bytes += method.bytes.len();
            if bytes > MAX_BYTES {
                return Err(SchemaError::TooLarge {
                    what: "bytes in the parts of its methods",
                    most: MAX_BYTES,
                });
            }
            all.push(method);
        }
        Ok(all)
    }

    /// The only method of a schema.
    fn new(schema: &Schema) -> Result<Self, SchemaError> {
        let none = SchemaError::Malformed("it has no method");
        let method = schema.owned_methods()?.pop().ok_or(none)?;
        Ok(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            method,
            bytes: schema.to_bytes(),
        })
    }

    /// Its path: `/kv.Kv/Get`.
    pub fn path(&self) -> &str {
        &self.method.path
    }

    /// The request's layout.
    pub fn request(&self) -> LayoutRef<'_> {
        self.method.request()
    }

    /// Its part of the schema, in compact form. Methods with the same one are the same, names included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the requests or the responses are streams.
    pub fn is_streaming(&self) -> bool {
        self.method.client_streaming || self.method.server_streaming
    }

    /// What refuses a request of the method that is not what it should be.
    #[cold]
    pub fn malformed(&self, problem: &dyn fmt::Display) -> Status {
        let path = self.path();
        Status::invalid_argument(format!(
            "the client's request of {path} is malformed: {problem}; the call did not run"
        ))
    }

    /// Tells it from all others of this process, those of the same path included.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Debug for PolicyMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyMethod").field(&self.path()).finish()
    }
}

/// A request as a message: a copy that no application can change any more.
#[derive(Clone, Copy)]
pub struct PolicyMessage<'a> {
    method: &'a PolicyMethod,
    bytes: &'a [u8],
    is_valid: bool,
}

impl<'a> PolicyMessage<'a> {
    /// One that was validated, or that this process built, in the layout of the method's requests.
    pub fn valid(method: &'a PolicyMethod, bytes: &'a [u8]) -> Self {
        let is_valid = true;
        Self {
            method,
            bytes,
            is_valid,
        }
    }

    /// One of which nothing is known. An engine checks what it reads, and the server all of it.
    pub fn unchecked(method: &'a PolicyMethod, bytes: &'a [u8]) -> Self {
        let is_valid = false;
        Self {
            method,
            bytes,
            is_valid,
        }
    }

    /// The method, as its server has it.
    pub fn method(&self) -> &'a PolicyMethod {
        self.method
    }

    /// The message, to read the fields that these checks are of.
    ///
    /// # Errors
    /// The status that refuses it: they cannot be read.
    #[inline]
    pub fn read(&self, fields: &FieldChecks) -> Result<Reader<'a>, Status> {
        if !self.is_valid {
            let checked = fields.validate(self.method.request(), self.bytes);
            checked.map_err(|error| self.method.malformed(&error))?;
        }
        Ok(Reader::root(self.bytes))
    }
}

impl fmt::Debug for PolicyMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.method.fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_share_messages_do_not_multiply_them_without_bound() {
        let mut schema = testing::schema();
        let method = schema.methods[0].clone();
        schema.messages[0].fields[0].name = "n".repeat(64 << 10);
        schema.methods = (0..65)
            .map(|number| starling_message::schema::MethodSchema {
                path: format!("{}{number:05}", method.path),
                ..method.clone()
            })
            .collect();
        assert!(matches!(
            PolicyMethod::all_of(&schema),
            Err(SchemaError::TooLarge { .. })
        ));
        schema.methods.truncate(10);
        assert_eq!(PolicyMethod::all_of(&schema).map(|all| all.len()), Ok(10));
    }

    #[test]
    fn each_method_has_its_own_part_and_number() {
        let mut schema = testing::schema();
        let mut other = schema.methods[0].clone();
        other.path.push_str("Other");
        (other.request, other.response, other.server_streaming) = (1, 1, true);
        schema.methods.push(other);
        let all = PolicyMethod::all_of(&schema).expect("a schema");
        let [one, two] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert_eq!(one.path(), testing::RESERVE);
        assert_eq!((one.is_streaming(), two.is_streaming()), (false, true));
        assert_eq!(two.request().name(), "hotel.Guest");
        assert_ne!(one.number(), two.number());
        assert_eq!(one.bytes(), testing::method().bytes());
        assert!(two.bytes().len() < one.bytes().len());
        schema.methods[1].request = 2;
        assert!(PolicyMethod::all_of(&schema).is_err());
    }
}
