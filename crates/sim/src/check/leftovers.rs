//! After the last close nothing is left: no session, no request, no memory, no peer.

use starling_proto::Protocol;

use super::Violation;

/// The resources that an endpoint reports to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftovers {
    /// The host that reports.
    pub host: u32,
    /// The name of each resource, and how many of it there are.
    pub counts: Vec<(&'static str, u64)>,
}

impl Leftovers {
    /// The leftovers of a protocol and of a device with so many peers; none if the host is down.
    pub(crate) fn of(host: u32, process: Option<(&Protocol, usize)>) -> Self {
        let mut counts = Vec::new();
        if let Some((protocol, peers)) = process {
            let (client, server) = protocol.session_counts();
            counts.push(("client sessions", client as u64));
            counts.push(("server sessions", server as u64));
            counts.push(("requests", protocol.outstanding() as u64));
            counts.push(("requests being handled", protocol.executing() as u64));
            counts.push(("bytes being reassembled", protocol.reassembling() as u64));
            counts.push(("bytes of responses kept", protocol.retained() as u64));
            counts.push(("credits granted", protocol.granted() as u64));
            counts.push(("peers", peers as u64));
            counts.push(("timers", u64::from(protocol.poll_timeout().is_some())));
        }
        Self { host, counts }
    }

    /// Fails with the first resource that is left.
    pub fn check(&self) -> Result<(), Violation> {
        match self.counts.iter().find(|(_, count)| *count > 0) {
            None => Ok(()),
            Some((what, count)) => Err(Violation::new(
                "nothing remains",
                format!("host {} still has {count} {what}", self.host),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaked_session_is_found() {
        let mut leftovers = Leftovers {
            host: 1,
            counts: vec![("sessions", 0), ("peers", 0)],
        };
        assert_eq!(leftovers.check(), Ok(()));
        leftovers.counts[1].1 = 2;
        let found = leftovers.check().unwrap_err();
        assert_eq!(found.detail, "host 1 still has 2 peers");
    }
}
