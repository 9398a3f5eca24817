//! Cores and pinning: the client runs on the first core, the server on the second.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::error::BenchError;

/// The two cores that a benchmark uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Number of the client's core.
    pub client: usize,
    /// Number of the server's core; the client's own if the process may use only one.
    pub server: usize,
}

impl Cores {
    /// The first two cores that this process may run on.
    pub fn of_this_process() -> Result<Self, BenchError> {
        let allowed = sched_getaffinity(None::<Pid>)
            .map_err(|e| BenchError::io("asking which cores may be used")(e.into()))?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        // A process that runs has at least one.
        let client = cores.next().unwrap_or(0);
        Ok(Self {
            client,
            server: cores.next().unwrap_or(client),
        })
    }

    /// Whether client and server share one core. Figures of such a run mean little.
    pub fn shared(self) -> bool {
        self.client == self.server
    }
}

/// Pins the calling thread, and threads that it starts later, to one core.
pub fn pin_thread(core: usize) -> Result<(), BenchError> {
    pin_to(&[core])
}

/// The two cores of a role's last arguments. `None`: they are no numbers of two cores.
pub fn two_cores(arguments: &[String]) -> Option<[usize; 2]> {
    let [first, second] = arguments else {
        return None;
    };
    Some([first.parse().ok()?, second.parse().ok()?])
}

/// Pins the calling thread, and threads that it starts later, to these cores.
pub fn pin_to(cores: &[usize]) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    sched_setaffinity(None::<Pid>, &set)
        .map_err(|e| BenchError::io(format!("moving a thread to cores {cores:?}"))(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_core() {
        let cores = Cores::of_this_process().unwrap();
        std::thread::spawn(move || {
            pin_thread(cores.server).unwrap();
            assert_eq!(rustix::thread::sched_getcpu(), cores.server);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        std::thread::spawn(|| assert!(pin_thread(CpuSet::MAX_CPU - 1).is_err()))
            .join()
            .unwrap();
    }
}
