//! The program whose instructions `cargo xtask instructions --calls` counts: calls of generated code, with
//! client and server in one thread, and what a user may put around them.
//!
//! ```text
//! call-instructions CALLS CASE
//! ```
//!
//! Both ends are endpoints of the facade, over shared memory. Their clock stands still, so that every run does
//! the same. Two runs with different CALLS differ in the number of calls and in nothing else.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use starling::testing::TestClock;
use starling::{
    CallOptions, Endpoint, InterceptedCall, InterceptedResponse, Interceptor, LocalChannel, Next,
    Status,
};
use starling_sample_services::api::bench::{EchoClient, Payload, Wanted};
use starling_sample_services::echo;

/// Bytes of each request, each response and each item.
const BYTES: usize = 32;

/// Hands calls on.
struct Passes;

impl Interceptor for Passes {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        next.run(call).await
    }
}

/// Sends a token, or asks for one.
struct Token {
    sends: bool,
}

impl Interceptor for Token {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        if self.sends {
            let added = call.metadata_mut().insert("token", "open sesame");
            added.map_err(|error| Status::invalid_argument(error.to_string()))?;
        } else if call.metadata().value("token") != Some(b"open sesame") {
            return Err(Status::unauthenticated("no token"));
        }
        next.run(call).await
    }
}

/// Looks at each item of a stream.
struct Looks;

impl Interceptor for Looks {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        call.on_responses(|item| match item.bytes().is_empty() {
            true => Err(Status::internal("an item has bytes")),
            false => Ok(()),
        })?;
        next.run(call).await
    }
}

/// What is around the calls.
#[derive(Clone, Copy, Default)]
struct Case {
    /// Interceptors at the client that hand calls on.
    client: usize,
    /// The same at the server.
    server: usize,
    token: bool,
    /// A pair of metadata with each call.
    metadata: bool,
    /// Items of a stream in place of calls.
    items: bool,
    /// An interceptor at this end looks at each item.
    looks_at: Option<&'static str>,
}

impl Case {
    fn named(name: &str) -> Option<Self> {
        let plain = Self::default();
        Some(match name {
            "plain" => plain,
            "client-1" => Self { client: 1, ..plain },
            "client-2" => Self { client: 2, ..plain },
            "server-1" => Self { server: 1, ..plain },
            "server-2" => Self { server: 2, ..plain },
            "metadata" => Self {
                metadata: true,
                ..plain
            },
            "token" => Self {
                token: true,
                ..plain
            },
            "items" => Self {
                items: true,
                ..plain
            },
            "items-client" | "items-server" => Self {
                items: true,
                looks_at: name.strip_prefix("items-").map(|end| match end {
                    "client" => "client",
                    _ => "server",
                }),
                ..plain
            },
            _ => return None,
        })
    }

    fn channel(self, channel: LocalChannel) -> LocalChannel {
        let mut channel = channel;
        for _ in 0..self.client {
            channel = channel.intercept(Passes);
        }
        if self.token {
            channel = channel.intercept(Token { sends: true });
        }
        if self.looks_at == Some("client") {
            channel = channel.intercept(Looks);
        }
        channel
    }

    fn server(self, mut builder: starling::EndpointBuilder) -> starling::EndpointBuilder {
        for _ in 0..self.server {
            builder = builder.interceptor(Passes);
        }
        if self.token {
            builder = builder.interceptor(Token { sends: false });
        }
        if self.looks_at == Some("server") {
            builder = builder.interceptor(Looks);
        }
        builder
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match arguments.as_slice() {
        [calls, case] => calls.parse().ok().zip(Case::named(case)),
        _ => None,
    };
    let Some((calls, case)) = parsed else {
        eprintln!("usage: call-instructions CALLS CASE");
        return ExitCode::from(2);
    };
    match run(calls, case) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(calls: u64, case: Case) -> Result<(), Box<dyn Error>> {
    let clock = TestClock::new();
    let address = format!("shm://call-instructions-{}", std::process::id());
    let server = Endpoint::builder().bind(&address).clock(&clock);
    let mut server = case.server(server.add_service(echo::server())).build()?;
    let mut client = Endpoint::builder().reach(&address).clock(&clock).build()?;
    let caller = EchoClient::new(case.channel(client.channel(&address)?));
    let (done, failed) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let (its_done, its_failed) = (Arc::clone(&done), Arc::<AtomicBool>::clone(&failed));
    client.spawn(async move {
        let made = match case.items {
            false => make_calls(&caller, calls, case.metadata).await,
            true => read_items(&caller, calls).await,
        };
        its_failed.store(made.is_err(), Ordering::Relaxed);
        its_done.store(true, Ordering::Relaxed);
    });
    while !done.load(Ordering::Relaxed) {
        client.poll()?;
        server.poll()?;
    }
    match failed.load(Ordering::Relaxed) {
        true => Err("a call failed".into()),
        false => Ok(()),
    }
}

async fn make_calls(
    caller: &EchoClient<LocalChannel>,
    calls: u64,
    metadata: bool,
) -> Result<(), Status> {
    let mut options = CallOptions::default();
    if metadata {
        let added = options.metadata.insert("token", "open sesame");
        added.map_err(|error| Status::invalid_argument(error.to_string()))?;
    }
    let request = Payload::new().with_data(&[7; BYTES]);
    for _ in 0..calls {
        caller.call_with(&request, &options).await?;
    }
    Ok(())
}

async fn read_items(caller: &EchoClient<LocalChannel>, items: u64) -> Result<(), Status> {
    let wanted = Wanted::new().with_items(items).with_bytes(BYTES as u32);
    let mut source = caller.source(&wanted);
    while source.message().await?.is_some() {}
    Ok(())
}
