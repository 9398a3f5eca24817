//! The floor of UDP: connected sockets, polled without blocking, one datagram a message.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::Instant;

use super::{BusyWait, IN_FLIGHT, Period, SILENCE, SMALL_BYTES};
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::latency::LatencyTimer;
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the echo server.
pub const ROLE: &str = "udp-echo";

/// Tries between two readings of the clock while waiting for an answer.
const TRIES: u32 = 1000;

type Message = [u8; SMALL_BYTES];

/// The echo server: answers the client that sends the first datagram. Its arguments are
/// `BusyWait::name` and the host to bind.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let parsed = match arguments {
        [name, host] => BusyWait::from_name(name).map(|wait| (wait, host)),
        _ => None,
    };
    let (wait, host) = parsed.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected `spin` or `yield`, and a host".into(),
    })?;
    let socket =
        UdpSocket::bind((host.as_str(), 0)).map_err(BenchError::io("binding a UDP socket"))?;
    let address = socket
        .local_addr()
        .map_err(BenchError::io("asking for the socket's address"))?;
    announce(&address.to_string())?;
    echo(&socket, wait, u64::MAX).map_err(BenchError::io("echoing datagrams"))
}

/// Echoes `count` datagrams, fewer if the client closes its socket.
fn echo(socket: &UdpSocket, wait: BusyWait, count: u64) -> io::Result<()> {
    let mut message = [0; SMALL_BYTES];
    let (length, client) = socket.recv_from(&mut message)?;
    socket.connect(client)?;
    socket.send(&message[..length])?;
    socket.set_nonblocking(true)?;
    for _ in 1..count {
        match echo_one(socket, &mut message, wait) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            ended => ended?,
        }
    }
    Ok(())
}

#[inline]
fn echo_one(socket: &UdpSocket, message: &mut Message, wait: BusyWait) -> io::Result<()> {
    while try_receive(socket, message)?.is_none() {
        wait.pause();
    }
    match socket.send(message) {
        // A full send buffer drops the datagram, as any other full queue does.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        sent => sent.map(|_| ()),
    }
}

#[inline]
fn try_receive(socket: &UdpSocket, message: &mut Message) -> io::Result<Option<()>> {
    match socket.recv(message) {
        Ok(_) => Ok(Some(())),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The client's side.
struct Client {
    socket: UdpSocket,
    wait: BusyWait,
    sent: u64,
    received: u64,
}

impl Client {
    fn new(server: &str, wait: BusyWait, host: &str) -> Result<Self, BenchError> {
        let socket = UdpSocket::bind((host, 0)).map_err(BenchError::io("binding a UDP socket"))?;
        socket
            .connect(server)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(BenchError::io(format!("connecting to {server}")))?;
        Ok(Self {
            socket,
            wait,
            sent: 0,
            received: 0,
        })
    }

    #[inline]
    fn send(&mut self) -> Result<(), BenchError> {
        let mut message = [0; SMALL_BYTES];
        message[..8].copy_from_slice(&self.sent.to_le_bytes());
        self.socket
            .send(&message)
            .map_err(BenchError::io("sending a datagram"))?;
        self.sent += 1;
        Ok(())
    }

    /// Receives one answer if there is one. Loopback neither loses nor reorders the datagrams of
    /// one thread while the receive buffer has room.
    #[inline]
    fn try_receive(&mut self) -> Result<bool, BenchError> {
        let mut message = [0; SMALL_BYTES];
        let received = try_receive(&self.socket, &mut message)
            .map_err(BenchError::io("receiving a datagram"))?;
        if received.is_none() {
            return Ok(false);
        }
        if message[..8] != self.received.to_le_bytes() {
            return Err(BenchError::WrongEcho {
                scheme: "udp",
                system: "raw",
                what: format!("expected number {}, got {:?}", self.received, &message[..8]),
            });
        }
        self.received += 1;
        Ok(true)
    }

    /// Waits for one answer.
    #[inline]
    fn receive(&mut self) -> Result<(), BenchError> {
        let mut silent_since = None;
        loop {
            for _ in 0..TRIES {
                if self.try_receive()? {
                    return Ok(());
                }
                self.wait.pause();
            }
            if silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE {
                return Err(BenchError::NoAnswer {
                    scheme: "udp",
                    system: "raw",
                    after: SILENCE,
                });
            }
        }
    }

    fn round_trip(&mut self) -> Result<(), BenchError> {
        self.send()?;
        self.receive()
    }
}

/// Latencies of single round trips.
pub fn latencies(context: &Context) -> Result<Sample, BenchError> {
    let wait = BusyWait::on(context.cores);
    let server = context
        .launcher
        .start(ROLE, &[wait.name(), context.network.server()])?;
    let mut client = Client::new(server.address(), wait, context.network.client())?;
    let warm_up = Period::warm_up(context);
    while !warm_up.is_over() {
        client.round_trip()?;
    }
    let mut timer = LatencyTimer::new();
    let period = Period::measured(context);
    timer.start();
    loop {
        client.round_trip()?;
        if timer.record() && period.is_over() {
            return Ok(timer.into_latencies().sample());
        }
    }
}

/// Rate with [`IN_FLIGHT`] messages in flight.
pub fn rate(context: &Context) -> Result<Sample, BenchError> {
    let wait = BusyWait::on(context.cores);
    let server = context
        .launcher
        .start(ROLE, &[wait.name(), context.network.server()])?;
    let mut client = Client::new(server.address(), wait, context.network.client())?;
    client.round_trip()?;
    for _ in 0..IN_FLIGHT {
        client.send()?;
    }
    let mut run = |period: Period| {
        let begin = client.received;
        // Even the shortest period has a result.
        while !period.is_over() || client.received == begin {
            for _ in 0..16 {
                client.receive()?;
                let mut came = 1;
                while came < IN_FLIGHT && client.try_receive()? {
                    came += 1;
                }
                for _ in 0..came {
                    client.send()?;
                }
            }
        }
        Ok::<_, BenchError>(period.rate_of(client.received - begin))
    };
    run(Period::warm_up(context))?;
    Ok(vec![(Metric::Rate, run(Period::measured(context))?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_back_in_order() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let wait = BusyWait { yields: true };
        std::thread::scope(|scope| {
            scope.spawn(|| echo(&server, wait, 100).unwrap());
            let mut client = Client::new(&address, wait, "127.0.0.1").unwrap();
            for _ in 0..100 {
                client.round_trip().unwrap();
            }
            assert_eq!(client.received, 100);
        });
    }

    #[test]
    fn the_role_refuses_arguments_without_a_way_to_wait_and_a_host() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["sleep".into(), "127.0.0.1".into()]).is_err());
        assert!(serve(&["spin".into()]).is_err());
    }

    #[test]
    fn an_answer_out_of_order_is_an_error() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        let mut client = Client::new(&address, BusyWait { yields: true }, "127.0.0.1").unwrap();
        client.send().unwrap();
        let (_, from) = server.recv_from(&mut [0; SMALL_BYTES]).unwrap();
        server.send_to(&[9; SMALL_BYTES], from).unwrap();
        let error = client.receive().unwrap_err();
        assert!(error.to_string().contains("expected number 0"), "{error}");
    }
}
