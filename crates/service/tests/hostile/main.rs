//! Hostile applications at a service, written against the device and the session protocol.
//!
//! ```text
//!  hostile application ──┐               ┌ as many descriptors and datapaths as before, soon after its end
//!  (a process, or raw    ▼               │
//!   sockets and rings) service ──────────┤
//!                        ▲               └ runs
//!  honest application ───┘ every call gets its answer, before, during and after
//! ```
//!
//! One test at a time: each counts the descriptors of the process, where the service runs, too.
//!
//! | module | holds |
//! |---|---|
//! | `scene` | the service, the honest application, what is left over |
//! | `device` | sockets, files and rings that break the device's rules |
//! | `wrong_requests` | sessions with requests that mean nothing, or too much |
//! | `processes` | processes that attack, and are killed or stopped while they do |
//! | `control` | the control interface: garbage, and what is another's |
//!
//! What they are made with is that of the tests of `starling-io-shm`, and of the hostile clients of `starling`.

#[path = "../../../starling/tests/common/mod.rs"]
mod common;
mod control;
#[path = "../../../starling/tests/hostile_clients/datagrams.rs"]
mod datagrams;
mod device;
#[path = "../../../starling/tests/hostile_clients/hostile.rs"]
mod hostile;
#[path = "../../../starling/tests/hostile_clients/memory.rs"]
mod memory;
#[path = "../mesh/mod.rs"]
mod mesh;
mod processes;
#[path = "../../../starling/tests/hostile_clients/raw.rs"]
mod raw;
#[path = "../../../starling/tests/hostile_clients/requests.rs"]
mod requests;
mod scene;
#[path = "../../../starling/tests/hostile_clients/service.rs"]
#[allow(dead_code, reason = "these tests serve it in threads of their own")]
mod service;
#[path = "../../../starling/tests/hostile_clients/sessions.rs"]
mod sessions;
#[path = "../../../io-shm/tests/common/mod.rs"]
mod shm;
#[path = "../../../starling/tests/hostile_clients/wire.rs"]
mod wire;
mod wrong_requests;

use shm::sockets;
