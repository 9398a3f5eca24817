use std::sync::{Barrier, Mutex, mpsc};

use starling_call::{MethodId, Peer};
use starling_io::PeerId;
use starling_proto::{Msgbuf, RequestId};

use super::*;
use crate::admission::Timing;
use crate::payload::Payload;
use crate::server::{Answer, RequestInfo};
use crate::workers::job::WorkerHandler;

#[derive(Clone)]
struct Stopped;

impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }
}

struct Doorbell(Mutex<mpsc::Sender<()>>);

impl Wake for Doorbell {
    fn wake(&self) {
        // The test may be over.
        let _ = self.0.lock().expect("no panic").send(());
    }
}

fn start(config: &WorkerConfig) -> (ThreadPool, mpsc::Receiver<()>) {
    let (sender, rung) = mpsc::channel();
    let doorbell: Arc<dyn Wake> = Arc::new(Doorbell(Mutex::new(sender)));
    (
        ThreadPool::new(config, &Stopped, &doorbell).expect("threads"),
        rung,
    )
}

/// The rest of a scan that is under way, then a whole one.
fn poll(pool: &mut ThreadPool) -> Option<Box<Job>> {
    pool.poll().or_else(|| pool.poll())
}

fn job(bytes: usize, handler: WorkerHandler) -> Box<Job> {
    job_of(1, bytes, handler)
}

fn job_of(peer: u32, bytes: usize, handler: WorkerHandler) -> Box<Job> {
    // Untouched zeros take no memory.
    let mut message = Msgbuf::from_vec(vec![0; bytes]);
    let payload = Payload::Reassembled {
        message: &mut message,
        fields_at: 0,
        body_at: 0,
    };
    let info = RequestInfo {
        method: MethodId(1),
        peer: PeerId(peer),
        timing: Timing::without_deadline(0),
    };
    let message = payload.into_owned(|_| Msgbuf::new());
    let mut job = Job::empty();
    job.fill(
        RequestId::NONE,
        handler,
        message,
        info,
        Peer::unknown(),
        Answer::default(),
    );
    job
}

/// Each worker gets two jobs. The first job of worker 0 ends only when all others have run,
/// including the one behind it.
#[test]
fn a_job_behind_a_blocked_handler_is_run_by_another_worker() {
    for idle in [Idle::default(), Idle::Block] {
        let mut config = WorkerConfig::new(2, 8);
        config.idle = idle;
        let (mut pool, rung) = start(&config);
        let (begun, begins) = mpsc::channel();
        let (ran, runs) = mpsc::channel::<()>();
        let runs = Mutex::new(runs);
        let waits: WorkerHandler = Arc::new(move |_, _| {
            begun.send(()).expect("the test waits");
            let runs = runs.lock().expect("no panic");
            (0..5).for_each(|_| runs.recv().expect("the others run"));
        });
        assert!(pool.submit(job(1, waits)).is_ok());
        begins.recv().expect("it begins");
        let runs: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("it waits"));
        for _ in 0..5 {
            assert!(pool.submit(job(1, Arc::clone(&runs))).is_ok());
        }
        let mut done = 0;
        while done < 6 {
            rung.recv().expect("something was run");
            while poll(&mut pool).is_some() {
                done += 1;
            }
        }
        assert_eq!(pool.in_flight(), 0);
    }
}

/// The pool has not polled yet that the other worker is done, so both count as busy.
#[test]
fn a_sleeping_worker_is_woken_for_a_job_behind_a_blocked_handler() {
    for idle in [Idle::default(), Idle::Block] {
        let mut config = WorkerConfig::new(2, 8);
        config.idle = idle;
        let (mut pool, rung) = start(&config);
        let gate = Arc::new(Barrier::new(2));
        let (begun, begins) = mpsc::channel();
        let its_gate = Arc::clone(&gate);
        let blocks: WorkerHandler = Arc::new(move |_, _| {
            begun.send(()).expect("the test waits");
            its_gate.wait();
        });
        assert!(pool.submit(job(1, blocks)).is_ok());
        begins.recv().expect("it begins");
        assert!(pool.submit(job(1, Arc::new(|_, _| ()))).is_ok());
        rung.recv().expect("it was run");
        while !pool.shared.sleepers.any() {
            std::thread::yield_now();
        }
        assert!(pool.submit(job(1, Arc::new(|_, _| ()))).is_ok());
        assert_eq!(pool.policy.load(0), 2, "it waits behind the blocked one");
        let patience = Duration::from_secs(20);
        let run = rung.recv_timeout(patience);
        gate.wait();
        run.expect("it was run while the handler was blocked");
    }
}

