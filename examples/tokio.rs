//! Calls from tasks of tokio. Any other executor works, too: `cargo run --example tokio`.

use starling::{CallOptions, Channel, Request, Server, Status};
use std::time::Duration;

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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .bind(&format!("shm://tokio-example-{}", std::process::id()))?
        .add_service(HelloServer::new(Greeter))
        .build()?
        .spawn()?;
    let client = HelloClient::new(Channel::connect(server.address()).await?);

    let tasks = ["Ada", "Grace", "Barbara"].map(|name| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut request = HelloRequest::new();
            request.set_name(name);
            let options = CallOptions::with_timeout(Duration::from_secs(5));
            client.greet_with(&request, &options).await
        })
    });
    for task in tasks {
        println!("{}", task.await??.message().text());
    }
    Ok(())
}
