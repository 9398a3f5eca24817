//! The servers of `bench.Echo` and `bench.NestedEcho`.

use std::sync::Arc;

use bytes::Bytes;
use starling::{NestedContext, OwnedRequest, Request, Status, StreamReceiver, StreamSender};

use crate::api::bench::{
    Echo, EchoServer, NestedEcho, NestedEchoServer, Payload, PayloadMut, Wanted,
};

/// Bytes of the responses of `Sink` and `Drain`.
pub const SINK_RESPONSE_BYTES: usize = 32;

/// Bytes of the largest items of `Source`.
pub const MAX_ITEM_BYTES: usize = 1 << 20;

/// Items with fewer bytes are copied into their message.
const SHARED_BYTES: usize = 4 << 10;

/// `Call` answers with the request's bytes, `Sink` with [`SINK_RESPONSE_BYTES`] zeros. `Exchange` sends items
/// back, `Source` sends them, and `Drain` counts them.
#[derive(Debug)]
pub struct EchoService;

/// The service, which a server can add.
pub fn server() -> EchoServer<EchoService> {
    EchoServer::new(EchoService)
}

/// The service whose handler is a future, which a server can add.
pub fn nested_server() -> NestedEchoServer<EchoService> {
    NestedEchoServer::new(EchoService)
}

/// Bytes by reference end the bundle that their item is in, which only large ones are worth.
fn set_data(mut item: PayloadMut<'_>, data: &Bytes) {
    match data.len() < SHARED_BYTES {
        true => item.set_data(data),
        false => item.set_data_bytes(data.clone()),
    }
}

impl Echo for EchoService {
    fn call(
        &self,
        request: Request<'_, Payload>,
        mut response: PayloadMut<'_>,
    ) -> Result<(), Status> {
        response.set_data(request.message().data());
        Ok(())
    }

    fn sink(&self, _: Request<'_, Payload>, mut response: PayloadMut<'_>) -> Result<(), Status> {
        response.set_data(&[0; SINK_RESPONSE_BYTES]);
        Ok(())
    }

    async fn source(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<Wanted>,
        mut items: StreamSender<Payload>,
    ) -> Result<(), Status> {
        let wanted = request.message();
        let bytes = wanted.bytes() as usize;
        if bytes > MAX_ITEM_BYTES {
            return Err(Status::invalid_argument(format!(
                "an item has at most {MAX_ITEM_BYTES} bytes"
            )));
        }
        let data = cx.memory().make(bytes, |room| room.fill(1));
        if wanted.one_by_one() {
            let mut item = Payload::new();
            for _ in 0..wanted.items() {
                set_data(item.as_mut(), &data);
                items.send(&item).await?;
            }
            return Ok(());
        }
        let all = 0..wanted.items();
        items.send_each(all, |_, item| set_data(item, &data)).await
    }

    async fn drain(
        self: Arc<Self>,
        _: NestedContext,
        mut items: StreamReceiver<Payload>,
    ) -> Result<Payload, Status> {
        let mut count: u64 = 0;
        while let Some(bundle) = items.bundle().await? {
            count += bundle.iter().count() as u64;
        }
        let mut data = [0; SINK_RESPONSE_BYTES];
        data[..8].copy_from_slice(&count.to_le_bytes());
        Ok(Payload::new().with_data(&data))
    }

    async fn exchange(
        self: Arc<Self>,
        _: NestedContext,
        mut items: StreamReceiver<Payload>,
        mut back: StreamSender<Payload>,
    ) -> Result<(), Status> {
        while let Some(item) = items.message().await? {
            back.send(&item.into_message()).await?;
        }
        Ok(())
    }
}

impl NestedEcho for EchoService {
    async fn call(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<Payload>,
    ) -> Result<Payload, Status> {
        Ok(Payload::new().with_data(request.message().data()))
    }
}

#[cfg(test)]
mod tests {
    use starling::{Channel, Code, Server, block_on};

    use super::*;
    use crate::api::bench::EchoClient;

    #[test]
    fn streams_bring_take_and_return_items() {
        let builder = Server::builder().bind("mem://sample-echo").unwrap();
        let server = builder.add_service(server()).build().unwrap();
        let server = server.spawn().unwrap();
        let client = EchoClient::new(Channel::lazy(server.address()).unwrap());

        let mut wanted = Wanted::new().with_items(3).with_bytes(40_000);
        let items: Result<Vec<_>, _> = client.source(&wanted).blocking().collect();
        let lengths = items
            .unwrap()
            .into_iter()
            .map(|item| item.message().data().len());
        assert!(lengths.eq([40_000; 3]));
        wanted.set_bytes(MAX_ITEM_BYTES as u32 + 1);
        let refused = client.source(&wanted).wait().unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);

        let mut drain = client.drain();
        for _ in 0..5 {
            drain.send_wait(&Payload::new()).unwrap();
        }
        let answer = drain.finish_wait().unwrap();
        assert_eq!(answer.message().data()[..8], 5u64.to_le_bytes());

        let (mut there, mut back) = client.exchange();
        for data in [&[7; 100][..], &[]] {
            there.send_wait(&Payload::new().with_data(data)).unwrap();
            let item = block_on(back.message()).unwrap().unwrap();
            assert_eq!(item.message().data(), data);
        }
        there.close();
        assert!(back.wait().unwrap().is_none());
    }
}
