//! The generated messages of `tests/fixtures`, as a user would include them.

#![allow(missing_docs, unreachable_pub)]

pub mod everything {
    include!("../golden/messages/everything.rs");
}
pub mod google {
    pub mod protobuf {
        include!("../golden/messages/google.protobuf.rs");
    }
}
pub mod shared {
    pub mod v1 {
        include!("../golden/messages/shared.v1.rs");
    }
}
