//! The stages of a call, and how they follow from the time stamps of its two sides.

/// The client's stamps of one call, in order of time, except that `SENT` and `RECEIVING` may swap.
pub(super) mod client {
    pub(crate) const BEGUN: usize = 0;
    pub(crate) const MARSHALLED: usize = 1;
    pub(crate) const SENDING: usize = 2;
    pub(crate) const SENT: usize = 3;
    pub(crate) const RECEIVING: usize = 4;
    pub(crate) const RECEIVED: usize = 5;
    pub(crate) const TAKEN: usize = 6;
    pub(crate) const ENTERED: usize = 7;
    pub(crate) const UNMARSHALLED: usize = 8;
    pub(crate) const OVER: usize = 9;
    /// The number of stamps.
    pub(crate) const COUNT: usize = 10;
}

/// The server's stamps of one call.
pub(super) mod server {
    pub(crate) const RECEIVING: usize = 0;
    pub(crate) const RECEIVED: usize = 1;
    pub(crate) const TAKEN: usize = 2;
    pub(crate) const ENTERED: usize = 3;
    pub(crate) const UNMARSHALLED: usize = 4;
    pub(crate) const HANDLED: usize = 5;
    pub(crate) const MARSHALLED: usize = 6;
    pub(crate) const SENDING: usize = 7;
    pub(crate) const SENT: usize = 8;
    /// The number of stamps.
    pub(crate) const COUNT: usize = 9;
}

/// A stage of a call. Together the stages are the call: each begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The client builds the request.
    ClientMarshal,
    /// Its endpoint and protocol: slot, credit, headers, the copy into the open datagram.
    ClientTransportOut,
    /// Its device sends: the system call, or the write into the ring. Ends early if the server
    /// receives the datagram before the client has returned from sending.
    ClientSend,
    /// From the end of sending to the server's poll of its device: the kernel, the cache line, and
    /// the part of the server's turn outside the device.
    RequestInFlight,
    /// The server's device finds the datagram.
    ServerReceive,
    /// Its protocol: token, session, slot; at most once.
    ServerTransportIn,
    /// Its endpoint finds the handler.
    ServerDispatch,
    /// The request is validated, and read in place.
    ServerUnmarshal,
    /// The application: a record is looked up.
    Handler,
    /// The server builds the response.
    ServerMarshal,
    /// Its protocol, from the end of the handler to the device: the copy into the datagram, and the
    /// end of the turn.
    ServerTransportOut,
    /// As [`Stage::ClientSend`].
    ServerSend,
    /// As [`Stage::RequestInFlight`].
    ResponseInFlight,
    /// As [`Stage::ServerReceive`].
    ClientReceive,
    /// The client's protocol: token, session, slot, round-trip time.
    ClientTransportIn,
    /// Its endpoint finds the continuation.
    ClientDispatch,
    /// The response is validated, and its value read.
    ClientUnmarshal,
    /// Back to the caller: the end of the turn.
    ClientReturn,
}

impl Stage {
    /// All of them, in order of time.
    pub const ALL: [Self; 18] = [
        Self::ClientMarshal,
        Self::ClientTransportOut,
        Self::ClientSend,
        Self::RequestInFlight,
        Self::ServerReceive,
        Self::ServerTransportIn,
        Self::ServerDispatch,
        Self::ServerUnmarshal,
        Self::Handler,
        Self::ServerMarshal,
        Self::ServerTransportOut,
        Self::ServerSend,
        Self::ResponseInFlight,
        Self::ClientReceive,
        Self::ClientTransportIn,
        Self::ClientDispatch,
        Self::ClientUnmarshal,
        Self::ClientReturn,
    ];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientMarshal => "client marshal",
            Self::ClientTransportOut => "client transport out",
            Self::ClientSend => "client I/O out",
            Self::RequestInFlight => "request in flight",
            Self::ServerReceive => "server I/O in",
            Self::ServerTransportIn => "server transport in",
            Self::ServerDispatch => "server dispatch",
            Self::ServerUnmarshal => "server unmarshal",
            Self::Handler => "server handler",
            Self::ServerMarshal => "server marshal",
            Self::ServerTransportOut => "server transport out",
            Self::ServerSend => "server I/O out",
            Self::ResponseInFlight => "response in flight",
            Self::ClientReceive => "client I/O in",
            Self::ClientTransportIn => "client transport in",
            Self::ClientDispatch => "client dispatch",
            Self::ClientUnmarshal => "client unmarshal",
            Self::ClientReturn => "client return",
        }
    }

    /// The side that it runs on. `None`: between the two.
    pub fn side(self) -> Option<Side> {
        match self {
            Self::RequestInFlight | Self::ResponseInFlight => None,
            Self::ClientMarshal
            | Self::ClientTransportOut
            | Self::ClientSend
            | Self::ClientReceive
            | Self::ClientTransportIn
            | Self::ClientDispatch
            | Self::ClientUnmarshal
            | Self::ClientReturn => Some(Side::Client),
            _ => Some(Side::Server),
        }
    }

    /// Its kind of work.
    pub fn kind(self) -> Kind {
        match self {
            Self::ClientMarshal
            | Self::ServerUnmarshal
            | Self::ServerMarshal
            | Self::ClientUnmarshal => Kind::Marshal,
            Self::ClientTransportOut
            | Self::ServerTransportIn
            | Self::ServerTransportOut
            | Self::ClientTransportIn => Kind::Transport,
            Self::ClientSend | Self::ServerReceive | Self::ServerSend | Self::ClientReceive => {
                Kind::Io
            }
            Self::RequestInFlight | Self::ResponseInFlight => Kind::InFlight,
            Self::ServerDispatch | Self::ClientDispatch | Self::ClientReturn => Kind::Dispatch,
            Self::Handler => Kind::Handler,
        }
    }

    /// Stamps that are taken during it and lengthen it. There are none between the sides.
    pub(super) fn stamps(self) -> u8 {
        u8::from(!matches!(
            self,
            Self::RequestInFlight | Self::ResponseInFlight
        ))
    }
}

