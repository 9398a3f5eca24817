//! What a server warns its operators of, through `tracing`.

mod common;

use std::fmt::{Debug, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use common::{any_addresses, wait_until};
use starling::{Channel, Request, Server, Status};
use starling_test_protos::hello::{Hello, HelloClient, HelloReplyMut, HelloRequest, HelloServer};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the fields of each warning, as text.
struct Keep;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("memory");
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        WARNINGS.lock().expect("no panic").push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Blocks its dispatch thread if it is asked to.
struct Slow;

impl Hello for Slow {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        _: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        if request.message().name() == "block" {
            std::thread::sleep(Duration::from_millis(60));
        }
        Ok(())
    }
}

#[test]
fn a_handler_that_blocks_its_dispatch_thread_is_named_and_counted() {
    tracing::subscriber::set_global_default(Keep).expect("the only one");
    for (number, address) in any_addresses().iter().enumerate() {
        let builder = Server::builder().bind(address).expect("an address");
        let server = builder.add_service(HelloServer::new(Slow)).build();
        let server = server.expect("a server").spawn().expect("threads");
        let client = HelloClient::new(Channel::lazy(server.address()).expect("a channel"));
        let greet = |name| client.greet(&HelloRequest::new().with_name(name)).wait();
        greet("first").expect("a reply");
        greet("block").expect("a reply");
        wait_until(|| server.stats()[0].endpoint.stalls > 0);
        wait_until(|| WARNINGS.lock().expect("no panic").len() > number);
        let warnings = WARNINGS.lock().expect("no panic");
        let warning = &warnings[number];
        for part in ["method=\"/hello.Hello/Greet\"", "lasted_ms=", "WORKER"] {
            assert!(warning.contains(part), "{warning}");
        }
    }
}
