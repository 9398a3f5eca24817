//! Workers of a device whose counts are wrong.

use std::sync::mpsc;

use starling_call::{MethodId, Peer};
use starling_io::{Datagram, PeerId};
use starling_proto::{Config, Msgbuf, Protocol, Secrets};

use super::*;
use crate::server::Answer;
use crate::workers::job::WorkerHandler;
use starling_call::OwnedMessage;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct Stopped;

impl Clock for Stopped {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// A doorbell at which a worker or the dispatch thread sleeps.
#[derive(Default)]
struct Doorbell {
    rung: Mutex<bool>,
    change: std::sync::Condvar,
}

impl Doorbell {
    /// Sleeps until it rings, at most for `timeout`.
    fn wait(&self, timeout: Option<Duration>) {
        let rung = self.rung.lock().expect("no panic");
        let (mut rung, _) = self
            .change
            .wait_timeout_while(rung, timeout.unwrap_or(Duration::MAX), |rung| !*rung)
            .expect("no panic");
        *rung = false;
    }
}

impl Wake for Doorbell {
    fn wake(&self) {
        *self.rung.lock().expect("no panic") = true;
        self.change.notify_all();
    }
}

/// When the device's count of a free worker, which is wrong at first, becomes right.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Corrected {
    /// In the second [`WorkerIo::wait`] of the worker.
    InWait,
    /// When the pool reports held jobs.
    WhenHeld,
    /// The worker counts as busy for ever, however often it waits.
    #[default]
    Never,
}

/// A device that receives nothing.
#[derive(Default)]
struct Deaf {
    corrected: Corrected,
    /// The count of the worker is right.
    is_right: AtomicBool,
    asleep: AtomicBool,
    /// How often the pool looked for blocked workers.
    checks: AtomicUsize,
    /// The worker has called [`WorkerIo::receive`].
    began: AtomicBool,
    completed: AtomicUsize,
    methods: Mutex<Vec<u32>>,
    doorbell: Arc<Doorbell>,
}

impl Deaf {
    fn new(corrected: Corrected) -> Arc<Self> {
        Arc::new(Self {
            corrected,
            ..Self::default()
        })
    }
}

struct Part(Arc<Deaf>);

impl WorkerIo for Part {
    fn receive(&mut self) -> bool {
        self.0.began.store(true, Ordering::SeqCst);
        false
    }

    fn datagram(&self) -> Datagram<'_> {
        unreachable!("nothing was received")
    }

    fn answer(&mut self, _: [&[u8]; 3]) -> bool {
        unreachable!("nothing was received")
    }

    fn hand_over(&mut self) {}

    fn discard(&mut self) {}

    fn complete(&mut self) {
        self.0.completed.fetch_add(1, Ordering::SeqCst);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        let is_second = self.0.asleep.swap(true, Ordering::SeqCst);
        if is_second && self.0.corrected == Corrected::InWait {
            self.0.is_right.store(true, Ordering::SeqCst);
        }
        self.0.doorbell.wait(timeout);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.0.doorbell) as Arc<dyn Wake>
    }
}

struct Counts(Arc<Deaf>);

impl Steering for Counts {
    fn add_key(&mut self, key: u32) {
        let begun = Instant::now();
        while !self.0.began.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < PATIENCE, "no thread is there yet");
            std::thread::yield_now();
        }
        self.0.methods.lock().expect("no panic").push(key);
    }

    fn reserve(&mut self) -> Option<usize> {
        self.0.is_right.load(Ordering::SeqCst).then_some(0)
    }

    fn avoid_blocked(&mut self) {
        self.0.checks.fetch_add(1, Ordering::SeqCst);
    }

    fn set_held(&mut self, held: usize) {
        if held > 0 && self.0.corrected == Corrected::WhenHeld {
            self.0.is_right.store(true, Ordering::SeqCst);
        }
    }

    fn stop(&mut self) {}
}

/// A pool of one worker, its device, and the doorbell of the dispatch thread.
fn pool(idle: Idle, corrected: Corrected) -> (SteeredPool, Arc<Deaf>, Arc<Doorbell>) {
    let (device, doorbell) = (Deaf::new(corrected), Arc::<Doorbell>::default());
    let dispatcher = Arc::clone(&doorbell) as Arc<dyn Wake>;
    let pool = pool_of(&device, idle, Arc::default(), dispatcher);
    (pool, device, doorbell)
}

fn pool_of(
    device: &Arc<Deaf>,
    idle: Idle,
    methods: Arc<WorkerMethods>,
    dispatcher: Arc<dyn Wake>,
) -> SteeredPool {
    let steered = Steered {
        steering: Box::new(Counts(Arc::clone(device))),
        workers: vec![Box::new(Part(Arc::clone(device)))],
    };
    let secrets = Secrets {
        token_key: [1; 16],
        cookie_key: [0; 16],
    };
    let mut proto = Protocol::new(Config::default(), secrets, 0).expect("sound");
    let config = WorkerConfig {
        idle,
        ..WorkerConfig::new(1, 10)
    };
    let claims = proto.share_claims(0);
    let pool = SteeredPool::new(&config, steered, claims, methods, &Stopped, dispatcher, 64);
    pool.expect("threads")
}

fn job(handler: WorkerHandler) -> Box<Job> {
    job_of(1, handler)
}

