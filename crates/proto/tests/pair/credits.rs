//! Credits: both ends agree on them, even if frames are lost.

use starling_proto::{Config, SessionId};

use crate::net::{Net, Seen};

const MS: u64 = 1_000_000;

/// A client whose sessions want so many credits.
fn wanting(credits: u16) -> Config {
    Config {
        credits,
        ..Config::default()
    }
}

/// A server that can grant so many credits.
fn granting(credits: usize) -> Config {
    Config {
        rx_queue_datagrams: credits,
        overcommit: 1,
        ..Config::default()
    }
}

/// Host 1 serves and can grant ten credits; hosts 0 and 2 hold eight of them.
fn three() -> Net {
    Net::new([wanting(8), granting(10), wanting(8)])
}

/// Opens two sessions with the server, one after the other. The first gets all credits except those
/// that the server keeps for others.
fn rich_and_poor(net: &mut Net, rich: usize, poor: usize) -> (SessionId, SessionId) {
    let first = net.connect(rich, 1);
    net.run_ms(1);
    let second = net.connect(poor, 1);
    net.run_ms(2);
    let have = (credits(net, rich, first), credits(net, poor, second));
    assert_eq!(have, (8, 1));
    (first, second)
}

fn close(net: &mut Net, host: usize, session: SessionId) {
    let now = net.now;
    let host = &mut net.hosts[host];
    host.protocol.close(now, session, &mut host.wire);
    net.run_ms(1);
}

fn credits(net: &Net, host: usize, session: SessionId) -> u16 {
    net.hosts[host]
        .protocol
        .accounting(session)
        .expect("open")
        .1
}

/// Keeps eight requests outstanding for a time.
fn traffic(net: &mut Net, host: usize, session: SessionId, rounds: usize) {
    for _ in 0..rounds {
        for tag in 0..8 {
            net.request(host, session, tag, b"busy");
        }
        net.run_ms(10);
    }
}

/// Credit frames that were delayed come after later ones.
#[test]
fn late_credit_frames_change_nothing() {
    const KIND_AT: usize = 8;
    const CREDIT: u8 = 18;
    let mut net = three();
    let (rich, poor) = rich_and_poor(&mut net, 0, 2);
    traffic(&mut net, 2, poor, 3);
    let most = credits(&net, 2, poor);
    assert!(most > 1);
    traffic(&mut net, 0, rich, 3);
    let left = credits(&net, 2, poor);
    assert!(left < most, "{left} of {most}");
    let is_credit =
        |(from, bytes): &&(usize, Vec<u8>)| *from == 1 && bytes[KIND_AT] & 0x1f == CREDIT;
    let late: Vec<Vec<u8>> = net
        .log
        .iter()
        .filter(is_credit)
        .map(|(_, bytes)| bytes.clone())
        .collect();
    assert!(late.len() >= 2, "credits moved there and back");
    for datagram in late {
        net.inject(1, 2, datagram);
        net.run_ms(1);
        assert_eq!(credits(&net, 2, poor), left);
    }
}

/// The frame that grants credits is lost.
#[test]
fn credits_whose_grant_is_lost_are_granted_again() {
    let mut net = three();
    let (first, second) = rich_and_poor(&mut net, 0, 2);
    close(&mut net, 0, first);
    // The datagram that brings the grant is lost.
    let mut said = 0;
    net.fate = Box::new(move |_, from, _| {
        said += u64::from(from == 1);
        usize::from(from != 1 || said != 2)
    });
    traffic(&mut net, 2, second, 1);
    net.fate = Box::new(|_, _, _| 1);
    traffic(&mut net, 2, second, 100);
    assert_eq!(net.hosts[2].protocol.outstanding(), 0);
    assert_eq!(credits(&net, 2, second), 8, "all are free");
}

/// The frame that confirms lowered credits is lost, and no other client needs any.
#[test]
fn a_client_whose_confirmation_is_lost_gets_credits_again() {
    let mut net = three();
    let (first, second) = rich_and_poor(&mut net, 0, 2);
    // The first session must return credits; its confirmation is lost.
    net.fate = Box::new(|_, from, _| usize::from(from != 0));
    for tag in 0..8 {
        net.request(2, second, tag, b"busy");
    }
    net.run_ms(1);
    net.fate = Box::new(|_, _, _| 1);
    assert_eq!(credits(&net, 0, first), 1);
    close(&mut net, 2, second);
    traffic(&mut net, 0, first, 200);
    assert_eq!(net.hosts[0].protocol.outstanding(), 0);
    assert_eq!(credits(&net, 0, first), 8, "no other client needs credits");
}

/// The server's next demand overtakes the client's confirmation.
#[test]
fn idle_credits_move_within_some_round_trips_under_steady_demand() {
    let mut net = three();
    let (idle, busy) = rich_and_poor(&mut net, 2, 0);
    let start = net.now;
    let mut tag = 0;
    while credits(&net, 0, busy) < 8 && net.now < start + 2_000 * MS {
        while net.hosts[0].protocol.outstanding() < 20 {
            net.request(0, busy, tag, b"busy");
            tag += 1;
        }
        net.run_until(net.now + 1_000);
    }
    let took = net.now - start;
    assert!(
        took < 20 * MS,
        "{} us, idle has {}",
        took / 1000,
        credits(&net, 2, idle)
    );
}

