//! The statuses of a server's services, and who watches them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use slab::Slab;
use starling_endpoint::{Peer, Status};

use super::ServingStatus;
use crate::client_counts::{ClientCounts, ClientNumber};

/// Names that a program may choose beside those of its server's services, at most.
pub const MAX_CHOSEN_NAMES: usize = 1024;
/// Bytes of a service's name, at most.
pub const MAX_NAME_BYTES: usize = 1024;
/// Watchers of one server, unless set.
const WATCHERS: usize = 1024;

/// The statuses that a server's health checks get: gRPC's `grpc.health.v1.Health`. Cheap to clone.
///
/// ```
/// use starling::{Server, ServingStatus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = Server::builder().bind("mem://health-example")?;
/// let health = builder.health();
/// // The server is to get no calls of this one before its data is there.
/// health.set("kv.Kv", ServingStatus::NOT_SERVING)?;
/// let server = builder.build()?.spawn()?;
/// // The server as a whole has the name "".
/// assert_eq!(health.status(""), ServingStatus::SERVING);
/// health.set("kv.Kv", ServingStatus::SERVING)?;
/// # drop(server);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<Board>>);

struct Board {
    phase: Phase,
    services: HashMap<Box<str>, Entry>,
    watchers: Slab<Watcher>,
    /// How many watchers each client has.
    clients: ClientCounts,
    most_watchers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Ended,
}

struct Entry {
    status: ServingStatus,
    /// The server has the service, so the name does not count as one that the program chose.
    is_served: bool,
}

struct Watcher {
    client: ClientNumber,
    service: Box<str>,
    /// The status that was sent last.
    told: Option<ServingStatus>,
    waker: Option<Waker>,
}

/// Why a status could not be set. The program is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HealthError {
    /// The program has chosen as many names as it may.
    #[error(
        "the server keeps the health of {MAX_CHOSEN_NAMES} names at most beside its own services, and there \
         is no room for {service:?}: forget one that is not used any more"
    )]
    TooManyNames {
        /// The name that there is no room for.
        service: String,
    },
    /// The name is too long.
    #[error(
        "a name of {bytes} bytes is too long for health checks: choose one of {MAX_NAME_BYTES} bytes at most"
    )]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The program cannot set this status.
    #[error(
        "a service cannot be set to {status:?}: set SERVING, NOT_SERVING or UNKNOWN, or call `forget` if the \
         server is to know the name no more"
    )]
    NotAStatus {
        /// The status.
        status: ServingStatus,
    },
}

