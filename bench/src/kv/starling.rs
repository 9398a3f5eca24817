//! The load generators' side of `kv.Kv`: as many tasks as there are operations in flight, each of which
//! makes one call after the other. All settings are the defaults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use starling::{Caller, Channel, Endpoint, LocalChannel};
use starling_sample_services::api::kv::{
    DeleteRequest, GetRequest, GetResponseView, KvClient as Stub, MultiGetRequest, PutRequest,
    ScanRequest,
};
use tokio::runtime::Runtime;

use super::drive::{KvClient, Run, Stopwatch};
use super::load::{Load, Op, Ticket};
use crate::callers::Flavor;
use crate::device::failed;
use crate::error::BenchError;

/// How long the tasks run before the time is looked at.
const LOOK: std::time::Duration = std::time::Duration::from_millis(1);

/// A channel in a tokio runtime of this thread.
pub(super) struct ChannelClient {
    runtime: Runtime,
    stub: Stub<Channel>,
    in_flight: u32,
}

impl ChannelClient {
    pub(super) fn connect(address: &str, in_flight: u32) -> Result<Self, BenchError> {
        let runtime = Flavor::CurrentThread.runtime()?;
        let channel = runtime.block_on(Channel::connect(address));
        Ok(Self {
            runtime,
            stub: Stub::new(channel.map_err(failed)?),
            in_flight,
        })
    }
}

impl KvClient for ChannelClient {
    fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError> {
        let job = Job::new(&self.stub, load, run, self.in_flight);
        for _ in 0..self.in_flight {
            self.runtime.spawn(Arc::clone(&job).work());
        }
        self.runtime.block_on(async {
            while !job.is_over() {
                run.handle_time(run.now_ns(), &mut load.lock());
                tokio::time::sleep(LOOK).await;
            }
        });
        job.result()
    }

    fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError> {
        Ok(self.runtime.block_on(future))
    }
}

/// An endpoint in this thread, and tasks on it.
pub(super) struct LocalClient {
    endpoint: Endpoint,
    stub: Stub<LocalChannel>,
    in_flight: u32,
}

impl LocalClient {
    pub(super) fn connect(address: &str, in_flight: u32) -> Result<Self, BenchError> {
        let mut endpoint = Endpoint::client(address).map_err(failed)?;
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

impl KvClient for LocalClient {
    fn drive(&mut self, load: &Arc<Mutex<Load>>, run: &mut Run<'_>) -> Result<(), BenchError> {
        let job = Job::new(&self.stub, load, run, self.in_flight);
        for _ in 0..self.in_flight {
            self.endpoint.spawn(Arc::clone(&job).work());
        }
        let is_over = || {
            run.handle_time(run.now_ns(), &mut load.lock());
            job.is_over()
        };
        self.endpoint.run_until(is_over).map_err(failed)?;
        job.result()
    }

    fn block_on<F: Future>(&mut self, future: F) -> Result<F::Output, BenchError> {
        self.endpoint.block_on(future).map_err(failed)
    }
}

/// The state that the tasks of one run share.
struct Job<C> {
    stub: Stub<C>,
    load: Arc<Mutex<Load>>,
    time: Stopwatch,
    /// Tasks that have not ended.
    working: AtomicU32,
    /// The first error.
    error: Mutex<Option<BenchError>>,
}

impl<C: Caller> Job<C> {
    fn new(stub: &Stub<C>, load: &Arc<Mutex<Load>>, run: &Run<'_>, tasks: u32) -> Arc<Self> {
        Arc::new(Self {
            stub: stub.clone(),
            load: Arc::clone(load),
            time: run.stopwatch(),
            working: AtomicU32::new(tasks),
            error: Mutex::default(),
        })
    }

    fn is_over(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0
    }

    fn result(&self) -> Result<(), BenchError> {
        self.error.lock().take().map_or(Ok(()), Err)
    }

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
