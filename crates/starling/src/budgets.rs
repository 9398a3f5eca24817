//! What clients can make a server hold, in one place: the settings bound it, and here is what follows from them.
//!
//! ```text
//!  settings ──▶ Budgets ──▶ ServerBuilder::budgets, `starling doctor`: at most
//!                  │
//!  thread ──▶ Held ┴──────▶ introspection, `starling inspect`: now, and at most
//! ```
//!
//! Shares have a dynamic threshold (Choudhury and Hahne, 1998): a peer may have as much as is still free, so one that
//! comes alone gets half, and there is always room for the next one.

use starling_endpoint::{EndpointConfig, WorkerConfig};
use starling_io_shm::ShmConfig;
use starling_io_tcp::TcpConfig;

use crate::registry::Registry;
use crate::settings::Settings;

/// What the numbers of a [`Budget`] count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetUnit {
    /// Bytes of memory.
    Bytes,
    /// What the budget is of: sessions, requests, descriptors.
    Items,
}

/// Something that clients can make a server hold, and the setting that bounds it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Budget {
    /// What is held.
    pub what: &'static str,
    /// What the numbers count.
    pub unit: BudgetUnit,
    /// By one peer that comes alone.
    pub one_peer: u64,
    /// By all peers together.
    pub all_peers: u64,
    /// What sets it.
    pub setting: &'static str,
    held: fn(&Held) -> Option<usize>,
}

impl Budget {
    /// How much of it a thread holds. None: nobody counts it.
    pub(crate) fn held(&self, held: &Held) -> Option<u64> {
        (self.held)(held).map(|held| held as u64)
    }
}

/// What clients have a dispatch thread hold now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) receiving_bytes: usize,
    pub(crate) waiting_bytes: usize,
    pub(crate) decoded_bytes: usize,
    pub(crate) stream_bytes: usize,
    pub(crate) to_send_bytes: usize,
    pub(crate) kept_bytes: usize,
    pub(crate) session_bytes: usize,
    pub(crate) sessions: usize,
    pub(crate) waiting: usize,
    pub(crate) jobs: usize,
    pub(crate) streams: usize,
    pub(crate) stream_threads: usize,
    pub(crate) watchers: usize,
}

/// What clients can make each dispatch thread of a server hold. Beside it, a thread that runs handlers has one
/// message that it unpacks or decodes just then, and handlers have what they copy.
#[derive(Clone, Debug)]
pub struct Budgets(Vec<Budget>);

impl Budgets {
    pub(crate) fn of(settings: &Settings) -> Self {
        let mut all = Self::new(&settings.config, &settings.registry, &settings.workers);
        all.0.extend(device_peers());
        all
    }

    pub(crate) fn new(
        config: &EndpointConfig,
        registry: &Registry,
        workers: &WorkerConfig,
    ) -> Self {
        let mut budgets = memory(config, registry);
        budgets.extend(items(config, registry, workers));
        Self(budgets)
    }

    /// Each budget, those of memory first.
    pub fn iter(&self) -> impl Iterator<Item = &Budget> {
        self.0.iter()
    }

    /// The budgets of memory.
    pub fn memory(&self) -> impl Iterator<Item = &Budget> {
        self.iter()
            .filter(|budget| budget.unit == BudgetUnit::Bytes)
    }

    /// Bytes of one peer, all kinds of memory together.
    pub fn one_peer(&self) -> u64 {
        self.memory().map(|budget| budget.one_peer).sum()
    }

    /// Bytes of all peers, all kinds of memory together.
    pub fn all_peers(&self) -> u64 {
        self.memory().map(|budget| budget.all_peers).sum()
    }
}

