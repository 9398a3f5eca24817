//! Many threads make calls through one channel: `cargo run --example threads`.

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

    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let client = client.clone();
            std::thread::spawn(move || -> Result<usize, Status> {
                let mut characters = 0;
                for call in 0..100 {
                    let mut request = HelloRequest::new();
                    request.set_name(&format!("call {call:02} of thread {thread}"));
                    characters += client.greet(&request).wait()?.message().text().len();
                }
                Ok(characters)
            })
        })
        .collect();
    let mut characters = 0;
    for thread in threads {
        characters += thread.join().expect("no thread panics")?;
    }
    println!("8 threads made 800 calls and got {characters} characters");
    Ok(())
}
