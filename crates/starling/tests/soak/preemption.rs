//! Preemption at random: threads that are stopped between any two instructions, moved to the other
//! core, of different priorities, and beside threads that keep a core busy.
//!
//! ```text
//!  preemptor ── SIGUSR1 ──▶ any thread: its handler yields or sleeps, then the thread goes on
//!            ── affinity ─▶ any thread: the kernel moves it now
//!  hog ── spins on one core for milliseconds
//! ```
#![allow(unsafe_code, reason = "signals and their handlers take system calls")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::random::{Random, SharedRandom};

/// Of naps in signal handlers and wakers.
static NAPS: SharedRandom = SharedRandom::new();

/// Stops the calling thread for a moment: mostly by a yield, sometimes for up to 2 ms, seldom for
/// 20 ms. Async-signal-safe.
fn nap() {
    let micros = match NAPS.below(1000) {
        0..600 => 0,
        600..900 => NAPS.below(100),
        900..997 => NAPS.below(2_000),
        _ => 20_000,
    };
    if micros == 0 {
        // SAFETY: it takes no argument.
        unsafe { libc::sched_yield() };
        return;
    }
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: (micros * 1000) as libc::c_long,
    };
    // SAFETY: the time is valid, and a null pointer says that what is left does not matter.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

extern "C" fn stop_for_a_moment(_: libc::c_int) {
    // SAFETY: errno is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The interrupted code must find the errno of its own system call.
    let kept = unsafe { *errno };
    nap();
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Has threads stop for a moment at SIGUSR1.
pub(crate) fn install(seed: u64) {
    NAPS.seed(seed);
    let handler: extern "C" fn(libc::c_int) = stop_for_a_moment;
    // SAFETY: all zeros are an action without flags that blocks no signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is valid, and its handler is async-signal-safe.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "a handler for SIGUSR1");
}

/// For wakers, which run while somebody drives.
pub(crate) fn nap_sometimes() {
    if NAPS.below(8) == 0 {
        nap();
    }
}

/// What a thread does between two steps.
pub(crate) fn disturb(random: &mut Random) {
    match random.below(20) {
        0..3 => std::thread::yield_now(),
        3..5 => std::thread::sleep(random.micros(500)),
        5 => move_thread(None, random),
        _ => {}
    }
}

/// Gives the calling thread a priority that it keeps: only root may raise it again.
pub(crate) fn choose_priority(random: &mut Random) {
    let nice = random.one_of(&[0, 0, 0, 5, 10]);
    // A host that forbids it makes a run of equal priorities.
    let _ = setpriority_process(None, nice);
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(Some(Pid::from_raw(process_id()).expect("not 0")));
    let allowed = allowed.expect("a mask of this process");
    (0..CpuSet::MAX_CPU)
        .filter(|&core| allowed.is_set(core))
        .collect()
}

fn process_id() -> i32 {
    std::process::id() as i32
}

/// Moves a thread, or the calling one, to one core, or lets it run on all.
fn move_thread(thread: Option<Pid>, random: &mut Random) {
    // The main thread is never moved, so its mask is the process's.
    let cores = cores();
    let mut set = CpuSet::new();
    match random.percent(70) {
        true => set.set(random.one_of(&cores)),
        false => cores.into_iter().for_each(|core| set.set(core)),
    }
    // The thread may have ended.
    let _ = sched_setaffinity(thread, &set);
}

/// The threads of this process but for the main one.
fn threads() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    let names = entries.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
    numbers.filter(|&thread| thread != process_id()).collect()
}

/// Preempts threads until `ended`.
pub(crate) fn preempt(ended: &AtomicBool, mut random: Random) {
    let mut known = Vec::new();
    let mut steps = 0_u32;
    while !ended.load(Ordering::Relaxed) {
        if steps.is_multiple_of(32) {
            known = threads();
        }
        steps = steps.wrapping_add(1);
        let thread = random.one_of(&known);
        if random.percent(40) {
            move_thread(Pid::from_raw(thread), &mut random);
        } else {
            // SAFETY: it takes numbers. A thread that has ended is an error, which changes nothing.
            unsafe { libc::syscall(libc::SYS_tgkill, process_id(), thread, libc::SIGUSR1) };
        }
        std::thread::sleep(random.micros(400));
    }
}

/// Keeps a core busy, for some milliseconds at a time, until `ended`.
pub(crate) fn hog(ended: &AtomicBool, mut random: Random) {
    while !ended.load(Ordering::Relaxed) {
        move_thread(None, &mut random);
        let (begun, length) = (Instant::now(), random.micros(8_000));
        while begun.elapsed() < length {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(5) + random.micros(20_000));
    }
}
