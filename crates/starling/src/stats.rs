//! Counters of a thread's endpoint and device.

use starling_endpoint::{ProtocolStats, Stats};
use starling_io::DeviceReport;

/// Counters of one thread's endpoint and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStats {
    /// The address of the device: peers reach the endpoint there.
    pub address: String,
    /// Counters of the endpoint.
    pub endpoint: Stats,
    /// Counters of its session protocol, and of the frames that it dropped.
    pub protocol: ProtocolStats,
    /// The mode of the device, and its counters.
    pub device: DeviceReport,
}