/// Memory, in bytes.
fn memory(config: &EndpointConfig, registry: &Registry) -> Vec<Budget> {
    let (protocol, streams) = (&config.protocol, registry.streams);
    let budget = |what, one_peer: usize, all_peers: usize, setting, held| Budget {
        what,
        unit: BudgetUnit::Bytes,
        one_peer: one_peer as u64,
        all_peers: all_peers as u64,
        setting,
        held,
    };
    let waiting = config.max_waiting_bytes;
    let (receiving, kept) = (protocol.reassembly_bytes, protocol.retained_bytes);
    let sessions = protocol.session_bytes();
    vec![
        budget(
            "requests on their way, not complete yet",
            receiving,
            receiving,
            "ProtocolConfig::reassembly_bytes",
            |held| Some(held.receiving_bytes),
        ),
        budget(
            "requests that wait, as they came, or decompressed if that is more",
            waiting / 2,
            waiting,
            "EndpointConfig::max_waiting_bytes",
            |held| Some(held.waiting_bytes),
        ),
        budget(
            "what protobuf requests of async handlers became",
            waiting / 2,
            waiting,
            "EndpointConfig::max_waiting_bytes",
            |held| Some(held.decoded_bytes),
        ),
        budget(
            "streams: windows, and what is beyond them",
            streams.all_bytes / 2,
            streams.all_bytes,
            "ServerBuilder::max_stream_bytes",
            |held| Some(held.stream_bytes),
        ),
        budget(
            "streams: what handlers read of the windows' bytes",
            streams.bytes.min(streams.all_bytes),
            streams.all_bytes,
            "ServerBuilder::max_stream_bytes_per_client",
            |_| None,
        ),
        budget(
            "streams: what handlers sent and waits for the client",
            (streams.all_bytes / 2).min(streams.bytes),
            streams.all_bytes,
            "ServerBuilder::max_stream_bytes_per_client",
            |held| Some(held.to_send_bytes),
        ),
        budget(
            "kept responses",
            kept,
            kept,
            "ProtocolConfig::retained_bytes",
            |held| Some(held.kept_bytes),
        ),
        budget(
            "sessions, each with small responses in all slots",
            sessions,
            sessions,
            "ProtocolConfig::max_sessions",
            |held| Some(held.session_bytes),
        ),
    ]
}

/// What there is a number of.
fn items(config: &EndpointConfig, registry: &Registry, workers: &WorkerConfig) -> Vec<Budget> {
    let protocol = &config.protocol;
    let budget = |what, one_peer: usize, all_peers: usize, setting, held| Budget {
        what,
        unit: BudgetUnit::Items,
        one_peer: one_peer as u64,
        all_peers: all_peers as u64,
        setting,
        held,
    };
    let sessions = protocol.max_sessions;
    let streams = registry.streams.within(config).streams;
    let watchers = registry.health.most_watchers();
    let threads = registry.stream_threads.most();
    vec![
        budget(
            "open sessions",
            protocol.max_sessions_per_client.min(sessions),
            sessions,
            "ProtocolConfig::max_sessions",
            |held| Some(held.sessions),
        ),
        budget(
            "waiting requests: async, deferred, in workers or their queue",
            config.max_waiting / 2,
            config.max_waiting,
            "EndpointConfig::max_waiting",
            |held| Some(held.waiting),
        ),
        budget(
            "jobs in the queue of workers",
            workers.queue / 2,
            workers.queue,
            "WorkerConfig::queue",
            |held| Some(held.jobs),
        ),
        budget(
            "open streams, each with a request at the server",
            streams.min(config.max_waiting / 2),
            config.max_waiting,
            "ServerBuilder::max_streams_per_client",
            |held| Some(held.streams),
        ),
        budget(
            "threads of worker handlers with streams, of all dispatch threads",
            threads / 2,
            threads,
            "ServerBuilder::stream_threads",
            |held| Some(held.stream_threads),
        ),
        budget(
            "watchers of health, of all threads",
            watchers / 2,
            watchers,
            "ServerBuilder::max_health_watchers",
            |held| Some(held.watchers),
        ),
    ]
}

