//! The server of `kv.Kv`. All handlers are inline: even a scan takes only some microseconds.
//!
//! | module | holds |
//! |---|---|
//! | [`store`] | the store that the handlers read and write |
//! | [`record`] | the records that a store starts with: a reader can check each key and value |
//! | [`mix`] | the permutation that scatters records over the order of keys |

pub mod mix;
pub mod record;
pub mod store;

use starling::{Request, Status};

use crate::api::kv::{
    DeleteRequest, DeleteResponseMut, GetRequest, GetResponseMut, Kv, KvServer, MultiGetRequest,
    MultiGetResponseMut, PutRequest, PutResponseMut, ScanRequest, ScanResponseMut,
};
use store::StoreError;

pub use store::Store;

/// The handlers, on a store.
#[derive(Debug)]
pub struct KvService {
    store: Store,
}

/// The service, which a server can add, on a store with the first `records` records of
/// [`record::initial`].
pub fn server(records: u64) -> KvServer<KvService> {
    KvServer::new(KvService {
        store: Store::with_initial(records),
    })
}

/// The status of a request that the store refuses.
fn refused(error: StoreError) -> Status {
    Status::invalid_argument(error.to_string())
}

impl KvService {
    /// Answers one read.
    fn lookup(&self, key: &[u8], mut answer: GetResponseMut<'_>) -> Result<(), Status> {
        let found = |value: Option<&[u8]>| {
            if let Some(value) = value {
                answer.set_found(true);
                answer.set_value(value);
            }
        };
        self.store.get(key, found).map_err(refused)
    }
}

impl Kv for KvService {
    fn get(
        &self,
        request: Request<'_, GetRequest>,
        response: GetResponseMut<'_>,
    ) -> Result<(), Status> {
        self.lookup(request.message().key(), response)
    }

    fn put(&self, request: Request<'_, PutRequest>, _: PutResponseMut<'_>) -> Result<(), Status> {
        let request = request.message();
        let stored = self.store.put(request.key(), request.value());
        stored.map_err(refused)
    }

    fn delete(
        &self,
        request: Request<'_, DeleteRequest>,
        mut response: DeleteResponseMut<'_>,
    ) -> Result<(), Status> {
        let existed = self.store.delete(request.message().key());
        response.set_existed(existed.map_err(refused)?);
        Ok(())
    }

    fn scan(
        &self,
        request: Request<'_, ScanRequest>,
        mut response: ScanResponseMut<'_>,
    ) -> Result<(), Status> {
        let request = request.message();
        let mut records = response.records_mut();
        let scanned = self
            .store
            .scan(request.start(), request.limit(), |key, value| {
                let mut record = records.push_default();
                record.set_key(key);
                record.set_value(value);
            });
        scanned.map_err(refused)
    }

    fn multi_get(
        &self,
        request: Request<'_, MultiGetRequest>,
        mut response: MultiGetResponseMut<'_>,
    ) -> Result<(), Status> {
        let keys = request.message().keys();
        Store::check_count(keys.len()).map_err(refused)?;
        let mut answers = response.answers_mut();
        answers.reserve(keys.len());
        for key in keys.iter() {
            self.lookup(key, answers.push_default())?;
        }
        Ok(())
    }
}
