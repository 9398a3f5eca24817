//! One channel to three servers: calls in turn, a call to all of them, retries by a service config, and a server
//! that shuts down without any call failing.

use std::time::Duration;

use starling::{Channel, FanOut, Request, Server, ServerHandle, ServiceConfig, Status};

starling::include_proto!("hello");

/// gRPC's service config. What cannot be honoured is an error that names the field.
const CONFIG: &str = r#"{
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{
        "name": [{"service": "hello.Hello"}],
        "timeout": "5s",
        "retryPolicy": {
            "maxAttempts": 3,
            "initialBackoff": "0.01s",
            "maxBackoff": "0.1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"]
        }
    }]
}"#;

struct Greeter(&'static str);

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut reply: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        reply.set_text(&format!("{}: Hello, {}!", self.0, request.message().name()));
        Ok(())
    }
}

fn serve(name: &'static str) -> Result<ServerHandle, starling::Error> {
    Server::builder()
        .bind("udp://127.0.0.1:0")?
        .add_service(HelloServer::new(Greeter(name)))
        .build()?
        .spawn()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let servers = [serve("first")?, serve("second")?, serve("third")?];
    let channel = Channel::balanced(servers.each_ref().map(|server| server.address()))
        .service_config(ServiceConfig::from_json(CONFIG)?)
        .lazy()?;
    starling::block_on(channel.ready())?;
    let request = HelloRequest::new().with_name("world");

    // All servers at once.
    let all = FanOut::over(&channel, HelloClient::new);
    for reply in all.call(|hello| hello.greet(&request)).wait().successes()? {
        println!("{}", reply.message().text());
    }

    // One server after the other. One of them shuts down meanwhile; its calls go to the others.
    let client = HelloClient::new(channel);
    let [first, _second, _third] = servers;
    let ending = std::thread::spawn(move || first.shutdown(Duration::from_secs(5)));
    let mut calls = 0;
    while !ending.is_finished() || calls < 100 {
        client.greet(&request).wait()?;
        calls += 1;
    }
    assert!(ending.join().expect("no panic")?, "all calls were answered");
    println!("no call failed while a server was shut down");
    Ok(())
}