/// A session with too few credits for a large response asks for more.
#[test]
fn a_client_that_fetches_a_large_response_asks_for_credits() {
    let mut net = three();
    net.hosts[1].echo = false;
    let (first, second) = rich_and_poor(&mut net, 0, 2);
    close(&mut net, 0, first);
    net.request(2, second, 1, b"give me much");
    net.run_ms(1);
    let (now, id) = (net.now, net.hosts[1].ran[0].0);
    assert!(net.hosts[1].respond(now, id, &vec![5; 10_000_000]));
    let start = net.now;
    while net.hosts[2].protocol.outstanding() > 0 {
        net.run_until(net.now + 10_000);
    }
    let took = net.now - start;
    assert_eq!(credits(&net, 2, second), 8, "{} us", took / 1000);
    // The client has all credits that it can use. With WANT, its requests would not go to workers.
    net.request(2, second, 2, b"no more than this");
    net.run_ms(1);
    let request = net.log.iter().rfind(|(from, _)| *from == 2);
    let (_, request) = request.expect("it was sent");
    assert_eq!(request[8] & 0x80, 0, "WANT");
}

/// A confirmation that comes late is not that of the demand that was made since.
#[test]
fn a_late_confirmation_returns_no_credits() {
    const CREDIT_ACK: u8 = 19;
    let mut net = three();
    let (rich, poor) = rich_and_poor(&mut net, 0, 2);
    traffic(&mut net, 2, poor, 3);
    assert!(credits(&net, 2, poor) > 2);
    let is_ack = |(from, bytes): &&(usize, Vec<u8>)| *from == 2 && bytes[8] & 0x1f == CREDIT_ACK;
    let late = net
        .log
        .iter()
        .find(is_ack)
        .expect("it has confirmed")
        .1
        .clone();
    // The demand to return them is lost, and nobody asks again.
    net.run_ms(5);
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 2)));
    let revoked = net.hosts[1].protocol.stats().credits_revoked;
    net.run_ms(5);
    for tag in 0..8 {
        net.request(0, rich, tag, b"busy");
    }
    net.run_ms(1);
    assert!(net.hosts[1].protocol.stats().credits_revoked > revoked);
    let granted = net.hosts[1].protocol.granted();
    net.inject(2, 1, late);
    net.run_ms(1);
    assert_eq!(net.hosts[1].protocol.granted(), granted);
}

/// A demand to return credits that is lost is made again while another session asks for them.
#[test]
fn a_demand_that_is_lost_is_repeated() {
    let mut net = three();
    let (rich, poor) = rich_and_poor(&mut net, 0, 2);
    traffic(&mut net, 2, poor, 3);
    assert!(credits(&net, 2, poor) > 1);
    net.run_ms(5);
    let mut lost = 0;
    net.fate = Box::new(move |_, from, to| {
        lost += u32::from((from, to) == (1, 2));
        usize::from((from, to) != (1, 2) || lost > 1)
    });
    traffic(&mut net, 0, rich, 10);
    assert_eq!(credits(&net, 2, poor), 1);
}

/// A client that says nothing any more holds all credits, two in each of many sessions. Each connect of another
/// client has one more session return a credit; those that were told first are the first to lose it.
#[test]
fn credits_that_a_silent_client_holds_in_many_sessions_come_back_in_time() {
    let mut net = Net::new([wanting(2), granting(128), wanting(2)]);
    let mut sessions = Vec::new();
    for _ in 0..80 {
        sessions.push(net.connect(0, 1));
        net.run_ms(1);
    }
    // All want two, so that none is left.
    for (tag, session) in (0..).zip(&sessions) {
        for _ in 0..3 {
            net.request(0, *session, tag, b"busy");
        }
    }
    net.run_ms(20);
    let held: u16 = sessions.iter().map(|it| credits(&net, 0, *it)).sum();
    assert_eq!(held, 128);
    net.hosts[0].alive = false;
    let late = net.connect(2, 1);
    net.run_ms(700);
    assert_eq!(credits(&net, 2, late), 1);
    let taken = net.hosts[1].protocol.stats().credits_revoked;
    assert!(
        taken < 40,
        "{taken} credits were asked for, for one session"
    );
}

/// Answers each CREDIT that a server has sent to a client with a CREDIT ACK of `said` credits.
struct Acks {
    said: u32,
    /// Of the log that is read.
    read: usize,
    sent: usize,
}

impl Acks {
    fn run(&mut self, net: &mut Net, client: usize, server: usize, ms: u64) {
        const CREDIT: u8 = 18;
        const CREDIT_ACK: u8 = 19;
        for _ in 0..10 * ms {
            net.run_until(net.now + MS / 10);
            for (_, bytes) in net.log.split_off(self.read) {
                let mut frames = &bytes[8..];
                while let Some((header, rest)) = frames.split_first_chunk::<16>() {
                    let length = usize::from(u16::from_le_bytes([header[2], header[3]]));
                    frames = &rest[length..];
                    if header[0] & 0x1f == CREDIT {
                        // Both ends have opened their sessions in the same order.
                        let mut ack = net.preamble(client, server);
                        ack.extend([CREDIT_ACK, 0, 4, 0]);
                        ack.extend(&header[4..16]);
                        ack.extend(self.said.to_le_bytes());
                        net.inject(client, server, ack);
                        self.sent += 1;
                    }
                }
            }
        }
    }
}

