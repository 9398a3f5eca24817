//! The instructions of a small call through the library that users import: a program for
//! `valgrind --tool=callgrind`, with a client and a server in one thread. docs/notes/observability.md has counts.
//!
//! ```text
//! facade_instructions CALLS IN_FLIGHT off|metrics|traces
//! ```
//!
//! Two runs with different CALLS differ in the number of calls and in nothing else. The clock is the real one,
//! so counts differ by a few instructions from run to run.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling::{Congestion, Endpoint, EndpointConfig, Idle, LocalChannel};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_sample_services::echo;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.as_slice() {
        [calls, in_flight, what] => run(calls, in_flight, what),
        _ => Err("usage: facade_instructions CALLS IN_FLIGHT off|metrics|traces".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(calls: &str, in_flight: &str, what: &str) -> Result<(), Box<dyn Error>> {
    let (calls, in_flight): (u64, u64) = (calls.parse()?, in_flight.parse()?);
    match what {
        "off" => {}
        "metrics" => starling::metrics::enable(),
        "traces" => starling::trace::enable(0.001),
        _ => return Err("observe off, metrics or traces".into()),
    }
    let address = format!("shm://facade-instructions-{}", std::process::id());
    // Under valgrind a machine looks congested, now more and now less.
    let mut config = EndpointConfig {
        idle: Idle::Spin,
        ..EndpointConfig::default()
    };
    config.protocol.congestion = Congestion::Off;
    let server = Endpoint::builder().bind(&address).config(config.clone());
    let mut server = server.add_service(echo::server()).build()?;
    let client = Endpoint::builder().reach(&address).config(config);
    let mut client = client.build()?;
    let stub: EchoClient<LocalChannel> = EchoClient::new(client.channel(&address)?);
    let done = Arc::new(AtomicU64::new(0));
    for _ in 0..in_flight {
        let (stub, done) = (stub.clone(), Arc::clone(&done));
        client.spawn(async move {
            let request = Payload::new().with_data(&[7; 32]);
            while done.load(Ordering::Relaxed) < calls {
                let answer = stub.call(&request).await.expect("the server answers");
                assert_eq!(answer.message().data().len(), 32);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while done.load(Ordering::Relaxed) < calls {
        server.poll()?;
        client.poll()?;
    }
    Ok(())
}
