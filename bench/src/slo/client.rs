//! The client: an open loop over many endpoints, all in one thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling_endpoint::{CallOptions, Completion, ContinuationId, SessionId};
use starling_sim::queueing::Arrival;

use super::FLOWS;
use super::server::{HOLD, config};
use crate::device::{Device, Raw, endpoint, failed};
use crate::endpoint::caller::Failure;
use crate::error::BenchError;
use crate::latency::Latencies;

/// How long to sleep after polling all endpoints: a small part of a service time. The kernel takes
/// the core away from a real-time process that polls without end.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// An endpoint with its session.
struct Flow<I: Device> {
    endpoint: Raw<I>,
    session: SessionId,
    done: ContinuationId,
}

/// The requests of a run.
struct RunState {
    begin: Instant,
    requests: Vec<Arrival>,
    /// The first requests, which do not count: the queues are not full yet.
    skipped: usize,
    latencies: Latencies,
    answered: usize,
}

/// The time that workers held requests beyond what was asked for, over all runs.
#[derive(Default)]
struct Held {
    longer_ns: u64,
    requests: u64,
}

pub(super) struct Client<I: Device> {
    flows: Vec<Flow<I>>,
    state: Arc<Mutex<RunState>>,
    held: Arc<Mutex<Held>>,
    failure: Failure,
}

impl RunState {
    fn new(count: usize) -> Self {
        Self {
            begin: Instant::now(),
            requests: Vec::with_capacity(count),
            skipped: count / 10,
            latencies: Latencies::new(),
            answered: 0,
        }
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

impl<I: Device> Client<I> {
    /// Connects all flows; each has one open session.
    pub(super) fn connect(host: &str, address: &str) -> Result<Self, BenchError> {
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
            .map_err(|error| BenchError::io("setting the timer slack")(error.into()))?;
        // Clients reach a server of AF_XDP by ordinary sockets, too.
        let address = address.replace("xdp://vb/", "udp://");
        let mut client = Self {
            flows: Vec::with_capacity(FLOWS),
            state: Arc::new(Mutex::new(RunState::new(0))),
            held: Arc::default(),
            failure: Failure::default(),
        };
        // One after the other, so that they have consecutive numbers at the server.
        for flow in 0..FLOWS {
            let mut endpoint = endpoint::<I>(I::client(host), config())?;
            let done = client.continuation(&mut endpoint);
            let session = endpoint.connect(&address).map_err(failed)?;
            client.flows.push(Flow {
                endpoint,
                session,
                done,
            });
            let arrival = Arrival {
                at_ns: 0,
                service_ns: 0,
                flow: flow as u64,
            };
            client.run(std::iter::once(arrival), 1)?;
        }
        *client.held.lock() = Held::default();
        Ok(client)
    }

    fn continuation(&self, endpoint: &mut Raw<I>) -> ContinuationId {
        let (state, held, failure) = (
            Arc::clone(&self.state),
            Arc::clone(&self.held),
            self.failure.clone(),
        );
        endpoint.register_continuation(move |_, done| {
            let state = &mut *state.lock();
            let index = done.tag as usize;
            let asked_ns = state.requests[index].service_ns;
            let Some(held_ns) = answer(&done).filter(|held_ns| *held_ns >= asked_ns) else {
                failure.record_answer(I::SCHEME, &done);
                return;
            };
            state.answered += 1;
            if index >= state.skipped {
                let latency_ns = state.now_ns() - state.requests[index].at_ns;
                state.latencies.record(latency_ns);
            }
            let held = &mut *held.lock();
            held.longer_ns += held_ns - asked_ns;
            held.requests += 1;
        })
    }

    /// Sends `count` requests when they are due, waits for their answers, and returns the 99th
    /// percentile of their latencies, ns.
    pub(super) fn run(
        &mut self,
        arrivals: impl Iterator<Item = Arrival>,
        count: usize,
    ) -> Result<f64, BenchError> {
        *self.state.lock() = RunState::new(count);
        let mut arrivals = arrivals.take(count).peekable();
        while self.state.lock().answered < count {
            let now_ns = self.state.lock().now_ns();
            while let Some(arrival) = arrivals.next_if(|arrival| arrival.at_ns <= now_ns) {
                self.send(arrival)?;
            }
            for flow in &mut self.flows {
                flow.endpoint.poll().map_err(failed)?;
            }
            self.failure.take()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(self.state.lock().latencies.percentile(99.0) as f64)
    }

    fn send(&mut self, arrival: Arrival) -> Result<(), BenchError> {
        let tag = {
            let requests = &mut self.state.lock().requests;
            requests.push(arrival);
            requests.len() - 1
        };
        let index = (arrival.flow % self.flows.len() as u64) as usize;
        let flow = &mut self.flows[index];
        let asked = arrival.service_ns.to_le_bytes();
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(&asked);
        let options = CallOptions::default();
        flow.endpoint
            .call(flow.session, HOLD, &options, build, flow.done, tag as u64)
            .map(drop)
            .map_err(failed)
    }

    /// The time by which workers held requests longer than asked for, ns, on average.
    pub(super) fn held_longer_ns(&self) -> f64 {
        let held = self.held.lock();
        held.longer_ns as f64 / held.requests.max(1) as f64
    }
}

/// The time that a worker held a request, by the answer.
fn answer(done: &Completion<'_>) -> Option<u64> {
    let body = done.result.as_ref().ok()?.body();
    Some(u64::from_le_bytes(body.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use starling_endpoint::{WorkerConfig, WorkerHandler};
    use starling_io_udp::UdpIo;

    use super::*;
    use crate::slo::server::hold;

    /// A client of a server in another thread that answers `count` requests after those that open
    /// the sessions.
    fn with_server(count: usize, handler: WorkerHandler, client: impl FnOnce(Client<UdpIo>)) {
        let (ready, address) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut server = endpoint::<UdpIo>(UdpIo::server("127.0.0.1"), config()).unwrap();
                server.register_worker(HOLD, handler);
                server.start_workers(&WorkerConfig::new(2, 1000)).unwrap();
                ready.send(server.local_address()).unwrap();
                let all = (FLOWS + count) as u64;
                server
                    .run_until(|server| server.stats().responses == all)
                    .unwrap();
            });
            let address = address.recv().unwrap();
            client(Client::connect("127.0.0.1", &address).unwrap());
        });
    }

    #[test]
    fn every_request_is_answered_and_its_latency_begins_when_it_was_due() {
        // All at once: two workers have to hold ten each.
        let arrivals = (0..20).map(|flow| Arrival {
            at_ns: 0,
            service_ns: 1_000_000,
            flow,
        });
        with_server(20, Arc::new(hold), |mut client| {
            let p99_ns = client.run(arrivals, 20).unwrap();
            assert!(p99_ns >= 10_000_000.0 * 0.999, "{p99_ns}");
            assert!(client.held_longer_ns() > 0.0);
            assert_eq!(client.held.lock().requests, 20);
        });
    }

    #[test]
    fn an_answer_to_a_request_that_was_not_held_is_wrong() {
        let lies: WorkerHandler = Arc::new(|_, reply| {
            reply.buffer().extend_from_slice(&7_u64.to_le_bytes());
        });
        let arrival = Arrival {
            at_ns: 0,
            service_ns: 8,
            flow: 3,
        };
        with_server(1, lies, |mut client| {
            let error = client.run(std::iter::once(arrival), 1).unwrap_err();
            assert!(error.to_string().contains("a wrong answer"), "{error}");
        });
    }
}
