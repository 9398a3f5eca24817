//! Whom a device talks to: processes of its own user and of root, unless it is set to talk to all.
//!
//! The kernel shows all users that have no id in this user namespace as one, the *overflow uid*, which is
//! usually 65534. Two such users are not the same, though their numbers are.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::process::Uid;

/// The overflow uid of a kernel that does not say.
const DEFAULT_OVERFLOW_UID: u32 = 65_534;

/// How many ids there are: all but the one that means none.
const ALL_IDS: u64 = u32::MAX as u64;

/// Whether the process at the other end runs as this process's user or as root.
pub(crate) fn peer_is_ours_or_root(socket: &OwnedFd) -> rustix::io::Result<bool> {
    let uid = rustix::net::sockopt::socket_peercred(socket)?.uid;
    Ok(is_ours_or_root(
        uid,
        rustix::process::geteuid(),
        unmapped_uid(),
    ))
}

fn is_ours_or_root(uid: Uid, own: Uid, unmapped: Option<u32>) -> bool {
    Some(uid.as_raw()) != unmapped && (uid.is_root() || uid == own)
}

/// The id that stands for all users without one in this namespace; `None` if every user has one.
fn unmapped_uid() -> Option<u32> {
    static UNMAPPED: OnceLock<Option<u32>> = OnceLock::new();
    *UNMAPPED.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        if maps_all(&read("/proc/self/uid_map")) {
            return None;
        }
        let overflow = read("/proc/sys/kernel/overflowuid");
        Some(overflow.trim().parse().unwrap_or(DEFAULT_OVERFLOW_UID))
    })
}

/// Whether a `uid_map` has an id for every user. Its lines are: the first id in this namespace, the first
/// one outside, and how many.
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
        let permits =
            |uid, own, unmapped| is_ours_or_root(Uid::from_raw(uid), Uid::from_raw(own), unmapped);
        for unmapped in [None, Some(65_534)] {
            assert!(permits(1000, 1000, unmapped));
            assert!(permits(0, 1000, unmapped));
            assert!(!permits(1001, 1000, unmapped));
            assert!(!permits(65_534, 1000, unmapped));
            assert!(!permits(65_534, 0, unmapped));
        }
        assert!(!permits(65_534, 65_534, Some(65_534)));
        assert!(permits(65_534, 65_534, None));
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
