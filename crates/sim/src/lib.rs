//! A deterministic fabric in virtual time that implements the packet I/O traits.
