//! Facts about the host, read from `/proc` and `/sys`.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use starling_io_xdp::KernelVersion;

/// Capabilities that devices use, and their numbers (capabilities(7)).
const CAPABILITIES: [(&str, u32); 6] = [
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_IPC_LOCK", 14),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// Facts about the host. `None`: the system does not report it.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) release: String,
    pub(super) version: Option<KernelVersion>,
    /// Processors that this process may use.
    pub(super) cores: usize,
    /// The set of capabilities, as a mask.
    pub(super) capabilities: u64,
    /// Bytes of memory that the process may lock; `None`: no limit.
    pub(super) memlock: Option<u64>,
    /// Bytes of available memory.
    pub(super) memory: Option<u64>,
    /// Huge pages of 2 MiB: free ones, and all.
    pub(super) hugepages: Option<(u64, u64)>,
    /// The largest receive buffer of a socket, in bytes (`net.core.rmem_max`).
    pub(super) rmem_max: Option<u64>,
}

impl Host {
    pub(super) fn read() -> Self {
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy().into_owned();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
        let free = number(&pages.join("free_hugepages"));
        Self {
            version: KernelVersion::of_release(&release),
            release,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            capabilities: capabilities(&status),
            memlock: getrlimit(Resource::Memlock).current,
            memory: kibibytes(&meminfo, "MemAvailable:"),
            hugepages: free.zip(number(&pages.join("nr_hugepages"))),
            rmem_max: number(Path::new("/proc/sys/net/core/rmem_max")),
        }
    }

    pub(super) fn has(&self, capability: &str) -> bool {
        let found = CAPABILITIES.iter().find(|(name, _)| *name == capability);
        found.is_some_and(|(_, bit)| self.capabilities & (1 << bit) != 0)
    }

    /// Whether the kernel has this version or a later one; true if its version is unknown.
    pub(super) fn is_at_least(&self, version: KernelVersion) -> bool {
        self.version.is_none_or(|own| own >= version)
    }
}

/// The effective capabilities in `/proc/self/status`; none if the line is missing.
fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// A figure of `/proc/meminfo`, in bytes.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// A file with one number.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_memory_are_read() {
        assert_eq!(
            capabilities("Name:\tx\nCapEff:\t0000008000003000\n"),
            0x80_0000_3000
        );
        assert_eq!(capabilities(""), 0);
        let meminfo = "MemTotal: 9 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(kibibytes(meminfo, "MemAvailable:"), Some(2 << 20));
        assert_eq!(kibibytes(meminfo, "Nothing:"), None);
    }

    #[test]
    fn a_capability_is_a_bit_of_the_mask() {
        let host = Host {
            capabilities: 1 << 39,
            ..Host::read()
        };
        assert!(host.has("CAP_BPF"));
        assert!(!host.has("CAP_NET_RAW"));
        assert!(!host.has("CAP_UNHEARD_OF"));
    }

    #[test]
    fn this_host_has_cores_a_version_and_memory() {
        let host = Host::read();
        assert!(host.cores >= 1);
        assert!(host.version.is_some(), "{host:?}");
        assert!(host.memory.is_some(), "{host:?}");
    }
}
