//! Compiles .proto files to Starling messages and stubs, from build.rs.
