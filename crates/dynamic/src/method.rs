//! A method that is known at run time.

use std::fmt;
use std::sync::Arc;

use prost_reflect::{DynamicMessage, MethodDescriptor};
use starling::Status;

use crate::json::{self, JsonError};

/// A unary method. Cheap to clone; its types live as long as anything that refers to them.
#[derive(Clone)]
pub struct DynamicMethod {
    descriptor: MethodDescriptor,
    path: Arc<str>,
}

impl DynamicMethod {
    /// A method of a pool of descriptors, such as one that was made from a `.proto` file.
    ///
    /// # Errors
    /// UNIMPLEMENTED if it is a streaming method.
    pub fn new(descriptor: MethodDescriptor) -> Result<Self, Status> {
        let service = descriptor.parent_service();
        let name = format!("{}/{}", service.full_name(), descriptor.name());
        if descriptor.is_client_streaming() || descriptor.is_server_streaming() {
            let text = format!("{name} is a streaming method, which this version cannot call");
            return Err(Status::unimplemented(text).with_not_run());
        }
        let path = format!("/{name}").into();
        Ok(Self { descriptor, path })
    }

    /// The path on the wire: `/package.Service/Method`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The types of its messages.
    pub fn descriptor(&self) -> &MethodDescriptor {
        &self.descriptor
    }

    /// An empty request.
    pub fn request(&self) -> DynamicMessage {
        DynamicMessage::new(self.descriptor.input())
    }

    /// A request from JSON, by protobuf's mapping: field names as in the `.proto` file or in
    /// lowerCamelCase, bytes in base64, 64-bit integers in quotes.
    ///
    /// # Errors
    /// The field that is wrong, and what it takes.
    pub fn request_from_json(&self, text: &str) -> Result<DynamicMessage, JsonError> {
        json::parse(&self.descriptor.input(), text)
    }
}

impl fmt::Debug for DynamicMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DynamicMethod").field(&self.path).finish()
    }
}
