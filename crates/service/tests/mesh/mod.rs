//! A service for a test, and what calls and is called through it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use starling::managed::OperatorClient;
use starling::{Channel, Server, ServerBuilder, ServerHandle};
use starling_sample_services::api::bench::{EchoClient, Payload, Wanted};
use starling_sample_services::echo;
use starling_service::{Service, ServiceConfig};

/// Longer than any test waits for what it expects.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A name of this host that no other test has.
pub(crate) fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("mesh-{}-{number}", std::process::id())
}

/// A service that runs.
pub(crate) struct Mesh {
    pub(crate) name: String,
    config: ServiceConfig,
    service: Option<Service>,
}

impl Mesh {
    pub(crate) fn start() -> Self {
        Self::with(ServiceConfig::default())
    }

    /// One with these settings, and a name of its own.
    pub(crate) fn with(config: ServiceConfig) -> Self {
        let name = name();
        let mut mesh = Self {
            config: ServiceConfig {
                name: name.clone(),
                ..config
            },
            name,
            service: None,
        };
        mesh.restart();
        mesh
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        let service = Service::start(self.config.clone());
        self.service = Some(service.expect("the name is free"));
    }

    pub(crate) fn service(&self) -> &Service {
        self.service.as_ref().expect("it runs")
    }

    pub(crate) fn stop(&mut self) {
        self.service = None;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.service.as_ref().is_some_and(Service::is_running)
    }

    /// Where it is controlled.
    pub(crate) fn control(&self) -> String {
        format!("shm://{}.control", self.name)
    }

    /// Who manages it.
    pub(crate) fn operator(&self) -> OperatorClient<Channel> {
        OperatorClient::new(direct(&self.control()))
    }

    /// A channel through the service.
    pub(crate) fn channel(&self, address: &str) -> Channel {
        let builder = Channel::builder(address).managed_by(&self.name);
        builder.lazy().expect("an address")
    }

    /// An echo server that the service listens for.
    pub(crate) fn echo_at(&self, address: &str) -> ServerHandle {
        serve(echo_server().managed_by(&self.name), address)
    }
}

fn echo_server() -> ServerBuilder {
    Server::builder().add_service(echo::server())
}

fn serve(builder: ServerBuilder, address: &str) -> ServerHandle {
    let server = builder.bind(address).expect("an address").build();
    server.expect("it is free").spawn().expect("threads")
}

/// An echo server that knows no service.
pub(crate) fn echo_at(address: &str) -> ServerHandle {
    serve(echo_server().direct(), address)
}

/// A channel that knows no service.
pub(crate) fn direct(address: &str) -> Channel {
    Channel::builder(address)
        .direct()
        .lazy()
        .expect("an address")
}

/// Calls of all kinds, with messages of all sizes, each of which has to come back.
pub(crate) fn exercise(channel: Channel) {
    let client = EchoClient::new(channel);
    for bytes in [0, 32, 511, 512, 513, 4000, 70_000, 3 << 20] {
        let data = vec![7; bytes];
        let response = client
            .call(&Payload::new().with_data(&data))
            .wait()
            .expect("an echo");
        assert_eq!(response.message().data(), &data[..]);
    }
    let wanted = Wanted::new().with_items(1000).with_bytes(100);
    let mut source = client.source(&wanted);
    let items = source
        .blocking()
        .map(|item| item.expect("an item").message().data().len());
    assert_eq!(items.sum::<usize>(), 100_000);
    let (mut sender, mut receiver) = client.exchange();
    for number in 0..100_u8 {
        let item = Payload::new().with_data(&[number; 1000]);
        sender.send_wait(&item).expect("it takes items");
    }
    sender.close();
    for (number, item) in receiver.blocking().enumerate() {
        assert_eq!(
            item.expect("an item").message().data(),
            [number as u8; 1000]
        );
    }
}
