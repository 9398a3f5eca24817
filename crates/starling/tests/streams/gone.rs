//! Clients that are gone, and what they leave behind.

use std::sync::atomic::Ordering;

use starling::testing::TestClock;
use starling_message::Message;

use crate::common::{shm_address, wait_until};
use crate::raw::Raw;
use crate::service::{builder, end, number};

/// The server holds no request of the stream, which could be cancelled. It waits for the next one, and by this clock
/// for ever.
#[test]
fn a_client_that_goes_takes_the_streams_along_that_have_no_request_at_the_server() {
    let (builder, counts) = builder(&shm_address());
    let server = builder.clock(&TestClock::new()).build().expect("a server");
    let server = server.spawn().expect("threads");
    // The second one has the first one's number.
    for clients in 1..=2 {
        let mut raw = Raw::new(server.address());
        let response = raw.open("/Add", false, |bundle| {
            let number = number(1, 10);
            let bytes = number.parts().0;
            (bundle.head).extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            bundle.head.extend_from_slice(bytes);
        });
        assert_eq!(response.stream_status(), None);
        assert_eq!(counts.running.load(Ordering::SeqCst), 1);
        drop(raw);
        wait_until(|| counts.running.load(Ordering::SeqCst) == 0);
        assert_eq!(counts.dropped.load(Ordering::SeqCst), clients);
    }
    end(server);
}
