//! Packet I/O over shared memory between processes of one host.
