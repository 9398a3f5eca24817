//! Errors of the program: why it is not on an interface, and what to do.

use std::io;

use starling_io::{Fault, IoError};

use crate::kernel::{CAPABILITIES, OLDEST_KERNEL};

/// The kernel refuses the program: the process lacks a capability, or the verifier rejects it.
pub(super) fn refusal(attempt: &str, error: io::Error, log: &str) -> IoError {
    if error.raw_os_error() == Some(libc::EPERM) {
        return system_error(attempt, error);
    }
    let last = log
        .lines()
        .rev()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let reason: Vec<&str> = last.take(4).collect();
    let mut problem = format!("the kernel refuses the program ({error})");
    if !reason.is_empty() {
        let reason = reason.into_iter().rev().collect::<Vec<_>>().join(", ");
        problem += &format!(": {reason}");
    }
    let remedy = match error.raw_os_error() {
        // The verifier is stricter without all of them.
        Some(libc::EACCES) => format!("run with {CAPABILITIES}; else {}", load_remedy()),
        _ => load_remedy(),
    };
    IoError::new(Fault::Host, attempt, problem, remedy).with_source(error)
}

fn load_remedy() -> String {
    format!(
        "use Linux {OLDEST_KERNEL} or later with CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or \
         udp://"
    )
}

/// The program could not be loaded.
pub(super) fn load_error(attempt: &str, error: &dyn std::error::Error) -> IoError {
    let mut problem = error.to_string();
    let mut source = error.source();
    let mut os = None;
    while let Some(cause) = source {
        problem += &format!(": {cause}");
        os = cause.downcast_ref::<io::Error>().or(os);
        source = cause.source();
    }
    match os.and_then(io::Error::raw_os_error) {
        Some(errno) => system_error(attempt, io::Error::from_raw_os_error(errno)),
        None => IoError::new(Fault::Host, attempt, problem, load_remedy()),
    }
}

/// A call failed that has nothing to do with the interface.
pub(super) fn system_error(attempt: &str, error: io::Error) -> IoError {
    let remedy = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("run with {CAPABILITIES}, or use udp://")
        }
        _ => load_remedy(),
    };
    IoError::from_os(Fault::Host, attempt, error, remedy)
}

/// The program is loaded, but cannot be put on this interface.
pub(super) fn attach_error(attempt: &str, interface: &str, error: io::Error) -> IoError {
    let remedy = match error.raw_os_error() {
        Some(libc::ENODEV) => "use an interface of this host; `ip link` lists them".into(),
        Some(libc::EBUSY) => take_off(interface),
        Some(libc::EOPNOTSUPP) => {
            "leave mode= out so that generic mode is tried, or use udp://".into()
        }
        Some(libc::ERANGE | libc::EINVAL) => format!(
            "lower the MTU of {interface} (its driver may allow 3498 bytes with XDP), try \
             mode=generic, or use udp://"
        ),
        _ => return system_error(attempt, error),
    };
    IoError::from_os(Fault::Host, attempt, error, remedy)
}

/// A program with a link goes with the processes that hold the link. `ip` detaches a program
/// without one.
fn take_off(interface: &str) -> String {
    format!(
        "end the program that put it there or, if that has ended, `ip link set dev {interface} xdp \
         off`; or use another interface, or udp://"
    )
}

/// A program that is not Starling's is on the interface.
pub(super) fn occupied(attempt: &str, interface: &str, id: u32, name: &str) -> IoError {
    let problem = format!("it has another one, {name:?} with id {id}");
    IoError::new(Fault::Host, attempt, problem, take_off(interface))
}

/// The program of another version of Starling is on the interface. Its maps need not have the
/// layout of this version.
pub(super) fn other_version(attempt: &str, interface: &str, id: u32) -> IoError {
    let problem = format!(
        "another version of Starling has its program there (id {id}), and two versions cannot \
         share an interface"
    );
    let remedy = format!(
        "end the processes of the other version that use {interface}, or run the same version in \
         all of them; or use another interface, or udp://"
    );
    IoError::new(Fault::Host, attempt, problem, remedy)
}

/// The program is there, but cannot be shared.
pub(super) fn join_error(attempt: &str, error: io::Error) -> IoError {
    let remedy = "to share the interface with another process that uses it, run both with \
                  CAP_SYS_ADMIN; or use another interface, or udp://";
    IoError::from_os(Fault::Host, attempt, error, remedy)
}
