//! A page of metrics for Prometheus: `cargo run --example metrics`.

use std::io::{Read, Write};
use std::net::TcpStream;

use starling::{Channel, Request, Server, Status};

starling::include_proto!("hello");

struct Greeter;

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut reply: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        match request.message().name() {
            "" => Err(Status::invalid_argument("everybody has a name")),
            name => {
                reply.set_text(&format!("Hello, {name}!"));
                Ok(())
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // First: servers and channels that are made from now on are measured. A real program takes a port that
    // its scraper knows, such as 127.0.0.1:9464.
    let page = starling::metrics::serve("127.0.0.1:0")?;
    let server = Server::builder()
        .bind("udp://127.0.0.1:0")?
        .add_service(HelloServer::new(Greeter))
        .build()?
        .spawn()?;

    let client = HelloClient::new(Channel::lazy(server.address())?);
    for name in ["Ada", "Grace", "", "Barbara"] {
        match client.greet(&HelloRequest::new().with_name(name)).wait() {
            Ok(reply) => println!("{}", reply.message().text()),
            Err(status) => println!("{status}"),
        }
    }

    // What a scraper does.
    let mut scraper = TcpStream::connect(page.address())?;
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut text = String::new();
    scraper.read_to_string(&mut text)?;
    for line in text.lines() {
        let is_client = line.starts_with("rpc_client_call_duration_seconds_count");
        if let Some((labels, count)) = line.rsplit_once(' ').filter(|_| is_client) {
            let status = labels.rsplit('"').nth(1).unwrap_or_default();
            println!("{status}: {count} calls");
        }
    }

    // The same for the program's own use, with more detail.
    for series in starling::metrics::snapshot() {
        if &*series.key.method == "hello.Hello/Greet" {
            let (calls, errors) = (series.totals.calls(), series.totals.errors());
            println!("{:?}: {calls} calls, {errors} failed", series.key.side);
        }
    }
    Ok(())
}
