//! For tests of services and of their callers: time that a test moves by hand, and faults that calls meet.
//!
//! The device for such tests is `mem://name`, which needs no network and leaves nothing behind.

mod clock;
mod faults;

pub use clock::TestClock;
pub use faults::{Fault, Faults};
