//! What a thread's endpoint and device have done.

use starling_endpoint::{ProtocolStats, Stats};
use starling_io::DeviceReport;

/// What one thread's endpoint and its device have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStats {
    /// The address of the device: peers reach the endpoint there.
    pub address: String,
    /// What the endpoint did.
    pub endpoint: Stats,
    /// What its session protocol did, and which frames it dropped.
    pub protocol: ProtocolStats,
    /// What the device is, and what it has counted.
    pub device: DeviceReport,
}
