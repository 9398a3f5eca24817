//! As many sessions between two processes as eRPC's evaluation has on one node (NSDI'19,
//! section 6.3): 20,000.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::process::{self, Process};
use common::{LONG, far_addresses, payload};
use starling::{Endpoint, EndpointConfig, Idle};
use starling_endpoint::{CallOptions, MethodId, SessionId, SessionState};
use starling_io::{Clock, PacketIo};
use starling_io_shm::ShmIo;
use starling_io_tcp::TcpIo;
use starling_io_udp::UdpIo;
use starling_message::{Message, method_id};

const SESSIONS: usize = 20_000;
/// Sessions that open at a time.
const OPENING: usize = 1_000;
/// The memory of one session on either side, with the buffers of its calls. More is a leak.
const BYTES_OF_A_SESSION: u64 = 8 << 10;
/// The CPU time of one session on either side, opened, used once and closed. The measured time is far
/// below. The time of a loop that spins, or of a quadratic algorithm, is far above.
const CPU_OF_A_SESSION: Duration = Duration::from_micros(500);

fn config() -> EndpointConfig {
    let mut config = EndpointConfig {
        idle: Idle::Block,
        ..EndpointConfig::default()
    };
    // This host may have other work: no timeout may end a session.
    config.protocol.connect_timeout_ns = LONG.as_nanos() as u64;
    config.protocol.peer_timeout_ns = LONG.as_nanos() as u64;
    config.protocol.response_retention_ns = 2 * LONG.as_nanos() as u64;
    // Above the longest round trip with full queues. With the default of 50 ms, two processes that get a
    // tenth of a core each repeat all that is outstanding in each turn, and the repeats fill the queues.
    config.protocol.rto_max_ns = 500_000_000;
    // Works with socket buffers of any size that the host allows.
    config.protocol.overcommit = 1024;
    config
}

/// Not a test: [`Process::serve`] runs it in a process of its own.
#[test]
fn serve_in_this_process() {
    process::serve_if_told(config());
}

/// The memory and processor time that a process has used.
struct Used {
    memory: u64,
    cpu: Duration,
}

impl Used {
    fn of(process: &str) -> Self {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("it runs")
        };
        let status = read("status");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
        let stat = read("stat");
        // After the name, which may contain anything: fields 3 and on. Times are 14 and 15, in
        // hundredths of a second for any length of the kernel's ticks.
        let fields = stat.rsplit(") ").next().expect("a name in parentheses");
        let ticks: u64 = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum();
        Self {
            memory: kibibytes
                .and_then(|n| n.parse::<u64>().ok())
                .expect("a size")
                << 10,
            cpu: Duration::from_millis(10 * ticks),
        }
    }

    fn check(&self, before: &Self, side: &str) {
        let memory = self.memory - before.memory;
        let cpu = self.cpu - before.cpu;
        let sessions = SESSIONS as u32;
        assert!(
            memory <= u64::from(sessions) * BYTES_OF_A_SESSION,
            "{side}: {memory} bytes"
        );
        assert!(cpu <= sessions * CPU_OF_A_SESSION, "{side}: {cpu:?}");
    }
}

fn run_until<I: PacketIo, C: Clock>(
    endpoint: &mut starling_endpoint::Endpoint<I, C>,
    what: &str,
    done: impl Fn(&starling_endpoint::Endpoint<I, C>) -> bool,
) {
    let begun = Instant::now();
    (endpoint.run_until(|endpoint| {
        assert!(begun.elapsed() < LONG, "{what}");
        done(endpoint)
    }))
    .expect("a device that works");
}

fn open_use_and_close<I: PacketIo, C: Clock>(
    endpoint: &mut starling_endpoint::Endpoint<I, C>,
    address: &str,
) {
    let answered = Arc::new(AtomicUsize::new(0));
    let its_answered = Arc::clone(&answered);
    let count = endpoint.register_continuation(move |_, completion| {
        let sent = payload(&completion.tag.to_le_bytes());
        let response = completion.result.expect("an echo");
        assert_eq!(response.body(), sent.parts().0);
        its_answered.fetch_add(1, Ordering::Relaxed);
    });
    // Few enough at a time that the queues hold them, and their repeats.
    let mut sessions: Vec<SessionId> = Vec::new();
    while sessions.len() < SESSIONS {
        let wave: Vec<_> = (0..OPENING)
            .map(|_| endpoint.connect(address).expect("room for one more"))
            .collect();
        run_until(endpoint, "not all sessions opened", |endpoint| {
            (wave.iter().rev())
                .all(|session| endpoint.session_state(*session) == Some(SessionState::Connected))
        });
        sessions.extend(wave);
    }
    assert_eq!(endpoint.protocol().session_counts(), (SESSIONS, 0));

    let echo = MethodId(method_id("/test.Test/Echo"));
    let options = CallOptions::default();
    for (tag, session) in (0u64..).zip(&sessions) {
        let request = payload(&tag.to_le_bytes());
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(request.parts().0);
        endpoint
            .call(*session, echo, &options, build, count, tag)
            .expect("made");
    }
    run_until(endpoint, "not all calls were answered", |_| {
        answered.load(Ordering::Relaxed) == SESSIONS
    });
    assert_eq!(endpoint.calls_outstanding(), 0);

    for session in &sessions {
        endpoint.close(*session);
    }
    // The client forgets a session when the server has confirmed its end.
    run_until(endpoint, "not all sessions closed", |endpoint| {
        endpoint.protocol().session_counts() == (0, 0)
    });
    let session = endpoint.connect(address).expect("room again");
    run_until(endpoint, "no room after all closed", |endpoint| {
        endpoint.session_state(session) == Some(SessionState::Connected)
    });
}

#[test]
fn twenty_thousand_sessions_open_answer_and_close() {
    for address in far_addresses() {
        let server = Process::serve(&address);
        let its_id = server.id().to_string();
        let (ours, its) = (Used::of("self"), Used::of(&its_id));
        let mut endpoint = Endpoint::builder()
            .reach(&server.address)
            .config(config())
            .build()
            .expect("an endpoint");
        if let Some(raw) = endpoint.raw::<UdpIo>() {
            open_use_and_close(raw, &server.address);
        } else if let Some(raw) = endpoint.raw::<ShmIo>() {
            open_use_and_close(raw, &server.address);
        } else {
            let raw = endpoint.raw::<TcpIo>();
            open_use_and_close(raw.expect("the third device"), &server.address);
        }
        Used::of("self").check(&ours, "client");
        Used::of(&its_id).check(&its, "server");
    }
}