/// One end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The caller.
    Client,
    /// The server.
    Server,
}

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Building messages, validating and reading them.
    Marshal,
    /// The session protocol, and building datagrams.
    Transport,
    /// Sending and receiving by the device.
    Io,
    /// Between the devices.
    InFlight,
    /// From the protocol to a handler or continuation, and back to the caller.
    Dispatch,
    /// The application.
    Handler,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Marshal,
        Self::Transport,
        Self::Io,
        Self::InFlight,
        Self::Dispatch,
        Self::Handler,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Marshal => "marshal",
            Self::Transport => "transport",
            Self::Io => "I/O",
            Self::InFlight => "in flight",
            Self::Dispatch => "dispatch",
            Self::Handler => "handler",
        }
    }
}

/// The stages of one call, in ticks of the counter that both sides read.
pub(super) type Stages = [u64; Stage::ALL.len()];

/// The stages of a call. `None`: the stamps contradict one another, as stamps of two counters that
/// disagree do.
pub(super) fn cut(
    at_client: &[u64; client::COUNT],
    at_server: &[u64; server::COUNT],
) -> Option<Stages> {
    use client as c;
    use server as s;
    let request = passage(
        [at_client[c::SENDING], at_client[c::SENT]],
        [at_server[s::RECEIVING], at_server[s::RECEIVED]],
    )?;
    let response = passage(
        [at_server[s::SENDING], at_server[s::SENT]],
        [at_client[c::RECEIVING], at_client[c::RECEIVED]],
    )?;
    let ours = |from: usize, to: usize| at_client[to].checked_sub(at_client[from]);
    let theirs = |from: usize, to: usize| at_server[to].checked_sub(at_server[from]);
    Some([
        ours(c::BEGUN, c::MARSHALLED)?,
        ours(c::MARSHALLED, c::SENDING)?,
        request[0],
        request[1],
        request[2],
        theirs(s::RECEIVED, s::TAKEN)?,
        theirs(s::TAKEN, s::ENTERED)?,
        theirs(s::ENTERED, s::UNMARSHALLED)?,
        theirs(s::UNMARSHALLED, s::HANDLED)?,
        theirs(s::HANDLED, s::MARSHALLED)?,
        theirs(s::MARSHALLED, s::SENDING)?,
        response[0],
        response[1],
        response[2],
        ours(c::RECEIVED, c::TAKEN)?,
        ours(c::TAKEN, c::ENTERED)?,
        ours(c::ENTERED, c::UNMARSHALLED)?,
        ours(c::UNMARSHALLED, c::OVER)?,
    ])
}

/// From one device to the other: sending, on its way, receiving. The two sides may overlap: a
/// datagram may arrive before its sender returns from the system call, and a poll of the receiver's
/// device may begin before the datagram is there. Overlapping time counts once, for the earlier
/// stage.
fn passage([sending, sent]: [u64; 2], [receiving, received]: [u64; 2]) -> Option<[u64; 3]> {
    if received < sending || sent < sending || received < receiving {
        return None;
    }
    let sent = sent.min(received);
    let receiving = receiving.clamp(sent, received);
    Some([sent - sending, receiving - sent, received - receiving])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call whose every stage takes its own number of ticks.
    fn call() -> ([u64; client::COUNT], [u64; server::COUNT]) {
        let mut at = [1000; Stage::ALL.len() + 1];
        for stage in 0..Stage::ALL.len() {
            at[stage + 1] = at[stage] + stage as u64 + 1;
        }
        let client = [
            at[0], at[1], at[2], at[3], at[13], at[14], at[15], at[16], at[17], at[18],
        ];
        let server = [
            at[4], at[5], at[6], at[7], at[8], at[9], at[10], at[11], at[12],
        ];
        (client, server)
    }

    #[test]
    fn stages_are_the_differences_of_stamps_in_order_of_time() {
        let (client, server) = call();
        let expected: Vec<u64> = (1..=18).collect();
        assert_eq!(cut(&client, &server).unwrap().to_vec(), expected);
    }

    #[test]
    fn stages_add_up_to_the_call_for_any_overlap_of_sending_and_receiving() {
        let (client, server) = call();
        let total = client[client::OVER] - client[client::BEGUN];
        let sending = client[client::SENDING];
        for sent in sending..sending + 40 {
            for receiving in sending - 20..=server[server::RECEIVED] {
                let (mut client, mut server) = (client, server);
                client[client::SENT] = sent;
                server[server::RECEIVING] = receiving;
                let stages = cut(&client, &server).expect("nothing contradicts");
                assert_eq!(stages.iter().sum::<u64>(), total);
            }
        }
    }

    #[test]
    fn a_call_received_before_it_was_sent_is_refused() {
        let (mut client, server) = call();
        client[client::SENDING] = server[server::RECEIVED] + 1;
        assert_eq!(cut(&client, &server), None);
        let (client, mut server) = call();
        server[server::HANDLED] = 0;
        assert_eq!(cut(&client, &server), None);
    }

    #[test]
    fn every_stage_has_another_name() {
        let names: std::collections::BTreeSet<&str> =
            Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), Stage::ALL.len());
    }
}
