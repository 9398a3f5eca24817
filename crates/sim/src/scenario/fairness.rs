//! Sessions of one endpoint share its link fairly, and the checker detects a wheel that is not
//! fair.

use starling_proto::{Congestion, RequestError};

use super::MS;
use super::capture::Capture;
use super::cluster::Cluster;
use super::incast::{cx4, node_config};
use super::machine::{Application, Call};
use crate::check::{Violation, fair};
use crate::fabric::HostId;

const SERVERS: u32 = 4;
const BYTES: usize = 200_000;
const MIN_FAIRNESS: f64 = 0.95;

/// One client that keeps two requests outstanding on each of its sessions.
#[derive(Default)]
struct Sharing {
    sent: u64,
    done: [u64; SERVERS as usize],
}

impl Sharing {
    fn next(&mut self, channel: usize, calls: &mut Vec<Call>) {
        self.sent += 1;
        calls.push(Call {
            channel,
            tag: self.sent * u64::from(SERVERS) + channel as u64,
            len: BYTES,
        });
    }
}

impl Application for Sharing {
    fn connected(&mut self, _: HostId, channel: usize, _: u64, calls: &mut Vec<Call>) {
        self.next(channel, calls);
        self.next(channel, calls);
    }

    fn ended(
        &mut self,
        _: HostId,
        tag: u64,
        result: Result<&[u8], RequestError>,
        _: u64,
        calls: &mut Vec<Call>,
    ) {
        assert!(result.is_ok(), "{result:?}");
        let channel = (tag % u64::from(SERVERS)) as usize;
        self.done[channel] += 1;
        self.next(channel, calls);
    }
}

fn share(with_bug: bool) -> Result<(), Violation> {
    let mut cluster = Cluster::new(cx4(1, SERVERS + 1));
    let config = node_config(Congestion::Dctcp);
    let client = cluster.add(&config);
    for _ in 0..SERVERS {
        let server = cluster.add(&config);
        cluster.open(client, server, 0);
    }
    let mut app = Sharing::default();
    cluster.run(&mut app, MS);
    let mut capture = Capture::new();
    capture.favours = with_bug.then_some((0, 0));
    cluster.machine(client).capture = Some(capture);
    app.done = Default::default();
    cluster.run(&mut app, 20 * MS);
    fair(&app.done, MIN_FAIRNESS)
}

#[test]
fn sessions_of_an_endpoint_share_its_link() {
    assert_eq!(share(false), Ok(()));
}

#[test]
fn an_unfair_pacing_wheel_is_found() {
    let found = share(true).expect_err("a session that goes first is not fair");
    assert_eq!(found.checker, "fairness");
}
