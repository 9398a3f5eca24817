//! The key-value service over tonic: its server and its load generator.

use std::cell::RefCell;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use starling_bench::BenchError;
use starling_bench::kv::drive::{KvClient, Run, Settings};
use starling_bench::kv::{self as bench_kv, Load, Op, Ticket};
use starling_sample_services::kv::Store;
use starling_sample_services::kv::store::StoreError;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use crate::api::kv::kv_client::KvClient as Stub;
use crate::api::kv::kv_server::{Kv, KvServer};
use crate::api::kv::{
    DeleteRequest, DeleteResponse, GetRequest, GetResponse, MultiGetRequest, MultiGetResponse,
    PutRequest, PutResponse, Record, ScanRequest, ScanResponse,
};
use crate::{connect, failed, runtime, serve_on_loopback};

/// Role of the server; its argument is the number of records that it holds at the start.
pub const SERVER_ROLE: &str = "tonic-kv";

/// Role of the load generator; its arguments are the server's address and the
/// [`Settings`](starling_bench::kv::drive::Settings) of the load.
pub const CLIENT_ROLE: &str = "tonic-kv-load";

struct Service {
    store: Store,
}

/// The status of a request that the store refuses.
fn refused(error: StoreError) -> Status {
    Status::invalid_argument(error.to_string())
}

impl Service {
    fn lookup(&self, key: &[u8]) -> Result<GetResponse, Status> {
        let answer = |value: Option<&[u8]>| GetResponse {
            found: value.is_some(),
            value: value.unwrap_or_default().to_vec(),
        };
        self.store.get(key, answer).map_err(refused)
    }
}

#[tonic::async_trait]
impl Kv for Service {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetResponse>, Status> {
        self.lookup(&request.get_ref().key).map(Response::new)
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let PutRequest { key, value } = request.get_ref();
        self.store.put(key, value).map_err(refused)?;
        Ok(Response::new(PutResponse {}))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        let existed = self.store.delete(&request.get_ref().key).map_err(refused)?;
        Ok(Response::new(DeleteResponse { existed }))
    }

    async fn scan(&self, request: Request<ScanRequest>) -> Result<Response<ScanResponse>, Status> {
        let ScanRequest { start, limit } = request.get_ref();
        let mut records = Vec::new();
        self.store
            .scan(start, *limit, |key, value| {
                records.push(Record {
                    key: key.to_vec(),
                    value: value.to_vec(),
                });
            })
            .map_err(refused)?;
        Ok(Response::new(ScanResponse { records }))
    }

    async fn multi_get(
        &self,
        request: Request<MultiGetRequest>,
    ) -> Result<Response<MultiGetResponse>, Status> {
        let keys = &request.get_ref().keys;
        Store::check_count(keys.len()).map_err(refused)?;
        let answers: Result<_, Status> = keys.iter().map(|key| self.lookup(key)).collect();
        Ok(Response::new(MultiGetResponse { answers: answers? }))
    }
}

pub(crate) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let records = match arguments {
        [records] => records.parse().ok(),
        _ => None,
    };
    let records = records.ok_or_else(|| BenchError::BadRoleArguments {
        role: SERVER_ROLE.into(),
        why: "expected a number of records".into(),
    })?;
    let store = Store::with_initial(records);
    serve_on_loopback(|incoming| {
        Server::builder()
            .add_service(KvServer::new(Service { store }))
            .serve_with_incoming(incoming)
    })
}

pub(crate) fn drive(arguments: &[String]) -> Result<(), BenchError> {
    let (address, rest) = arguments
        .split_first()
        .ok_or_else(|| BenchError::BadRoleArguments {
            role: CLIENT_ROLE.into(),
            why: "expected the server's address as the first argument".into(),
        })?;
    let settings = Settings::from_arguments(CLIENT_ROLE, rest)?;
    let runtime = runtime()?;
    let stub = Stub::new(runtime.block_on(connect(address))?);
    let mut client = Client {
        runtime,
        stub,
        in_flight: settings.in_flight,
    };
    bench_kv::drive::drive(&mut client, address, &settings)
}

