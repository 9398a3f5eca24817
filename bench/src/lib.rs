//! Benchmarks of Starling beside its floors and its peers.
