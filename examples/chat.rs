//! A chat room: streams both ways, of several members at once: `cargo run --example chat`.

use std::sync::{Arc, Mutex};

use starling::{Channel, NestedContext, Server, Status, StreamReceiver, StreamSender};
use tokio::sync::mpsc::{Sender, channel};

starling::include_proto!("chat");

/// Lines that wait for a member who reads slowly. Beyond it the member misses lines; the others go on.
const BACKLOG: usize = 64;

#[derive(Default)]
struct ChatRoom {
    members: Mutex<Vec<Sender<Line>>>,
}

impl ChatRoom {
    fn tell_everybody(&self, line: &Line) {
        let mut members = self.members.lock().expect("no panics");
        members.retain(|member| !member.is_closed());
        for member in &*members {
            let _ = member.try_send(line.clone());
        }
    }
}

impl Room for ChatRoom {
    async fn join(
        self: Arc<Self>,
        _: NestedContext,
        mut said: StreamReceiver<Line>,
        mut heard: StreamSender<Line>,
    ) -> Result<(), Status> {
        let (member, mut lines) = channel(BACKLOG);
        self.members.lock().expect("no panics").push(member);
        loop {
            tokio::select! {
                line = said.message() => match line? {
                    Some(line) => self.tell_everybody(&line.into_message()),
                    None => return Ok(()),
                },
                Some(line) = lines.recv() => heard.send(&line).await?,
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .bind(&format!("shm://chat-example-{}", std::process::id()))?
        .add_service(RoomServer::new(ChatRoom::default()))
        .build()?
        .spawn()?;
    let client = RoomClient::new(Channel::connect(server.address()).await?);

    let mut members = Vec::new();
    for name in ["Ada", "Grace", "Barbara"] {
        let (mut say, mut hear) = client.join();
        // Who joins says so, and hears it as soon as the room knows.
        say.send(&Line::new().with_from(name).with_text("hello"))
            .await?;
        hear.message().await?;
        members.push((name, say, hear));
    }
    let (_, say, _) = &mut members[0];
    say.send(&Line::new().with_from("Ada").with_text("shall we?"))
        .await?;
    for (name, say, mut hear) in members {
        while let Some(line) = hear.message().await? {
            let line = line.message();
            println!("{name} hears {}: {}", line.from(), line.text());
            if line.text() == "shall we?" {
                break;
            }
        }
        say.close();
    }
    Ok(())
}