/// The other worker always has its next job before the last one ends, so it is never idle.
#[test]
fn a_job_behind_a_blocked_handler_is_run_although_all_other_workers_are_busy() {
    let (mut pool, rung) = start(&WorkerConfig::new(2, 8));
    let (begun, begins) = mpsc::channel();
    let blocks = || -> (mpsc::Sender<()>, WorkerHandler) {
        let (open, gate) = mpsc::channel();
        let (begun, gate) = (begun.clone(), Mutex::new(gate));
        let handler = move |_: &mut _, _: &mut _| {
            // The test may be over.
            let _ = begun.send(());
            let _ = gate.lock().expect("no panic").recv();
        };
        (open, Arc::new(handler))
    };
    let (_stays_shut, blocked) = blocks();
    let (open, busy) = blocks();
    for handler in [blocked, Arc::clone(&busy)] {
        assert!(pool.submit(job(1, handler)).is_ok());
        begins.recv().expect("it begins");
    }
    let (ran, runs) = mpsc::channel();
    let behind: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("the test waits"));
    assert!(pool.submit(job(1, behind)).is_ok());
    assert_eq!(pool.policy.load(0), 2, "it is behind the blocked one");
    let mut is_run = false;
    for _ in 0..3 * STEAL_INTERVAL {
        assert!(pool.submit(job(1, Arc::clone(&busy))).is_ok());
        open.send(()).expect("one waits");
        while poll(&mut pool).is_none() {
            rung.recv().expect("it is run");
        }
        is_run = runs.try_recv().is_ok();
        if is_run {
            break;
        }
    }
    assert!(is_run);
}

#[test]
fn an_idle_worker_gets_its_flows_although_jobs_wait_for_another_worker() {
    let mut config = WorkerConfig::new(2, 1);
    config.model = crate::jbsq::QueueModel::Partitioned;
    let (mut pool, _) = start(&config);
    let (_open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let blocks: WorkerHandler = Arc::new(move |_, _| {
        let _ = gate.lock().expect("no panic").recv();
    });
    let mut accepted = 0;
    while pool.submit(job_of(1, 1, Arc::clone(&blocks))).is_ok() {
        accepted += 1;
    }
    let (ran, runs) = mpsc::channel();
    let handler: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("the test waits"));
    let mut flows = 2..20;
    let is_accepted = flows.any(|peer| pool.submit(job_of(peer, 1, Arc::clone(&handler))).is_ok());
    assert!(is_accepted, "some are the other worker's");
    runs.recv().expect("it is run");
    assert_eq!(accepted, 2, "one runs, and one may wait");
}

/// Far more jobs than there is room for, from handlers that panic now and then.
#[test]
fn every_job_comes_back_once_in_every_mode() {
    use crate::jbsq::QueueModel;
    use crate::workers::job::JobEnd;

    for (model, depth) in [
        (QueueModel::SingleQueue, 1),
        (QueueModel::SingleQueue, 2),
        (QueueModel::Grouped(2), 3),
        (QueueModel::Partitioned, 8),
    ] {
        let mut config = WorkerConfig::new(4, 16);
        (config.model, config.depth) = (model, depth);
        let (mut pool, rung) = start(&config);
        let handler: WorkerHandler = Arc::new(|request, reply| {
            assert!(!request.body().len().is_multiple_of(7), "as planned");
            reply.buffer().push(request.body().len() as u8);
        });
        let (mut sent, mut back, mut panics) = (0, vec![0_u32; 200], 0);
        while back.iter().sum::<u32>() < 200 {
            if sent < 200 && pool.in_flight() < 17 {
                let job = job_of(sent as u32 + 1, sent + 1, Arc::clone(&handler));
                assert!(
                    pool.submit(job).is_ok(),
                    "at least one runs and 16 may wait"
                );
                sent += 1;
                continue;
            }
            rung.recv().expect("a job was run");
            while let Some(mut job) = poll(&mut pool) {
                let number = job.flow();
                back[number as usize - 1] += 1;
                let (_, answer, end) = job.take_parts();
                match end {
                    JobEnd::Panicked => panics += 1,
                    JobEnd::Answered => {
                        assert_eq!(answer.message.head(), [number as u8]);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(back.iter().all(|times| *times == 1));
        assert_eq!(panics, 200 / 7);
    }
}