fn job_of(peer: u32, handler: WorkerHandler) -> Box<Job> {
    let info = RequestInfo {
        method: MethodId(1),
        peer: PeerId(peer),
        timing: Timing::without_deadline(0),
    };
    let mut job = Job::empty();
    let message = OwnedMessage::of_body(Msgbuf::new().head().to_vec());
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

#[test]
fn a_job_is_run_that_is_held_because_the_count_of_a_free_worker_is_wrong() {
    let adaptive = Idle::Adaptive {
        spin: Duration::ZERO,
    };
    for idle in [Idle::Block, Idle::Spin, adaptive] {
        let (mut pool, device, dispatcher) = pool(idle, Corrected::InWait);
        // If it sleeps at all, it sleeps before there is a job.
        let begun = Instant::now();
        while idle != Idle::Spin && !device.asleep.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < PATIENCE, "it stays awake");
            std::thread::yield_now();
        }
        assert!(pool.submit(job(Arc::new(|_, _| ()))).is_ok());
        while pool.poll().is_none() {
            assert!(begun.elapsed() < PATIENCE, "it was not run: {idle:?}");
            dispatcher.wait(Some(PATIENCE));
        }
        assert_eq!(pool.in_flight(), 0);
    }
}

#[test]
fn a_worker_that_becomes_free_just_before_a_job_is_held_gets_that_job() {
    let (mut pool, _, _) = pool(Idle::Spin, Corrected::WhenHeld);
    let (ran, runs) = mpsc::channel();
    let handler: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("the test waits"));
    assert!(pool.submit(job(handler)).is_ok());
    // The dispatch thread does not poll again.
    runs.recv_timeout(PATIENCE).expect("it was run");
}

#[test]
fn a_refused_job_does_not_count_as_held() {
    // The worker must not become free while the pool decides: the pool would accept the job.
    let (mut pool, _, _) = pool(Idle::Block, Corrected::Never);
    pool.capacity = 0;
    assert!(pool.submit(job(Arc::new(|_, _| ()))).is_err());
    assert_eq!(pool.held.len(), 0);
    assert_eq!(pool.shared.held.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_leaves_room_among_the_held_jobs_for_others() {
    let (mut pool, _, _) = pool(Idle::Block, Corrected::Never);
    let mut fill = |peer| {
        let submit = || pool.submit(job_of(peer, Arc::new(|_, _| ())));
        std::iter::repeat_with(submit)
            .take_while(Result::is_ok)
            .count()
    };
    assert_eq!([1, 1, 2, 3, 4].map(&mut fill), [5, 0, 3, 1, 1], "of ten");
    assert_eq!(fill(5), 0, "more clients than places");
    assert_eq!(pool.in_flight(), pool.held.len());
}

#[test]
fn the_pool_looks_for_blocked_workers_at_intervals() {
    let (mut pool, device, _) = pool(Idle::Block, Corrected::Never);
    let mut checks_at = |now_ns| {
        pool.maintain(now_ns);
        device.checks.load(Ordering::SeqCst)
    };
    let begun = 7 * MAINTAIN_NS;
    assert_eq!(checks_at(begun), 1);
    assert_eq!(checks_at(begun + MAINTAIN_NS - 1), 1);
    assert_eq!(checks_at(begun + MAINTAIN_NS), 2);
    assert_eq!(checks_at(begun + 3 * MAINTAIN_NS), 3);
    assert_eq!(checks_at(u64::MAX), 4);
}

/// Wakes no thread, but reports how many jobs the worker had completed.
struct CompletionRecorder(Arc<Deaf>, Mutex<mpsc::Sender<usize>>);

impl Wake for CompletionRecorder {
    fn wake(&self) {
        let completed = self.0.completed.load(Ordering::SeqCst);
        // The test may be over.
        let _ = self.1.lock().expect("no panic").send(completed);
    }
}

#[test]
fn a_worker_counts_as_free_when_it_wakes_the_dispatch_thread() {
    let device = Arc::<Deaf>::default();
    device.is_right.store(true, Ordering::SeqCst);
    let (sender, wakes) = mpsc::channel();
    let dispatcher = Arc::new(CompletionRecorder(Arc::clone(&device), Mutex::new(sender)));
    let mut pool = pool_of(&device, Idle::Block, Arc::default(), dispatcher);
    assert!(pool.submit(job(Arc::new(|_, _| ()))).is_ok());
    let completed = wakes.recv_timeout(PATIENCE).expect("it was run");
    assert_eq!(completed, 1);
}

#[test]
fn methods_are_steered_once_there_are_threads_and_when_they_are_added_later() {
    let device = Arc::<Deaf>::default();
    let methods = Arc::<WorkerMethods>::default();
    let handler = || -> Option<WorkerHandler> { Some(Arc::new(|_, _| ())) };
    methods.set(MethodId(1), handler());
    let dispatcher = Arc::<Doorbell>::default();
    let table = Arc::clone(&methods);
    let mut pool = pool_of(&device, Idle::Block, table, dispatcher);
    let known = || std::mem::take(&mut *device.methods.lock().expect("no panic"));
    assert_eq!(known(), [1]);
    pool.maintain(0);
    assert_eq!(known(), []);
    methods.set(MethodId(2), handler());
    pool.maintain(MAINTAIN_NS);
    let mut all = known();
    all.sort_unstable();
    assert_eq!(all, [1, 2]);
}
