//! For tests of services and of their callers: time that a test moves by hand.
//!
//! The device for such tests is `mem://name`, which needs no network and leaves nothing behind.

mod clock;

pub use clock::TestClock;
