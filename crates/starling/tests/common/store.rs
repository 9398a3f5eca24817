//! A server of the first version of a schema, which adds up what is put.

use std::sync::{Arc, Mutex};

use starling::{NestedContext, Request, Status, StreamReceiver, StreamSender};
use starling_test_protos::v1;

#[derive(Default)]
pub(crate) struct Store(Mutex<u64>);

impl v1::Store for Store {
    fn put(
        &self,
        request: Request<'_, v1::PutRequest>,
        mut response: v1::PutResponseMut<'_>,
    ) -> Result<(), Status> {
        let mut size = self.0.lock().expect("no panics");
        *size += request.message().value().len() as u64;
        response.set_size(*size);
        Ok(())
    }

    fn size(
        &self,
        _: Request<'_, v1::SizeRequest>,
        mut response: v1::SizeResponseMut<'_>,
    ) -> Result<(), Status> {
        response.set_size(*self.0.lock().expect("no panics"));
        Ok(())
    }

    async fn put_all(
        self: Arc<Self>,
        _: NestedContext,
        mut requests: StreamReceiver<v1::PutRequest>,
        mut responses: StreamSender<v1::PutResponse>,
    ) -> Result<(), Status> {
        while let Some(request) = requests.message().await? {
            let size = {
                let mut size = self.0.lock().expect("no panics");
                *size += request.message().value().len() as u64;
                *size
            };
            responses
                .send(&v1::PutResponse::new().with_size(size))
                .await?;
        }
        Ok(())
    }
}
