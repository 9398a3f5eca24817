//! Messages and services that the facade's tests and its documentation use.

/// Methods with streams whose handlers block.
pub mod blocking {
    starling::include_proto!("blocking");
}

/// A service with well-known types.
pub mod calendar {
    starling::include_proto!("calendar");
}

/// The service of the documentation's example.
pub mod hello {
    starling::include_proto!("hello");
}

/// Methods with streams.
pub mod streams {
    starling::include_proto!("streams");
}

/// What hostile clients attack.
pub mod target {
    starling::include_proto!("target");
}

/// Everything a test wants a server to do.
pub mod test {
    starling::include_proto!("test");
}

/// A service as it was first.
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/v1/store.rs"));
}

/// The same with a field more: compatible.
pub mod v2 {
    include!(concat!(env!("OUT_DIR"), "/v2/store.rs"));
}

/// The same with a field of another type: incompatible.
pub mod v3 {
    include!(concat!(env!("OUT_DIR"), "/v3/store.rs"));
}
