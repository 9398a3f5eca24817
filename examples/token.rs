//! An interceptor at a client that sends a token with each call, and one at a server that asks for it.
//!
//! It is the service's own: one of the server (`ServerBuilder::interceptor`) would also ask those for a token who ask
//! for the server's health, as channels to several servers do, or for its schema.

use starling::{
    Channel, Code, InterceptedCall, InterceptedResponse, Interceptor, Next, Request, Server, Status,
};
starling::include_proto!("hello");

const TOKEN: &str = "open sesame";

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

struct SendToken;

impl Interceptor for SendToken {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let added = call.metadata_mut().insert("token", TOKEN);
        added.map_err(|error| Status::invalid_argument(error.to_string()))?;
        next.run(call).await
    }
}

struct AskForToken;

impl Interceptor for AskForToken {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        if call.metadata().value("token") == Some(TOKEN.as_bytes()) {
            return next.run(call).await;
        }
        let text = format!("{} needs the metadata `token`", call.path());
        Err(Status::unauthenticated(text))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .bind("udp://127.0.0.1:0")?
        .add_intercepted(HelloServer::new(Greeter), AskForToken)
        .build()?
        .spawn()?;
    let channel = Channel::lazy(server.address())?;
    let request = HelloRequest::new().with_name("world");

    let stranger = HelloClient::new(channel.clone());
    let status = stranger
        .greet(&request)
        .wait()
        .expect_err("it has no token");
    println!("{status}");
    assert_eq!(status.code(), Code::Unauthenticated);

    let friend = HelloClient::new(channel.intercept(SendToken));
    println!("{}", friend.greet(&request).wait()?.message().text());
    Ok(())
}
