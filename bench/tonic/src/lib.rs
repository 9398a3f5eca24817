//! The benchmarks' gRPC peer: the same services over tonic.
