//! Whom a device talks to: processes of its own user and of root, unless it is set to talk to another or to all.
//!
//! The kernel shows all users that have no id in this user namespace as one, the *overflow uid*, which is
//! usually 65534. Two such users are not the same, though their numbers are.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use starling_io::PeerProcess;

use crate::ShmConfig;
use crate::readers::ReaderProcess;

/// The overflow uid, or gid, of a kernel that does not say.
const DEFAULT_OVERFLOW_ID: u32 = 65_534;

/// How many ids there are: all but the one that means none.
const ALL_IDS: u64 = u32::MAX as u64;

/// Whose connection it is, for limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A process of this process's user or of root.
    Process(i32),
    /// Another user, with all processes: a user that has one may make more.
    User(u32),
}

impl Origin {
    /// Who is at the other end; `None` if the kernel does not say, as of a process outside of this pid
    /// namespace.
    pub(crate) fn of(socket: &OwnedFd) -> Option<Self> {
        let peer = peer_of(socket).ok()?;
        if !is_permitted(peer.uid) {
            return Some(Self::User(peer.uid));
        }
        (peer.pid != 0).then_some(Self::Process(peer.pid))
    }

    /// A number that no other origin has. It is not 0.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Process(pid) => u64::from(pid as u32),
            Self::User(uid) => 1 << 32 | u64::from(uid),
        }
    }
}

/// Whether the process at the other end runs as this process's user or as root.
pub(crate) fn peer_is_ours_or_root(socket: &OwnedFd) -> rustix::io::Result<bool> {
    Ok(is_permitted(peer_of(socket)?.uid))
}

/// The process at the other end, if it may read messages of this process: it runs as this process's user, as root, or
/// as the other user who is talked to.
pub(crate) fn reader(socket: &OwnedFd, other_user: Option<u32>) -> Option<ReaderProcess> {
    let peer = peer_of(socket).ok()?;
    let is_of_other_user = !is_permitted(peer.uid);
    if is_of_other_user && !is_other(peer.uid, other_user, unmapped_uid()) {
        return None;
    }
    Some(ReaderProcess {
        uid: peer.uid,
        pid: u32::try_from(peer.pid).unwrap_or(0),
        is_of_other_user,
    })
}

/// Whether the process at the other end runs as this user, who has an id in this namespace.
fn peer_is(socket: &OwnedFd, user: Option<u32>) -> bool {
    peer_of(socket).is_ok_and(|peer| is_other(peer.uid, user, unmapped_uid()))
}

/// Whether a device with these settings talks to the process at the other end.
pub(crate) fn is_admitted(socket: &OwnedFd, config: &ShmConfig) -> bool {
    config.allow_other_users
        || peer_is_ours_or_root(socket).unwrap_or(false)
        || peer_is(socket, config.other_user)
}

fn is_other(uid: u32, wanted: Option<u32>, unmapped: Option<u32>) -> bool {
    Some(uid) != unmapped && Some(uid) == wanted
}

/// The process at the other end, for those who serve it.
pub(crate) fn process_of(socket: &OwnedFd) -> Option<PeerProcess> {
    let peer = peer_of(socket).ok()?;
    let mapped = |id: u32, unmapped: Option<u32>| (Some(id) != unmapped).then_some(id);
    Some(PeerProcess {
        pid: u32::try_from(peer.pid).ok().filter(|pid| *pid != 0),
        uid: mapped(peer.uid, unmapped_uid()),
        gid: mapped(peer.gid, unmapped_gid()),
    })
}

fn is_permitted(uid: u32) -> bool {
    is_ours_or_root(uid, rustix::process::geteuid().as_raw(), unmapped_uid())
}

fn is_ours_or_root(uid: u32, own: u32, unmapped: Option<u32>) -> bool {
    Some(uid) != unmapped && (uid == 0 || uid == own)
}

/// The process at the other end, as it was when it connected or began to listen. Without `rustix`, whose
/// type has no room for the process id zero: a process outside of this pid namespace.
fn peer_of(socket: &OwnedFd) -> rustix::io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `peer`, which has so many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(peer),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The id that stands for all users without one in this namespace; `None` if every user has one.
fn unmapped_uid() -> Option<u32> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    *UNMAPPED.get_or_init(|| unmapped("/proc/self/uid_map", "/proc/sys/kernel/overflowuid"))
}

/// The same for groups.
fn unmapped_gid() -> Option<u32> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    *UNMAPPED.get_or_init(|| unmapped("/proc/self/gid_map", "/proc/sys/kernel/overflowgid"))
}

fn unmapped(map: &str, overflow: &str) -> Option<u32> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    if maps_all(&read(map)) {
        return None;
    }
    Some(read(overflow).trim().parse().unwrap_or(DEFAULT_OVERFLOW_ID))
}

/// Whether a `uid_map` or `gid_map` has an id for every user or group. Its lines are: the first id in this
/// namespace, the first one outside, and how many.
fn maps_all(uid_map: &str) -> bool {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    let mapped: Option<u64> = uid_map.lines().map(count).sum();
    mapped == Some(ALL_IDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_uid_is_nobody_unless_every_user_has_an_id() {
        for unmapped in [None, Some(65_534)] {
            assert!(is_ours_or_root(1000, 1000, unmapped));
            assert!(is_ours_or_root(0, 1000, unmapped));
            assert!(!is_ours_or_root(1001, 1000, unmapped));
            assert!(!is_ours_or_root(65_534, 1000, unmapped));
            assert!(!is_ours_or_root(65_534, 0, unmapped));
        }
        assert!(!is_ours_or_root(65_534, 65_534, Some(65_534)));
        assert!(is_ours_or_root(65_534, 65_534, None));
    }

    #[test]
    fn one_other_user_is_admitted_unless_its_id_stands_for_all_without_one() {
        assert!(is_other(1001, Some(1001), Some(65_534)));
        assert!(!is_other(1002, Some(1001), Some(65_534)));
        assert!(!is_other(1001, None, Some(65_534)));
        assert!(!is_other(65_534, Some(65_534), Some(65_534)));
        assert!(is_other(65_534, Some(65_534), None));
    }

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = OwnedFd::from(socket);
        let own = Origin::Process(std::process::id() as i32);
        match peer_is_ours_or_root(&socket) {
            Ok(true) => assert_eq!(Origin::of(&socket), Some(own)),
            // A user without an id.
            result => assert_eq!((result, unmapped_uid().is_some()), (Ok(false), true)),
        }
        let process = process_of(&socket).expect("the kernel says");
        assert_eq!(process.pid, Some(std::process::id()));
        let uid = rustix::process::geteuid().as_raw();
        assert!(process.uid == Some(uid) || unmapped_uid() == Some(uid));
        let gid = rustix::process::getegid().as_raw();
        assert!(process.gid == Some(gid) || unmapped_gid() == Some(gid));
    }

    #[test]
    fn a_map_of_all_users_is_told_from_others() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 0 1000\n1000 1000 4294966295\n"));
        for map in ["", "nonsense", "0 1000 1\n", "0 100000 65536\n", "0 0\n"] {
            assert!(!maps_all(map), "{map:?}");
        }
    }
}
