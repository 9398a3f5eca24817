//! What all these tests have: a service, an honest application, and what is there before a hostile one comes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use starling::managed::{ListRequest, OperatorClient};
use starling::{Channel, ServerHandle};
use starling_sample_services::api::bench::{EchoClient, Payload};

use crate::common::wait_until;
use crate::mesh::{Mesh, echo_at};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Sizes of the honest application's messages: in one packet, in several, from the message heap.
const SIZES: [usize; 4] = [0, 32, 4_000, 70_000];

/// Honest calls during an attack, at least.
const DURING: u64 = 100;

/// Calls before one.
const WARM_UP: u64 = 400;

/// All that a hostile application had comes back within this time of its end.
const BACK: Duration = Duration::from_secs(20);

pub(crate) struct Scene {
    pub(crate) mesh: Mesh,
    honest: EchoClient<Channel>,
    operator: OperatorClient<Channel>,
    /// The honest application's.
    _server: ServerHandle,
    files: Vec<String>,
    datapaths: usize,
    /// Whose datapaths may be left.
    processes: BTreeSet<u32>,
    _only: MutexGuard<'static, ()>,
}

impl Scene {
    /// A service with an honest application.
    pub(crate) fn begin() -> Self {
        let only = ONE_AT_A_TIME.lock();
        let mesh = Mesh::start();
        let server = echo_at("udp://127.0.0.1:0");
        let honest = EchoClient::new(mesh.channel(server.address()));
        let operator = mesh.operator();
        let mut scene = Self {
            mesh,
            honest,
            operator,
            _server: server,
            files: Vec::new(),
            datapaths: 0,
            processes: [std::process::id()].into(),
            _only: only,
        };
        // Devices open some files only when there is much to do.
        scene.during(|| (0..WARM_UP).for_each(|number| scene.call(number)));
        scene.know();
        scene
    }

    /// What there is now is what has to be left.
    pub(crate) fn know(&mut self) {
        self.datapaths = self.datapaths().len();
        self.files = files();
    }

    /// The same, with another honest application.
    pub(crate) fn know_with(&mut self, process: u32) {
        self.processes.insert(process);
        self.know();
    }

    /// The address by which an application reaches a server.
    pub(crate) fn via(&self, server: &str) -> String {
        format!("shm://{}?target={server}", self.mesh.name)
    }

    fn call(&self, number: u64) {
        let length = SIZES[number as usize % SIZES.len()];
        let data = vec![number as u8; length];
        let response = self.honest.call(&Payload::new().with_data(&data)).wait();
        let response = response.unwrap_or_else(|status| panic!("an honest call failed: {status}"));
        assert!(response.message().data() == data, "another answer");
    }

    /// The service serves, as if nobody else was there.
    pub(crate) fn check(&self) {
        (0..8).for_each(|number| self.call(number));
        assert!(self.mesh.is_running(), "the service has ended");
    }

    /// Attacks while the honest application calls.
    pub(crate) fn during<T>(&self, attack: impl FnOnce() -> T) -> T {
        let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let result = std::thread::scope(|scope| {
            let honest = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) || calls.load(Ordering::Relaxed) < DURING {
                    self.call(calls.fetch_add(1, Ordering::Relaxed));
                }
            });
            let over = Over(&over);
            let result = attack();
            drop(over);
            if let Err(panic) = honest.join() {
                std::panic::resume_unwind(panic);
            }
            result
        });
        self.check();
        result
    }

    /// The processes of all datapaths, 0 for those without.
    pub(crate) fn datapaths(&self) -> Vec<u32> {
        let listing = self.operator.list(&ListRequest::new()).wait();
        let listing = listing.expect("a listing");
        let datapaths = listing.message().datapaths().iter();
        datapaths.map(|datapath| datapath.process()).collect()
    }

    pub(crate) fn has_datapath_of(&self, process: u32) -> bool {
        self.datapaths().contains(&process)
    }

    /// The hostile application is gone, and all that it had.
    pub(crate) fn check_nothing_left(&self) {
        self.check();
        let ended = Instant::now();
        wait_until(|| {
            let (files, datapaths) = (files(), self.datapaths());
            let processes: BTreeSet<u32> = datapaths.iter().copied().collect();
            assert!(
                ended.elapsed() < BACK,
                "{files:?} and not {:?}; {} datapaths and not {}, of {processes:?}",
                self.files,
                datapaths.len(),
                self.datapaths
            );
            files.len() <= self.files.len()
                && datapaths.len() <= self.datapaths
                && processes.is_subset(&self.processes)
        });
        self.check();
    }
}

/// What the process has open, but for what its threads sleep by, which they open when they first do.
fn files() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fd").expect("it is there");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let names = links.map(|link| link.display().to_string());
    let mut names: Vec<_> = names
        .filter(|name| name != "anon_inode:[eventfd]")
        .collect();
    names.sort();
    names
}

/// Says that an attack is over, however it ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
