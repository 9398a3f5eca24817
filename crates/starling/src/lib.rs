//! Starling: datacenter RPC in microseconds.
