//! The generated messages of `tests/fixtures`, as a user would include them.

#![allow(missing_docs, unreachable_pub)]

include!("../golden/messages/packages.rs");
