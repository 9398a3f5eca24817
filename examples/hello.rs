//! A server and a client of `proto/hello.proto`: `cargo run --example hello`.

use starling::{Channel, Request, Server, Status};

starling::include_proto!("hello");

struct Greeter;

impl Hello for Greeter {
    fn greet(
        &self,
        request: Request<'_, HelloRequest>,
        mut reply: HelloReplyMut<'_>,
    ) -> Result<(), Status> {
        reply.set_text(&format!("Hello, {}!", request.message().name()));
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .bind("udp://127.0.0.1:0")?
        .add_service(HelloServer::new(Greeter))
        .build()?
        .spawn()?;

    let client = HelloClient::new(Channel::lazy(server.address())?);
    let mut request = HelloRequest::new();
    request.set_name("world");
    let reply = client.greet(&request).wait()?;
    println!("{}", reply.message().text());
    Ok(())
}
