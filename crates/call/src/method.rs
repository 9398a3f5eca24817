//! Method ids.

/// The number of a method. Generated code makes it from the path `package.Service/Method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodId(pub u32);