impl Health {
    /// Sets the status of a service of the server, of the server as a whole (""), or of any name that
    /// clients may ask for. Clients that watch it are told. Before the server serves, and from when it begins
    /// to shut down, they get NOT_SERVING whatever is set.
    ///
    /// # Errors
    /// If the name is too long or one too many, or if the status is not one of the three that can be set.
    pub fn set(&self, service: &str, status: ServingStatus) -> Result<(), HealthError> {
        if !(ServingStatus::UNKNOWN..=ServingStatus::NOT_SERVING).contains(&status) {
            return Err(HealthError::NotAStatus { status });
        }
        if service.len() > MAX_NAME_BYTES {
            let bytes = service.len();
            return Err(HealthError::NameTooLong { bytes });
        }
        let mut board = self.0.lock();
        if let Some(entry) = board.services.get_mut(service) {
            entry.status = status;
        } else {
            let chosen = board.services.values().filter(|entry| !entry.is_served);
            if chosen.count() >= MAX_CHOSEN_NAMES {
                let service = service.to_owned();
                return Err(HealthError::TooManyNames { service });
            }
            let entry = Entry {
                status,
                is_served: false,
            };
            board.services.insert(service.into(), entry);
        }
        let wakers = board.take_wakers(Some(service));
        drop(board);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The status that clients get for this name now: SERVICE_UNKNOWN if the server does not know it.
    pub fn status(&self, service: &str) -> ServingStatus {
        self.0.lock().status(service)
    }

    /// Removes a name that the program has set. Clients that watch it get SERVICE_UNKNOWN. False if the name
    /// is not there, or is that of a service of the server.
    pub fn forget(&self, service: &str) -> bool {
        let mut board = self.0.lock();
        if board.services.get(service).is_none_or(|it| it.is_served) {
            return false;
        }
        board.services.remove(service);
        let wakers = board.take_wakers(Some(service));
        drop(board);
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    /// How many clients watch now.
    pub fn watchers(&self) -> usize {
        self.0.lock().watchers.len()
    }

    /// Watchers at once, at most.
    pub(crate) fn most_watchers(&self) -> usize {
        self.0.lock().most_watchers
    }

    pub(crate) fn bound_watchers(&self, most: usize) {
        self.0.lock().most_watchers = most;
    }

    /// Takes in the services of the server. Those that the program has set keep their status.
    pub(crate) fn add_services(&self, names: impl Iterator<Item = &'static str>) {
        let mut board = self.0.lock();
        for name in names {
            let entry = board.services.entry(name.into()).or_insert(Entry {
                status: ServingStatus::SERVING,
                is_served: true,
            });
            entry.is_served = true;
        }
    }

    /// The server serves.
    pub(crate) fn begin(&self) {
        self.enter(Phase::Serving);
    }

    /// The server begins to shut down.
    pub(crate) fn end(&self) {
        self.enter(Phase::Ended);
    }

    fn enter(&self, phase: Phase) {
        let mut board = self.0.lock();
        if board.phase == Phase::Ended {
            return;
        }
        board.phase = phase;
        let wakers = board.take_wakers(None);
        drop(board);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Watches a name until the result is dropped.
    pub(super) fn watch(&self, service: &str, client: &Peer) -> Result<Watch, Status> {
        let mut board = self.0.lock();
        let most = board.most_watchers;
        let Some(client) = board.clients.add(client, most) else {
            return Err(Status::resource_exhausted(format!(
                "the server takes {most} watchers of its health, of one client no more than are free: call Check \
                 from time to time, or have the server raise `max_health_watchers`"
            )));
        };
        let key = board.watchers.insert(Watcher {
            client,
            service: service.into(),
            told: None,
            waker: None,
        });
        Ok(Watch {
            health: self.clone(),
            key,
        })
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("server", &self.status(""))
            .field("watchers", &self.watchers())
            .finish_non_exhaustive()
    }
}

impl Default for Board {
    fn default() -> Self {
        let whole = Entry {
            status: ServingStatus::SERVING,
            is_served: true,
        };
        Self {
            phase: Phase::Starting,
            services: HashMap::from([("".into(), whole)]),
            watchers: Slab::new(),
            clients: ClientCounts::default(),
            most_watchers: WATCHERS,
        }
    }
}

impl Board {
    fn status(&self, service: &str) -> ServingStatus {
        match self.services.get(service) {
            None => ServingStatus::SERVICE_UNKNOWN,
            Some(entry) if self.phase == Phase::Serving => entry.status,
            Some(_) => ServingStatus::NOT_SERVING,
        }
    }

    /// The wakers of those who watch this service, or any, to be woken without the lock.
    fn take_wakers(&mut self, service: Option<&str>) -> Vec<Waker> {
        let watchers = self.watchers.iter_mut().map(|(_, watcher)| watcher);
        watchers
            .filter(|watcher| service.is_none_or(|service| *watcher.service == *service))
            .filter_map(|watcher| watcher.waker.take())
            .collect()
    }
}

/// What a watcher does next.
pub(super) struct Change {
    /// The status to send.
    pub(super) status: Option<ServingStatus>,
    /// Then the stream ends: the server does.
    pub(super) is_last: bool,
}

/// Watches one name. Dropping it removes the watcher.
pub(super) struct Watch {
    health: Health,
    key: usize,
}

impl Watch {
    /// The next change. One that cannot be sent yet waits, and gives way to later ones, but for the last.
    pub(super) fn poll_change(&self, cx: &Context<'_>, has_room: bool) -> Poll<Change> {
        let mut guard = self.health.0.lock();
        let board = &mut *guard;
        let is_last = board.phase == Phase::Ended;
        let Some(service) = board.watchers.get(self.key).map(|it| &*it.service) else {
            return Poll::Pending;
        };
        let status = board.status(service);
        let Some(watcher) = board.watchers.get_mut(self.key) else {
            return Poll::Pending;
        };
        let is_new = watcher.told != Some(status);
        if is_last || has_room && is_new {
            watcher.told = Some(status);
            let status = is_new.then_some(status);
            return Poll::Ready(Change { status, is_last });
        }
        match &mut watcher.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => watcher.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut board = self.health.0.lock();
        let watcher = board.watchers.try_remove(self.key);
        if let Some(watcher) = &watcher {
            board.clients.remove(watcher.client);
        }
        drop(board);
        // Without the lock: a waker may be the last reference to what its task has.
        drop(watcher);
    }
}

/// Ends the health of an endpoint with the endpoint.
pub(crate) struct EndOnDrop(pub(crate) Health);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVING: ServingStatus = ServingStatus::SERVING;
    const NOT_SERVING: ServingStatus = ServingStatus::NOT_SERVING;

    /// What a watcher would send next, if anything.
    fn next(watch: &Watch, has_room: bool) -> Option<(Option<ServingStatus>, bool)> {
        match watch.poll_change(&Context::from_waker(Waker::noop()), has_room) {
            Poll::Ready(change) => Some((change.status, change.is_last)),
            Poll::Pending => None,
        }
    }

    #[test]
    fn what_is_set_holds_only_while_the_server_serves() {
        let health = Health::default();
        health.set("a", SERVING).expect("room");
        health.add_services(["a", "b"].into_iter());
        assert_eq!(health.status(""), NOT_SERVING);
        health.begin();
        health.set("b", NOT_SERVING).expect("known");
        let statuses = ["", "a", "b", "c"].map(|name| health.status(name));
        let unknown = ServingStatus::SERVICE_UNKNOWN;
        assert_eq!(statuses, [SERVING, SERVING, NOT_SERVING, unknown]);
        assert!(!health.forget("a"), "the server has it");
        health.end();
        health.begin();
        health.set("a", SERVING).expect("known");
        let statuses = ["", "a", "c"].map(|name| health.status(name));
        assert_eq!(statuses, [NOT_SERVING, NOT_SERVING, unknown]);
    }

    #[test]
    fn a_slow_watcher_gets_the_latest_status_and_the_end_without_room() {
        let health = Health::default();
        health.begin();
        let watch = health.watch("", Peer::unknown()).expect("room");
        assert_eq!(next(&watch, true), Some((Some(SERVING), false)));
        assert_eq!(next(&watch, true), None);
        health.set("", NOT_SERVING).expect("known");
        assert_eq!(next(&watch, false), None);
        health.set("", ServingStatus::UNKNOWN).expect("known");
        let unknown = Some((Some(ServingStatus::UNKNOWN), false));
        assert_eq!(next(&watch, true), unknown);
        // There and back again: nothing has changed.
        health.set("", SERVING).expect("known");
        health.set("", ServingStatus::UNKNOWN).expect("known");
        assert_eq!(next(&watch, true), None);
        health.end();
        assert_eq!(next(&watch, false), Some((Some(NOT_SERVING), true)));
        drop(watch);
        assert_eq!(health.watchers(), 0);
    }

    #[test]
    fn names_are_bounded_in_number_and_length_and_can_be_forgotten() {
        let health = Health::default();
        health.add_services(["own"].into_iter());
        for number in 0..MAX_CHOSEN_NAMES {
            health.set(&number.to_string(), SERVING).expect("room");
        }
        let full = health.set("more", SERVING).expect_err("no room");
        assert!(matches!(full, HealthError::TooManyNames { .. }), "{full}");
        health.set("own", NOT_SERVING).expect("not chosen");
        health.set("7", NOT_SERVING).expect("there already");
        assert!(health.forget("7") && !health.forget("7"));
        health.set("more", SERVING).expect("room again");
        let long = health.set(&"n".repeat(MAX_NAME_BYTES + 1), SERVING);
        let bytes = MAX_NAME_BYTES + 1;
        assert_eq!(long, Err(HealthError::NameTooLong { bytes }));
        for status in [ServingStatus::SERVICE_UNKNOWN, ServingStatus(-1)] {
            let wrong = health.set("own", status);
            assert_eq!(wrong, Err(HealthError::NotAStatus { status }));
        }
    }
}
