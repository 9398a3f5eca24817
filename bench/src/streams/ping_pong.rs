//! One item each way at a time, on a stream of each caller's own.

use starling::{Channel, StreamReceiver, StreamSender};
use starling_sample_services::api::bench::{EchoClient, Payload};

use super::start;
use crate::benchmark::Context;
use crate::callers::{Callers, EchoStub};
use crate::channel::{CHANNEL, by_callers, check, request};
use crate::device::failed;
use crate::error::BenchError;
use crate::metric::Sample;

pub(super) fn measure(
    context: &Context,
    scheme: &'static str,
    callers: Callers,
) -> Result<Sample, BenchError> {
    let (server, client) = start(context, scheme)?;
    by_callers(
        context,
        &[&server],
        callers,
        &StreamStub::new(client, scheme),
    )
}

/// A stream, as if each item were a call.
struct StreamStub {
    client: EchoClient<Channel>,
    there: StreamSender<Payload>,
    back: StreamReceiver<Payload>,
    scheme: &'static str,
}

impl StreamStub {
    fn new(client: EchoClient<Channel>, scheme: &'static str) -> Self {
        // A stream begins with its first item, so a stub that only has clones costs the server nothing.
        let (there, back) = client.exchange();
        Self {
            client,
            there,
            back,
            scheme,
        }
    }
}

impl Clone for StreamStub {
    /// A stub with a stream of its own.
    fn clone(&self) -> Self {
        Self::new(self.client.clone(), self.scheme)
    }
}

impl EchoStub for StreamStub {
    fn wait(&mut self, number: u64) -> Result<(), BenchError> {
        self.there.send_wait(&request(number)).map_err(failed)?;
        let item = self.back.wait().map_err(failed)?;
        let data = item.as_ref().map_or(&[][..], |item| item.message().data());
        check(CHANNEL, self.scheme, number, data)
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        self.there.send(&request(number)).await.map_err(failed)?;
        let item = self.back.message().await.map_err(failed)?;
        let data = item.as_ref().map_or(&[][..], |item| item.message().data());
        check(CHANNEL, self.scheme, number, data)
    }
}

#[cfg(test)]
mod tests {
    use starling::Server;
    use starling_sample_services::echo;

    use super::*;

    #[test]
    fn items_come_back_in_threads_and_tasks_and_each_clone_has_a_stream() {
        let builder = Server::builder().bind("udp://127.0.0.1:0").unwrap();
        let server = builder.add_service(echo::server()).build().unwrap();
        let server = server.spawn().unwrap();
        let channel = Channel::lazy(server.address()).unwrap();
        let mut stub = StreamStub::new(EchoClient::new(channel), "udp");
        stub.wait(1).unwrap();
        let mut other = stub.clone();
        starling::block_on(other.call(2)).unwrap();
        stub.wait(3).unwrap();
    }
}
