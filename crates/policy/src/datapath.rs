//! Whose calls pass a policy.

use crate::spec::Side;

/// The way of one application's calls to a server, or of calls to an application.
#[derive(Clone, Debug)]
pub struct Datapath {
    /// No other datapath has it, or had it, while the service runs.
    pub id: u64,
    /// Which end of calls the application is.
    pub side: Side,
    /// The application's program, as `ps` shows it, without control characters. Empty: it ended, or is not to be seen.
    pub program: String,
    /// The address of the server, as its callers write it, without control characters.
    pub server: String,
}