/// A client that holds all credits confirms each demand to return some, and says that it keeps them.
#[test]
fn a_client_that_confirms_a_demand_has_one_credit_whatever_it_says() {
    for said in [1, 1024] {
        let mut net = Net::new([wanting(8), granting(16), wanting(8)]);
        let mut sessions = Vec::new();
        for _ in 0..4 {
            sessions.push(net.connect(0, 1));
            net.run_ms(1);
        }
        for _ in 0..4 {
            for session in &sessions {
                for tag in 0..9 {
                    net.request(0, *session, tag, b"busy");
                }
            }
            net.run_ms(5);
        }
        let held: u16 = sessions.iter().map(|id| credits(&net, 0, *id)).sum();
        assert_eq!(held, 16);
        net.hosts[0].alive = false;
        net.hosts[2].connect(net.now, 1);
        let (read, sent) = (net.log.len(), 0);
        let mut acks = Acks { said, read, sent };
        acks.run(&mut net, 0, 1, 300);
        let connected = |it: &Seen| matches!(it, Seen::Connected(_));
        assert!(net.hosts[2].seen.iter().any(connected), "{said}");
        assert_eq!(acks.sent, 1, "one credit was wanted");
    }
}

/// All of thousands of silent sessions have one credit but for one, which has two.
#[test]
fn the_one_session_with_more_than_a_credit_is_found_among_many() {
    const MANY: usize = 4_000;
    let mut net = Net::new([wanting(1), granting(MANY + 2), wanting(8), wanting(2)]);
    let rich = net.connect(3, 1);
    net.run_ms(5);
    assert_eq!(credits(&net, 3, rich), 2);
    for _ in 0..MANY {
        net.connect(0, 1);
    }
    net.run_ms(900);
    assert_eq!(net.hosts[1].protocol.granted(), MANY + 2);
    net.hosts[0].alive = false;
    net.hosts[3].alive = false;
    let late = net.connect(2, 1);
    net.run_ms(1_000);
    assert_eq!(credits(&net, 2, late), 1);
}

/// A session is told to return its credits, and then nobody asks for 600 ms. The demand was lost, and when it is
/// repeated the client has time to answer.
#[test]
fn a_demand_that_is_repeated_late_leaves_time_to_answer() {
    let mut net = three();
    let (rich, poor) = rich_and_poor(&mut net, 0, 2);
    traffic(&mut net, 2, poor, 3);
    assert!(credits(&net, 2, poor) > 1);
    net.run_ms(5);
    net.fate = Box::new(|_, from, to| usize::from((from, to) != (1, 2)));
    traffic(&mut net, 0, rich, 1);
    net.run_ms(600);
    let granted = net.hosts[1].protocol.granted();
    for _ in 0..3 {
        traffic(&mut net, 0, rich, 1);
        net.run_ms(2);
    }
    assert_eq!(net.hosts[1].protocol.granted(), granted, "it was told once");
    net.run_ms(520);
    traffic(&mut net, 0, rich, 1);
    assert!(
        credits(&net, 0, rich) > 1,
        "it has ignored what it was told"
    );
}

/// As requests of streams do, which wait at the server.
#[test]
fn requests_that_are_executed_hold_no_credits() {
    let alone = |credits| Config {
        group_sessions: 1,
        ..wanting(credits)
    };
    for (client, server) in [(alone(1), granting(64)), (alone(32), granting(1))] {
        let mut net = Net::new([client, server]);
        net.hosts[1].echo = false;
        let session = net.connect(0, 1);
        net.run_ms(1);
        assert_eq!(credits(&net, 0, session), 1);
        for tag in 0..30 {
            net.request(0, session, tag, b"held");
        }
        // One after the other: each is repeated once.
        net.run_ms(150);
        let held = std::mem::take(&mut net.hosts[1].ran);
        assert_eq!(held.len(), 30);
        let accounting = net.hosts[0].protocol.accounting(session);
        assert_eq!(accounting.expect("open").0, 0, "credits in use");
        let now = net.now;
        for (id, body) in held {
            assert!(net.hosts[1].respond(now, id, &body));
        }
        net.run_ms(1);
        // Nor are there more credits than before.
        net.hosts[1].echo = true;
        for tag in 0..30 {
            net.request(0, session, tag, b"short");
        }
        net.run_ms(100);
        let accounting = net.hosts[0].protocol.accounting(session);
        assert_eq!(accounting.expect("open").0, 0, "credits in use");
        let seen = net.hosts[0].seen.iter();
        let answers = seen.filter(|seen| matches!(seen, Seen::Answer(..)));
        assert_eq!(answers.count(), 60);
    }
}