struct Client {
    runtime: Runtime,
    stub: Stub<Channel>,
    in_flight: u32,
}

impl KvClient for Client {
    /// Drives one future for each operation in flight, all on this thread. The first error ends the
    /// run.
    fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError> {
        let load = &mut *load.lock();
        let shared = RefCell::new(Shared { load, run });
        let worker = |_| worker(self.stub.clone(), &shared);
        let mut workers: FuturesUnordered<_> = (0..self.in_flight).map(worker).collect();
        self.runtime.block_on(async {
            while let Some(ended) = workers.next().await {
                ended?;
            }
            Ok(())
        })
    }

    fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError> {
        Ok(self.runtime.block_on(future))
    }
}

/// The load and the run, which all workers share. A worker never borrows them across an await.
struct Shared<'a, 'b> {
    load: &'a mut Load,
    run: &'a mut Run<'b>,
}

/// Makes one operation of the load after the other, until the load has no more.
async fn worker(
    mut stub: Stub<Channel>,
    shared: &RefCell<Shared<'_, '_>>,
) -> Result<(), BenchError> {
    loop {
        let next = {
            let Shared { load, run } = &mut *shared.borrow_mut();
            let now_ns = run.now_ns();
            run.handle_time(now_ns, load);
            load.poll(now_ns)
        };
        let Some((ticket, op)) = next else {
            return Ok(());
        };
        call(&mut stub, shared, ticket, op).await?;
    }
}

/// Makes the call of an operation and hands its answer to the load, which checks it.
async fn call(
    stub: &mut Stub<Channel>,
    shared: &RefCell<Shared<'_, '_>>,
    ticket: Ticket,
    op: Op,
) -> Result<(), BenchError> {
    match op {
        Op::Get { key } => {
            let key = key.to_vec();
            let answer = stub.get(GetRequest { key }).await.map_err(failed)?;
            let Shared { load, run } = &mut *shared.borrow_mut();
            load.handle_get(ticket, run.now_ns(), found(answer.get_ref()))?;
        }
        Op::Put { key, value } => {
            let (key, value) = (key.to_vec(), value.to_vec());
            stub.put(PutRequest { key, value }).await.map_err(failed)?;
            let Shared { load, run } = &mut *shared.borrow_mut();
            load.handle_put(ticket, run.now_ns())?;
        }
        Op::Delete { key } => {
            let key = key.to_vec();
            let answer = stub.delete(DeleteRequest { key }).await.map_err(failed)?;
            let Shared { load, run } = &mut *shared.borrow_mut();
            load.handle_delete(ticket, run.now_ns(), answer.get_ref().existed)?;
        }
        Op::Scan { start, limit } => {
            let start = start.to_vec();
            let request = ScanRequest { start, limit };
            let answer = stub.scan(request).await.map_err(failed)?;
            let records = &answer.get_ref().records;
            let Shared { load, run } = &mut *shared.borrow_mut();
            let records = records.iter().map(|r| (&r.key[..], &r.value[..]));
            load.handle_scan(ticket, run.now_ns(), records)?;
        }
        Op::MultiGet { keys } => {
            let keys = keys.map(|key| key.to_vec()).to_vec();
            let request = MultiGetRequest { keys };
            let answer = stub.multi_get(request).await.map_err(failed)?;
            let answers = &answer.get_ref().answers;
            let Shared { load, run } = &mut *shared.borrow_mut();
            load.handle_multi_get(ticket, run.now_ns(), answers.iter().map(found))?;
        }
    }
    Ok(())
}

/// The value in an answer. `None`: the store does not have the key.
fn found(answer: &GetResponse) -> Option<&[u8]> {
    answer.found.then_some(&answer.value[..])
}
