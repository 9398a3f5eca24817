//! How bodies are encoded.

/// How the bodies of a call are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// The native in-memory layout: both ends have the same schema.
    #[default]
    Native,
    /// Protocol buffers: the ends have different versions of the schema.
    Protobuf,
}
