//! What a failed call says beyond its code and text, as gRPC's richer error model has it
//! (`google.rpc.Status` and the standard details), so that the programs of other languages read it.
//!
//! ```
//! use starling::details::{BadRequest, RetryInfo, StatusDetails};
//! use starling::Status;
//!
//! // A handler:
//! let mut wrong = BadRequest::new();
//! let mut fields = wrong.field_violations_mut();
//! let mut field = fields.push_default();
//! field.set_field("size");
//! field.set_description("is 0");
//! let status = Status::invalid_argument("a volume needs a size").with_detail(&wrong)?;
//!
//! // Its caller:
//! if let Some(wrong) = status.detail::<BadRequest>()? {
//!     assert_eq!(wrong.field_violations().get(0).unwrap().field(), "size");
//! }
//! assert!(status.detail::<RetryInfo>()?.is_none());
//! # Ok::<_, starling::details::DetailsError>(())
//! ```

#[rustfmt::skip]
#[allow(missing_docs, clippy::pedantic, reason = "the generator's, whose .proto has the comments")]
mod generated;

use starling_endpoint::{Metadata, MetadataError};
use starling_message::Message;
use starling_message::protobuf::{DecodeLimits, EncodeError};
use starling_message::well_known::Any;

pub use generated::*;

/// The key of the metadata that has the details: gRPC's.
pub const DETAILS_KEY: &str = "grpc-status-details-bin";

/// What stands before a message's name in the type of an [`Any`].
const TYPE_PREFIX: &str = "type.googleapis.com/";

/// The bytes that details may take when they are decoded. Metadata has at most 8 KiB.
const MAX_DECODED: usize = 256 << 10;

/// Why a status cannot have a detail, or its details cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetailsError {
    /// All metadata together would be too long. Details go with it.
    #[error("the details do not fit: {0}")]
    TooLarge(#[from] MetadataError),
    /// The message cannot be encoded.
    #[error("the detail cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    /// The other side has sent something else.
    #[error("the details that the server sent are malformed: {0}")]
    Malformed(String),
}

/// Details of a status: messages of any type, one of each as a rule. They go with the metadata of the
/// failure, so all of them together have at most 8 KiB.
pub trait StatusDetails: Sized {
    /// The same status with one more detail.
    ///
    /// # Errors
    /// If there is no room for it.
    fn with_detail<M: Message>(self, detail: &M) -> Result<Self, DetailsError>;

    /// The first detail of this type.
    ///
    /// # Errors
    /// If the details, or this one, are malformed.
    fn detail<M: Message>(&self) -> Result<Option<M>, DetailsError>;

    /// All details.
    ///
    /// # Errors
    /// If they are malformed.
    fn details(&self) -> Result<Vec<Any>, DetailsError>;
}

impl StatusDetails for starling_endpoint::Status {
    fn with_detail<M: Message>(self, detail: &M) -> Result<Self, DetailsError> {
        let mut rich = Status::new();
        rich.set_code(i32::from(self.code() as u8));
        rich.set_message(self.message());
        for earlier in self.details()? {
            rich.details_mut().push_view(earlier.view());
        }
        let mut added = Any::new();
        added.set_type_url(&format!("{TYPE_PREFIX}{}", M::LAYOUT.name));
        added.set_value(&detail.to_protobuf()?);
        rich.details_mut().push_view(added.view());
        let mut metadata = self.metadata().cloned().unwrap_or_default();
        metadata.set(DETAILS_KEY, rich.to_protobuf()?)?;
        Ok(self.with_metadata(metadata))
    }

    fn detail<M: Message>(&self) -> Result<Option<M>, DetailsError> {
        let name = &*M::LAYOUT.name;
        let is_it = |any: &Any| any.type_url().rsplit('/').next() == Some(name);
        let Some(any) = self.details()?.into_iter().find(is_it) else {
            return Ok(None);
        };
        decode(any.value()).map(Some)
    }

    fn details(&self) -> Result<Vec<Any>, DetailsError> {
        let sent = self
            .metadata()
            .and_then(|sent: &Metadata| sent.value(DETAILS_KEY));
        let Some(bytes) = sent else {
            return Ok(Vec::new());
        };
        let rich: Status = decode(bytes)?;
        Ok(rich.details().iter().map(|any| any.to_owned()).collect())
    }
}

fn decode<M: Message>(bytes: &[u8]) -> Result<M, DetailsError> {
    let limits = DecodeLimits::from(MAX_DECODED);
    M::from_protobuf(bytes, limits).map_err(|error| DetailsError::Malformed(error.to_string()))
}