/// What the devices have whose peers take descriptors. That of `shm` is one of an address without parameters.
fn device_peers() -> [Budget; 3] {
    let shm = ShmConfig::default().peers_budget();
    let tcp = TcpConfig::default().peers_budget();
    let budget = |what, one_peer: usize, all_peers: usize, setting| Budget {
        what,
        unit: BudgetUnit::Items,
        one_peer: one_peer as u64,
        all_peers: all_peers as u64,
        setting,
        held: |_| None,
    };
    [
        budget(
            "places of a shm server, each with rings of 2.1 MiB at most",
            shm.places_of_one,
            shm.places,
            "shm://NAME?peers=N&peers_of_one=N",
        ),
        budget(
            "descriptors of a shm server's peers: places and heaps",
            shm.descriptors_of_one,
            shm.descriptors,
            "ulimit -n",
        ),
        budget(
            "places of a tcp server, each with 256 KiB at most, and a descriptor",
            tcp.places_of_one,
            tcp.places,
            "ulimit -n",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Whether it is that of a device, which depends on the process's limit of descriptors.
    fn is_of_device(budget: &Budget) -> bool {
        budget.what.contains("shm") || budget.what.contains("tcp")
    }

    /// `512 MiB`, or `3.1 GiB`.
    fn text(bytes: u64) -> String {
        match bytes < 1 << 30 {
            true => format!("{} MiB", bytes >> 20),
            false => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        }
    }

    /// `65,536`.
    fn number(value: u64) -> String {
        match value {
            0..1000 => value.to_string(),
            _ => format!("{},{:03}", value / 1000, value % 1000),
        }
    }

    /// The cells of the first table, by their first one.
    fn rows_of(section: &str) -> BTreeMap<&str, Vec<&str>> {
        let lines = section.lines().skip_while(|line| !line.starts_with("|"));
        let rows = lines.take_while(|line| line.starts_with('|'));
        rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .map(|cells: Vec<&str>| (cells[0], cells[1..].to_vec()))
            .collect()
    }

    #[test]
    fn the_document_has_what_a_server_holds_by_default() {
        let document = include_str!("../../../docs/SECURITY.md");
        let (_, section) = document
            .split_once("### What a server can be made to hold")
            .expect("its section");
        let (memory, items) = section
            .split_once("| number |")
            .expect("the table of numbers");
        let rows = rows_of(memory);
        let budgets = Budgets::of(&Settings::default());
        let expected = budgets
            .memory()
            .map(|it| (it.what, it.one_peer, it.all_peers));
        let together = ("together", budgets.one_peer(), budgets.all_peers());
        for (what, one, all) in expected.chain([together]) {
            let cells = rows.get(what).unwrap_or_else(|| panic!("no row: {what}"));
            assert_eq!(cells[..2], [text(one), text(all)], "{what}");
        }
        assert_eq!(rows.len(), 8 + 3, "rows, a head, a rule, a sum");
        let rows = rows_of(items);
        let of_items = |it: &&Budget| it.unit == BudgetUnit::Items;
        for budget in budgets.iter().filter(of_items) {
            // The descriptors that there are differ.
            let what = |row: &&str| row.starts_with(budget.what);
            let row = rows.keys().find(|row| what(row));
            let row = row.unwrap_or_else(|| panic!("no row: {}", budget.what));
            if !is_of_device(budget) {
                let expected = [number(budget.one_peer), number(budget.all_peers)];
                assert_eq!(rows[row][..2], expected, "{}", budget.what);
            }
        }
        assert_eq!(rows.len(), 9 + 1, "rows and a rule");
    }

    #[test]
    fn each_setting_changes_its_row() {
        let mut settings = Settings::default();
        settings.config.max_waiting_bytes = 1 << 20;
        settings.config.max_waiting = 1 << 10;
        let before = Budgets::of(&settings);
        settings.config.max_waiting_bytes /= 2;
        settings.config.max_waiting /= 2;
        settings.workers.queue /= 2;
        settings.registry.health.bound_watchers(512);
        settings.registry.stream_threads.bound(256);
        settings.config.protocol.reassembly_bytes /= 2;
        settings.config.protocol.retained_bytes /= 2;
        settings.config.protocol.max_sessions /= 2;
        settings.registry.streams.all_bytes /= 2;
        settings.registry.streams.bytes /= 2;
        let after = Budgets::of(&settings);
        let of_server = |it: &&Budget| !is_of_device(it);
        for (before, after) in before.iter().filter(of_server).zip(after.iter()) {
            if before.what == "open sessions" {
                assert!(after.all_peers < before.all_peers);
                continue;
            }
            assert_eq!(before.all_peers, 2 * after.all_peers, "{}", before.what);
            assert_eq!(before.one_peer, 2 * after.one_peer, "{}", before.what);
        }
    }
}
