//! Messages whose end a device has left in their sender's memory.

use starling_proto::{
    Config, HEADER_BYTES, MIN_DATAGRAM, PREAMBLE_BYTES, SessionId, Tail, may_leave_tail,
};

use crate::net::{Net, Seen};

/// The end of a datagram. Its sender may have taken it back.
struct Left<'a> {
    bytes: &'a [u8],
    is_there: bool,
}

impl Tail for Left<'_> {
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.extend_from_slice(self.bytes);
        self.is_there
    }

    fn copy_to(&self, into: &mut [u8]) -> bool {
        into.copy_from_slice(self.bytes);
        self.is_there
    }
}

/// Bytes of a payload that are in the receive buffer.
const HEAD: usize = 5;

/// Host `to` takes a datagram of the other one, whose tail is there or was taken back.
fn take(net: &mut Net, to: usize, datagram: &[u8], is_there: bool) {
    let (head, bytes) = datagram.split_at(PREAMBLE_BYTES + HEADER_BYTES + HEAD);
    let tail = Left { bytes, is_there };
    net.hosts[to].take_tailed(net.now, 1 - to, head, &tail);
}

/// The network loses everything. Returns the last datagram of a host.
fn lose_last(net: &mut Net, host: usize) -> Vec<u8> {
    net.fate = Box::new(|_, _, _| 0);
    net.run_until(net.now + 1);
    let sent = net.log.iter().rfind(|(from, _)| *from == host);
    sent.expect("it sent something").1.clone()
}

fn pair(config: Config) -> (Net, SessionId) {
    let mut net = Net::new([Config::default(), config]);
    let session = net.connect(0, 1);
    net.run_ms(1);
    (net, session)
}

fn copying() -> Config {
    let mut config = Config::default();
    config.factors.zero_copy_requests = false;
    config
}

#[test]
fn a_message_whose_tail_was_taken_back_has_not_arrived_and_one_that_is_whole_runs_once() {
    for config in [Config::default(), copying()] {
        let (mut net, session) = pair(config);
        let body: Vec<u8> = (0..200).collect();
        net.request(0, session, 7, &body);
        let request = lose_last(&mut net, 0);
        take(&mut net, 1, &request, false);
        assert!(net.hosts[1].ran.is_empty(), "it has not arrived");
        take(&mut net, 1, &request, true);
        let response = lose_last(&mut net, 1);
        take(&mut net, 1, &request, true);
        let ran: Vec<_> = net.hosts[1].ran.iter().map(|(_, body)| body).collect();
        assert_eq!(ran, [&body], "once");

        assert_eq!(net.hosts[0].seen.len(), 1, "the session");
        for is_there in [false, true, true, false] {
            take(&mut net, 0, &response, is_there);
        }
        let reversed = body.iter().rev().copied().collect();
        assert_eq!(net.hosts[0].seen[1..], [Seen::Answer(7, reversed)], "once");
        let malformed = |host: usize| net.hosts[host].protocol.stats().frames_malformed;
        assert_eq!([0, 1].map(malformed), [0, 0]);
    }
}

#[test]
fn a_frame_of_another_length_or_kind_has_no_tail() {
    let (mut net, session) = pair(Config::default());
    net.request(0, session, 7, &[7; 200]);
    let mut request = lose_last(&mut net, 0);
    request.push(7);
    take(&mut net, 1, &request, true);
    request.truncate(request.len() - 2);
    take(&mut net, 1, &request, true);
    request.push(7);
    const PING: u8 = 16;
    let kind = std::mem::replace(&mut request[PREAMBLE_BYTES], PING);
    take(&mut net, 1, &request, true);
    assert_eq!(net.hosts[1].protocol.stats().frames_malformed, 3);
    assert!(net.hosts[1].ran.is_empty());
    request[PREAMBLE_BYTES] = kind;
    take(&mut net, 1, &request, true);
    assert_eq!(net.hosts[1].ran.len(), 1);
}

#[test]
fn fragments_leave_tails_and_so_do_large_messages_and_nothing_else() {
    let begins = |kind: u8, payload: u16| {
        let mut datagram = vec![0; MIN_DATAGRAM.max(PREAMBLE_BYTES + HEADER_BYTES)];
        datagram[PREAMBLE_BYTES] = kind;
        datagram[PREAMBLE_BYTES + 2..][..2].copy_from_slice(&payload.to_le_bytes());
        may_leave_tail(&datagram)
    };
    for kind in 0..32 {
        let by_length = [100, 32_767, 32_768, 65_535].map(|payload| begins(kind, payload));
        let expected = match kind {
            1 | 2 => [false, false, true, true],
            3 | 4 => [true; 4],
            _ => [false; 4],
        };
        assert_eq!(by_length, expected, "kind {kind}");
    }
    assert!(!may_leave_tail(&[1; PREAMBLE_BYTES + HEADER_BYTES - 1]));
}
