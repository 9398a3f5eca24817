//! Which kernels a device works on, and errors that name a kernel that is too old.
//!
//! A device never fails for the version alone: distributions backport features into kernels with
//! old version numbers. But an error number such as EINVAL hides that the kernel is too old. So an
//! error that is typical of old kernels names the version.

use starling_io::{Fault, IoError};

/// The capabilities that a process needs for a device. Without the last one the kernel's verifier
/// is stricter.
pub(crate) const CAPABILITIES: &str =
    "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON (root has them)";

/// A kernel's version, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

/// The first kernel that a device works on. The XDP program needs a section `xdp.frags`
/// (`BPF_F_XDP_HAS_FRAGS`) and `bpf_xdp_get_buff_len`, both from 5.18. All else is older: links of
/// XDP programs (5.9), atomic instructions with a result (5.12), `SO_NETNS_COOKIE` (5.14).
pub const OLDEST_KERNEL: KernelVersion = KernelVersion(5, 18);

/// The first kernel in which a frame may have several chunks (`XDP_USE_SG`), which a frame larger
/// than a page needs.
pub const LARGE_FRAMES_KERNEL: KernelVersion = KernelVersion(6, 6);

impl KernelVersion {
    /// The first two numbers of a release such as `6.18.0-rc1`.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self(
            numbers.next()?.parse().ok()?,
            numbers.next()?.parse().ok()?,
        ))
    }

    /// The version of this host's kernel, if it can be read.
    fn running() -> Option<Self> {
        Self::of_release(&rustix::system::uname().release().to_string_lossy())
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The error, with the advice to use a newer kernel if this one is too old and that may be the
/// cause.
#[cold]
pub(crate) fn or_too_old(error: IoError) -> IoError {
    explain(error, KernelVersion::running())
}

fn explain(mut error: IoError, running: Option<KernelVersion>) -> IoError {
    // The errors of a kernel that does not know a flag, an option, a call or an instruction.
    let unknown = [
        libc::EINVAL,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::ENOSYS,
        libc::E2BIG,
    ];
    let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error);
    let may_be = error.fault == Fault::Host && errno.is_some_and(|errno| unknown.contains(&errno));
    if let Some(running) = running
        && may_be
        && running < OLDEST_KERNEL
    {
        error.remedy = format!("use Linux {OLDEST_KERNEL} or later (this is {running}), or udp://");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let version = KernelVersion::of_release;
        assert_eq!(version("6.18.0-rc1+"), Some(KernelVersion(6, 18)));
        assert_eq!(version("5.10.0-28-amd64"), Some(KernelVersion(5, 10)));
        assert_eq!(version("unknown"), None);
        assert!(KernelVersion(5, 10) < OLDEST_KERNEL && OLDEST_KERNEL < LARGE_FRAMES_KERNEL);
        assert!(KernelVersion::running().is_some());
    }

    #[test]
    fn an_old_kernel_is_named_where_it_may_be_the_reason() {
        let explained = |fault, errno, running| {
            let error = std::io::Error::from_raw_os_error(errno);
            explain(IoError::from_os(fault, "bind", error, "other"), running).to_string()
        };
        let (old, new) = (Some(KernelVersion(5, 10)), Some(OLDEST_KERNEL));
        // A socket's network namespace before 5.14, a program's flags before 5.18.
        for errno in [libc::ENOPROTOOPT, libc::EINVAL] {
            let text = explained(Fault::Host, errno, old);
            let wanted = "use Linux 5.18 or later (this is 5.10), or udp://";
            assert!(text.contains(wanted), "{text}");
            for running in [new, None] {
                let text = explained(Fault::Host, errno, running);
                assert!(text.ends_with("other"), "{text}");
            }
        }
        for (fault, errno) in [
            (Fault::Host, libc::EPERM),
            (Fault::Host, libc::EBUSY),
            (Fault::Caller, libc::EINVAL),
        ] {
            let text = explained(fault, errno, old);
            assert!(text.ends_with("other"), "{text}");
        }
    }
}
