//! Google's well-known types in a user's service: one `include_proto!`, and conversions to `std`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use starling::well_known::{self, Any, Empty, EmptyMut, EmptyView, StringValue, Struct, Timestamp};
use starling::{Channel, Request, Server, Status};
use starling_test_protos::calendar::{Calendar, CalendarClient, CalendarServer, Event, EventMut};

struct Postponer;

impl Calendar for Postponer {
    fn postpone(&self, request: Request<'_, Event>, mut reply: EventMut<'_>) -> Result<(), Status> {
        let event = request.message();
        let start = SystemTime::try_from(event.start())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let later = Timestamp::try_from(start + Duration::from_secs(3600))
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        reply.copy_from(event);
        reply.set_start(later.view());
        Ok(())
    }

    fn clear(&self, _: Request<'_, Empty>, _: EmptyMut<'_>) -> Result<(), Status> {
        Ok(())
    }
}

#[test]
fn well_known_types_cross_a_call_and_convert_to_those_of_std() {
    let server = Server::builder()
        .bind("udp://127.0.0.1:0")
        .expect("loopback")
        .add_service(CalendarServer::new(Postponer))
        .build()
        .expect("a sound server")
        .spawn()
        .expect("threads");
    let client = CalendarClient::new(Channel::lazy(server.address()).expect("an address"));

    let start = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
    let length = Duration::from_millis(1500);
    let labels: Struct = [("room", well_known::Value::from("12a"))]
        .into_iter()
        .collect();
    let note = Any::pack(&StringValue::from("bring cake")).expect("it is small");
    let event = Event::new()
        .with_name("birthday")
        .with_start(Timestamp::try_from(start).expect("after year 1").view())
        .with_length(
            well_known::Duration::try_from(length)
                .expect("short")
                .view(),
        )
        .with_labels(labels.view())
        .with_attachment(note.view());

    let reply = client.postpone(&event).wait().expect("the server runs");
    let later = reply.message();
    assert_eq!(later.name(), "birthday");
    let hour = Duration::from_secs(3600);
    assert_eq!(SystemTime::try_from(later.start()), Ok(start + hour));
    assert_eq!(Duration::try_from(later.length()), Ok(length));
    assert_eq!(later.labels().to_owned(), labels);
    let note = later.attachment().unpack::<StringValue>(1 << 10);
    assert_eq!(note.expect("it was packed").value(), "bring cake");

    let status = client
        .postpone(&event.with_start(Timestamp::new().with_nanos(-1).view()))
        .wait()
        .expect_err("no time has negative nanoseconds");
    assert!(status.message().contains("-1 nanoseconds"), "{status}");

    let empty = client.clear(&Empty::new()).wait().expect("the server runs");
    let _: EmptyView<'_> = empty.message();
}
