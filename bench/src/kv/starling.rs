//! The load generator's side of `kv.Kv`: an endpoint in this thread, and as many tasks on it as
//! there are operations in flight, each of which makes one call after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use starling::{Endpoint, EndpointConfig, LocalChannel};

use super::drive::{KvClient, Run, Stopwatch};
use super::load::{Load, Op, Ticket};
use crate::device::failed;
use crate::error::BenchError;
use starling_sample_services::api::kv::{
    DeleteRequest, GetRequest, GetResponseView, KvClient as Stub, MultiGetRequest, PutRequest,
    ScanRequest,
};

/// A connected load generator.
pub(super) struct Client {
    endpoint: Endpoint,
    stub: Stub<LocalChannel>,
    in_flight: u32,
}

impl Client {
    pub(super) fn connect(
        address: &str,
        config: EndpointConfig,
        in_flight: u32,
    ) -> Result<Self, BenchError> {
        let builder = Endpoint::builder().reach(address).config(config);
        let mut endpoint = builder.build().map_err(failed)?;
        let channel = endpoint.channel(address).map_err(failed)?;
        let connected = endpoint.block_on(channel.connect()).map_err(failed)?;
        connected.map_err(failed)?;
        Ok(Self {
            endpoint,
            stub: Stub::new(channel),
            in_flight,
        })
    }
}

impl KvClient for Client {
    fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError> {
        let job = Arc::new(Job {
            stub: self.stub.clone(),
            load: Arc::clone(load),
            time: run.stopwatch(),
            working: AtomicU32::new(self.in_flight),
            error: Mutex::default(),
        });
        for _ in 0..self.in_flight {
            self.endpoint.spawn(Arc::clone(&job).work());
        }
        let is_over = || {
            run.handle_time(run.now_ns(), &mut load.lock());
            job.working.load(Ordering::Relaxed) == 0
        };
        self.endpoint.run_until(is_over).map_err(failed)?;
        job.error.lock().take().map_or(Ok(()), Err)
    }

    fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError> {
        self.endpoint.block_on(future).map_err(failed)
    }
}

/// The state that the tasks of one run share.
struct Job {
    stub: Stub<LocalChannel>,
    load: Arc<Mutex<Load>>,
    time: Stopwatch,
    /// Tasks that have not ended.
    working: AtomicU32,
    /// The first error.
    error: Mutex<Option<BenchError>>,
}

impl Job {
    /// Makes calls until the load has no more of them.
    async fn work(self: Arc<Self>) {
        loop {
            let next = self.load.lock().poll(self.time.now_ns());
            let Some((ticket, op)) = next else {
                break;
            };
            if let Err(error) = self.call(ticket, op).await {
                self.load.lock().stop();
                self.error.lock().get_or_insert(error);
                break;
            }
        }
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    async fn call(&self, ticket: Ticket, op: Op) -> Result<(), BenchError> {
        match op {
            Op::Get { key } => {
                let mut request = GetRequest::new();
                request.set_key(&key);
                let answer = self.stub.get(&request).await.map_err(failed)?;
                let found = found(answer.message());
                self.load().handle_get(ticket, self.time.now_ns(), found)?;
            }
            Op::Put { key, value } => {
                let mut request = PutRequest::new();
                request.set_key(&key);
                request.set_value(&value);
                self.stub.put(&request).await.map_err(failed)?;
                self.load().handle_put(ticket, self.time.now_ns())?;
            }
            Op::Delete { key } => {
                let mut request = DeleteRequest::new();
                request.set_key(&key);
                let answer = self.stub.delete(&request).await.map_err(failed)?;
                let existed = answer.message().existed();
                self.load()
                    .handle_delete(ticket, self.time.now_ns(), existed)?;
            }
            Op::Scan { start, limit } => {
                let mut request = ScanRequest::new();
                request.set_start(&start);
                request.set_limit(limit);
                let answer = self.stub.scan(&request).await.map_err(failed)?;
                let records = answer.message().records().iter();
                let records = records.map(|record| (record.key(), record.value()));
                self.load()
                    .handle_scan(ticket, self.time.now_ns(), records)?;
            }
            Op::MultiGet { keys } => {
                let mut request = MultiGetRequest::new();
                request.keys_mut().extend(keys.iter().map(|key| &key[..]));
                let answer = self.stub.multi_get(&request).await.map_err(failed)?;
                let answers = answer.message().answers().iter().map(found);
                self.load()
                    .handle_multi_get(ticket, self.time.now_ns(), answers)?;
            }
        }
        Ok(())
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock()
    }
}

fn found(answer: GetResponseView<'_>) -> Option<&[u8]> {
    answer.found().then(|| answer.value())
}
