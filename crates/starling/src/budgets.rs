//! What clients can make a server hold, in one place: the settings bound it, and here is what follows from them.
//!
//! Shares have a dynamic threshold (Choudhury and Hahne, 1998): a peer may have as much as is still free, so one that
//! comes alone gets half, and there is always room for the next one.

use crate::settings::Settings;

/// A kind of memory that clients can make a server hold, and the setting that bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// What is held.
    pub what: &'static str,
    /// Bytes of one peer that comes alone.
    pub one_peer: u64,
    /// Bytes of all peers together.
    pub all_peers: u64,
    /// What sets it.
    pub setting: &'static str,
}

/// What clients can make each dispatch thread of a server hold. Beside it, a thread that runs handlers has one
/// message that it unpacks or decodes just then, and handlers have what they copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets([Budget; 8]);

impl Budgets {
    pub(crate) fn of(settings: &Settings) -> Self {
        let config = &settings.config;
        let (protocol, streams) = (&config.protocol, settings.registry.streams);
        let half = |bytes: usize| bytes as u64 / 2;
        let budget = |what, one_peer, all_peers: usize, setting| Budget {
            what,
            one_peer,
            all_peers: all_peers as u64,
            setting,
        };
        let waiting = config.max_waiting_bytes;
        let (receiving, kept) = (protocol.reassembly_bytes, protocol.retained_bytes);
        let read = streams.bytes.min(streams.all_bytes);
        let to_send = half(streams.all_bytes).min(streams.bytes as u64);
        let sessions = protocol.session_bytes();
        Self([
            budget(
                "requests on their way, not complete yet",
                receiving as u64,
                receiving,
                "ProtocolConfig::reassembly_bytes",
            ),
            budget(
                "requests that wait, as they came, or decompressed if that is more",
                half(waiting),
                waiting,
                "EndpointConfig::max_waiting_bytes",
            ),
            budget(
                "what protobuf requests of async handlers became",
                half(waiting),
                waiting,
                "EndpointConfig::max_waiting_bytes",
            ),
            budget(
                "streams: windows, and what is beyond them",
                half(streams.all_bytes),
                streams.all_bytes,
                "ServerBuilder::max_stream_bytes",
            ),
            budget(
                "streams: what handlers read of the windows' bytes",
                read as u64,
                streams.all_bytes,
                "ServerBuilder::max_stream_bytes_per_client",
            ),
            budget(
                "streams: what handlers sent and waits for the client",
                to_send,
                streams.all_bytes,
                "ServerBuilder::max_stream_bytes_per_client",
            ),
            budget(
                "kept responses",
                kept as u64,
                kept,
                "ProtocolConfig::retained_bytes",
            ),
            budget(
                "sessions, each with small responses in all slots",
                sessions as u64,
                sessions,
                "ProtocolConfig::max_sessions",
            ),
        ])
    }

    /// Each kind of memory.
    pub fn iter(&self) -> impl Iterator<Item = &Budget> {
        self.0.iter()
    }

    /// Bytes of one peer, all kinds together.
    pub fn one_peer(&self) -> u64 {
        self.iter().map(|budget| budget.one_peer).sum()
    }

    /// Bytes of all peers, all kinds together.
    pub fn all_peers(&self) -> u64 {
        self.iter().map(|budget| budget.all_peers).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// `512 MiB`, or `3.1 GiB`.
    fn text(bytes: u64) -> String {
        match bytes < 1 << 30 {
            true => format!("{} MiB", bytes >> 20),
            false => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        }
    }

    #[test]
    fn the_document_has_what_a_server_holds_by_default() {
        let document = include_str!("../../../docs/SECURITY.md");
        let (_, section) = document
            .split_once("### What a server can be made to hold")
            .expect("its section");
        let rows: BTreeMap<&str, Vec<&str>> = section
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .map(|cells: Vec<&str>| (cells[0], cells[1..].to_vec()))
            .collect();
        let budgets = Budgets::of(&Settings::default());
        let expected = budgets
            .iter()
            .map(|it| (it.what, it.one_peer, it.all_peers));
        let together = ("together", budgets.one_peer(), budgets.all_peers());
        for (what, one, all) in expected.chain([together]) {
            let cells = rows.get(what).unwrap_or_else(|| panic!("no row: {what}"));
            assert_eq!(cells[..2], [text(one), text(all)], "{what}");
        }
        assert_eq!(rows.len(), 8 + 3, "rows, a head, a rule, a sum");
    }

    #[test]
    fn each_setting_changes_its_row() {
        let mut settings = Settings::default();
        let before = Budgets::of(&settings);
        settings.config.max_waiting_bytes /= 2;
        settings.config.protocol.reassembly_bytes /= 2;
        settings.config.protocol.retained_bytes /= 2;
        settings.config.protocol.max_sessions /= 2;
        settings.registry.streams.all_bytes /= 2;
        settings.registry.streams.bytes /= 2;
        let after = Budgets::of(&settings);
        for (before, after) in before.iter().zip(after.iter()) {
            assert_eq!(before.all_peers, 2 * after.all_peers, "{}", before.what);
            assert_eq!(before.one_peer, 2 * after.one_peer, "{}", before.what);
        }
    }
}
