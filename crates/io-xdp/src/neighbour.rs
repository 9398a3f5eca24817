//! Next hops: the hardware addresses of frames to each destination, a cache of the kernel's tables.
//!
//! The kernel finds routes and resolves neighbours (ARP, neighbour discovery). One thread for each
//! network namespace receives the kernel's events and updates the cache. The sending half of a
//! device reads it with one atomic load for each datagram, and never waits.
//!
//! ```text
//!                 route and neighbour known               event: gone, failed, rerouted
//!   UNKNOWN ───────────────────────────────────▶ KNOWN ─────────────────────────────────▶ UNKNOWN
//!      │ datagrams leave by the kernel's socket,        │ datagrams leave by the AF_XDP ring;
//!      │ which makes the kernel resolve                 │ now and then the thread makes the kernel
//!                                                       │ probe a stale neighbour
//! ```
//!
//! A device that opens a peer looks up the next hop at once. A device that accepts an unknown peer
//! requests the lookup from the thread. It looks up the hop itself only if the thread does not get
//! to it, because spinning threads may take all cores. It never does so while the thread is in a
//! lookup: the kernel may be busy with changes of interfaces for seconds, and answers no one
//! meanwhile.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use starling_ethernet::Mac;
use starling_io::Wake;

use crate::netlink::{Link, Netlink, Route, parse_link, parse_neighbour};

/// How often the thread compares some of the cache with the kernel's tables.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// How many entries are compared each time.
const REFRESH_COUNT: usize = 256;
/// After changes of routes the thread compares all entries, at most this often: a routing protocol
/// may change thousands of routes at a time.
const ROUTES_EVERY: Duration = Duration::from_millis(100);

/// Lookups that wait for the thread at most. It does the others when it compares.
const MAX_REQUESTED: usize = 4096;

/// The bit of a hop's word that says that the low 48 bits are a hardware address.
const KNOWN: u64 = 1 << 48;

/// A destination, by an interface and from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The number of the interface.
    pub(crate) interface: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// The next hop to a destination, as far as it is known.
#[derive(Debug)]
pub(crate) struct NextHop {
    target: Target,
    /// Zero, or [`KNOWN`] and the hardware address of the next hop.
    word: AtomicU64,
    /// The router, or the destination itself. None without a route.
    next: Mutex<Option<IpAddr>>,
    /// Whether there was a lookup.
    was_looked_up: AtomicBool,
}

impl NextHop {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            word: AtomicU64::new(0),
            next: Mutex::new(None),
            was_looked_up: AtomicBool::new(false),
        }
    }

    /// The hardware address of the next hop, if it is known.
    #[inline]
    pub(crate) fn mac(&self) -> Option<Mac> {
        let word = self.word.load(Ordering::Relaxed);
        let [.., a, b, c, d, e, f] = word.to_be_bytes();
        (word & KNOWN != 0).then_some([a, b, c, d, e, f])
    }

    fn put(&self, mac: Option<Mac>) {
        self.word.store(word_of(mac), Ordering::Relaxed);
    }

    /// Whether there was a lookup at least once.
    pub(crate) fn was_looked_up(&self) -> bool {
        self.was_looked_up.load(Ordering::Relaxed)
    }

    /// The IP address of the next hop. Locked during a lookup.
    pub(crate) fn next(&self) -> MutexGuard<'_, Option<IpAddr>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the hop in the kernel's tables. With `probe`, it also makes the kernel probe a
    /// stale neighbour. Another thread's lookup waits, so that the last lookup writes last.
    pub(crate) fn refresh(&self, netlink: &mut Netlink, probe: bool) {
        let Target {
            interface,
            source,
            destination,
        } = self.target;
        let mut next = self.next();
        self.was_looked_up.store(true, Ordering::Relaxed);
        let route = netlink.route(destination, Some(source), interface);
        let route = route
            .ok()
            .filter(|route| route.is_unicast && route.interface == interface);
        *next = route.map(|route| route.gateway.unwrap_or(destination));
        let known = next.and_then(|next| netlink.neighbour(interface, next));
        // An event in the meantime is handled after this.
        self.put(known.and_then(|known| known.mac));
        if let Some(known) = known.filter(|known| probe && known.is_stale) {
            // If the kernel does not accept it now, the next refresh tries again.
            let _ = netlink.probe(interface, known.address);
        }
    }
}

fn word_of(mac: Option<Mac>) -> u64 {
    mac.map_or(0, |[a, b, c, d, e, f]| {
        KNOWN | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    })
}

/// A change of its interface that ends a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceChange {
    /// The interface does not exist any more.
    Removed = 1,
    /// It has another hardware address: the program and all frames have the old one.
    OtherMac,
    /// It silently drops the device's largest frames.
    SmallerMtu,
}

/// Whether a device's interface is still there, unchanged.
pub(crate) struct InterfaceState {
    interface: u32,
    mac: Mac,
    /// The device's largest IP packet, in bytes.
    largest: usize,
    /// Zero, or an [`End`].
    change: AtomicU8,
    /// The device's waker: a socket whose interface goes away does not wake its poller.
    waker: Arc<dyn Wake>,
}

impl InterfaceState {
    /// Whether the device is of no use any more.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.change.load(Ordering::Relaxed) != 0
    }

    /// The change of the interface, if there is one.
    pub(crate) fn change(&self) -> Option<InterfaceChange> {
        [
            InterfaceChange::Removed,
            InterfaceChange::OtherMac,
            InterfaceChange::SmallerMtu,
        ]
        .into_iter()
        .find(|change| *change as u8 == self.change.load(Ordering::Relaxed))
    }

    /// The change of the interface, if it is now like `link`.
    fn compare(&self, link: &Link) -> Option<InterfaceChange> {
        if link.mac != self.mac {
            return Some(InterfaceChange::OtherMac);
        }
        (link.mtu < self.largest).then_some(InterfaceChange::SmallerMtu)
    }

    fn notify(&self, change: InterfaceChange) {
        self.change.store(change as u8, Ordering::Relaxed);
        self.waker.wake();
    }
}

#[derive(Default)]
struct Table {
    hops: HashMap<Target, Weak<NextHop>>,
    devices: Vec<Weak<InterfaceState>>,
    /// The lookups that the thread has to do.
    requested: Vec<Weak<NextHop>>,
    /// The thread has to end.
    stop: bool,
}

/// The cache of one network namespace. Its thread ends with the last reference.
pub(crate) struct Neighbours {
    table: Arc<Mutex<Table>>,
    doorbell: Arc<OwnedFd>,
    /// How many threads are in a lookup, or about to begin one.
    pub(crate) lookups: Arc<AtomicU32>,
}

/// One cache for each network namespace, by the kernel's cookie.
static CACHES: Mutex<Vec<(u64, Weak<Neighbours>)>> = Mutex::new(Vec::new());

impl Neighbours {
    /// The cache of this thread's network namespace, which has the cookie `cookie`.
    pub(crate) fn of_namespace(cookie: u64) -> io::Result<Arc<Self>> {
        let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
        caches.retain(|(_, cache)| cache.strong_count() > 0);
        let known = caches.iter().find(|(known, _)| *known == cookie);
        if let Some(cache) = known.and_then(|(_, cache)| cache.upgrade()) {
            return Ok(cache);
        }
        let cache = Arc::new(Self::start(REFRESH_EVERY)?);
        caches.push((cookie, Arc::downgrade(&cache)));
        Ok(cache)
    }

    /// Starts the thread, which compares some of the cache each time `refresh_every` has passed.
    fn start(refresh_every: Duration) -> io::Result<Self> {
        let watcher = Watcher::new()?;
        let (table, doorbell) = (Arc::clone(&watcher.table), Arc::clone(&watcher.doorbell));
        let lookups = Arc::clone(&watcher.lookups);
        std::thread::Builder::new()
            .name("starling-neigh".to_owned())
            .spawn(move || watcher.run(refresh_every))?;
        Ok(Self {
            table,
            doorbell,
            lookups,
        })
    }

    /// The next hop to a destination. The thread keeps it up to date as long as there is a
    /// reference. With a netlink socket it is looked up now, otherwise it is unknown until the
    /// thread looks it up.
    pub(crate) fn hop(&self, target: Target, netlink: Option<&mut Netlink>) -> Arc<NextHop> {
        let mut table = lock(&self.table);
        let place = table.hops.entry(target).or_default();
        if let Some(hop) = place.upgrade() {
            return hop;
        }
        let hop = Arc::new(NextHop::new(target));
        *place = Arc::downgrade(&hop);
        // The lookup follows the entry in the table: no event is missed.
        match netlink {
            Some(netlink) => {
                drop(table);
                hop.refresh(netlink, false);
            }
            None => {
                drop(table);
                self.request(&hop);
            }
        }
        hop
    }

    /// Requests a lookup from the thread.
    pub(crate) fn request(&self, hop: &Arc<NextHop>) {
        let mut table = lock(&self.table);
        let is_first = table.requested.is_empty();
        if table.requested.len() < MAX_REQUESTED {
            table.requested.push(Arc::downgrade(hop));
        }
        drop(table);
        if is_first {
            self.wake_thread();
        }
    }

    /// Whether a thread is in a lookup. It may be waiting for the kernel, as another lookup would.
    pub(crate) fn is_looking_up(&self) -> bool {
        self.lookups.load(Ordering::Relaxed) > 0
    }

    /// Wakes the thread for requests.
    fn wake_thread(&self) {
        // The only possible error is that the eventfd is readable already.
        let _ = rustix::io::write(&*self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Watches an interface: whether it stays there, unchanged, with room for IP packets of
    /// `largest` bytes. A change uses the waker.
    pub(crate) fn interface_state(
        &self,
        link: &Link,
        largest: usize,
        waker: Arc<dyn Wake>,
    ) -> Arc<InterfaceState> {
        let interface_state = Arc::new(InterfaceState {
            interface: link.index,
            mac: link.mac,
            largest,
            change: AtomicU8::new(0),
            waker,
        });
        let mut table = lock(&self.table);
        table.devices.retain(|device| device.strong_count() > 0);
        table.devices.push(Arc::downgrade(&interface_state));
        interface_state
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        lock(&self.table).stop = true;
        self.wake_thread();
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The route, if a device on the interface can use it. The error says why it cannot.
pub(crate) fn check_route(route: io::Result<Route>, interface: u32) -> Result<Route, String> {
    match route {
        Err(error) => Err(format!("there is no route: {error}")),
        Ok(route) if !route.is_unicast => {
            Err("it is an address of this host itself, or not of a single host".to_owned())
        }
        Ok(route) if route.interface != interface => Err(format!(
            "the route to it leaves by another interface (number {}; `ip route get` shows it)",
            route.interface
        )),
        Ok(route) => Ok(route),
    }
}

/// The state of the thread.
struct Watcher {
    table: Arc<Mutex<Table>>,
    doorbell: Arc<OwnedFd>,
    /// One while the thread does not sleep.
    lookups: Arc<AtomicU32>,
    events: Netlink,
    questions: Netlink,
    /// The place of the next comparison.
    position: usize,
    /// Routes have changed, or events were lost.
    is_outdated: bool,
    /// When the thread has compared everything.
    compared: Option<Instant>,
}

impl Watcher {
    fn new() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_NEIGH
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE;
        Ok(Self {
            table: Arc::default(),
            doorbell: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            lookups: Arc::default(),
            events: Netlink::new(groups as u32)?,
            questions: Netlink::new(0)?,
            position: 0,
            is_outdated: false,
            compared: None,
        })
    }

    fn run(mut self, refresh_every: Duration) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut last_refresh = Instant::now();
        loop {
            let pause = refresh_every.saturating_sub(last_refresh.elapsed());
            let pause = pause.min(self.refresh_if_outdated(Instant::now()));
            let timeout = Timespec {
                tv_sec: pause.as_secs() as i64,
                tv_nsec: pause.subsec_nanos().into(),
            };
            let events = self.events.as_fd();
            let mut fds = [
                PollFd::from_borrowed_fd(events, PollFlags::IN),
                PollFd::from_borrowed_fd(self.doorbell.as_fd(), PollFlags::IN),
            ];
            self.lookups.fetch_sub(1, Ordering::Relaxed);
            // An error can only be a signal, and that ends a wait early.
            let _ = poll(&mut fds, Some(&timeout));
            self.lookups.fetch_add(1, Ordering::Relaxed);
            let [has_events, is_called] = [&fds[0], &fds[1]].map(|fd| !fd.revents().is_empty());
            if is_called && !self.handle_requests() {
                return;
            }
            if has_events {
                self.handle_events();
            }
            if last_refresh.elapsed() >= refresh_every {
                self.check_interfaces();
                self.refresh_some();
                last_refresh = Instant::now();
            }
        }
    }

    /// Does the requested lookups. False: the thread has to end.
    fn handle_requests(&mut self) -> bool {
        // Before the requests are read, so that no request in the meantime is lost.
        let _ = rustix::io::read(&*self.doorbell, &mut [0; 8]);
        let mut table = lock(&self.table);
        let (requested, stop) = (std::mem::take(&mut table.requested), table.stop);
        drop(table);
        for hop in requested.iter().filter_map(Weak::upgrade) {
            // A sender that waited for long has requested it several times.
            if !hop.was_looked_up() {
                hop.refresh(&mut self.questions, false);
            }
        }
        !stop
    }

    fn handle_events(&mut self) {
        let Ok(events) = self.events.events() else {
            // Some events were lost. A removed interface loses all its neighbours first, and its
            // own event comes last.
            self.is_outdated = true;
            return self.check_interfaces();
        };
        let mut links_changed = false;
        for event in events {
            match event.kind {
                libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
                    let Some(now) = parse_neighbour(&event) else {
                        continue;
                    };
                    for hop in self.hops() {
                        let is_it = hop.target.interface == now.interface
                            && *hop.next() == Some(now.address);
                        if is_it {
                            hop.put(now.mac);
                        }
                    }
                }
                // A bridge sends this, with a family, also for an interface that only leaves it.
                libc::RTM_DELLINK if event.body.first() == Some(&(libc::AF_UNSPEC as u8)) => {
                    let gone = parse_link(&event.body).map(|link| link.index);
                    for device in self.devices() {
                        if Some(device.interface) == gone {
                            device.notify(InterfaceChange::Removed);
                        }
                    }
                }
                // Some of these events say little: the tables are read.
                libc::RTM_NEWLINK => links_changed = true,
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE => self.is_outdated = true,
                _ => {}
            }
        }
        if links_changed {
            self.check_interfaces();
        }
    }

    /// Compares all entries if they may be outdated, but not more often than `ROUTES_EVERY`.
    /// Returns how long the thread can wait.
    fn refresh_if_outdated(&mut self, now: Instant) -> Duration {
        if !self.is_outdated {
            return Duration::MAX;
        }
        let since = self.compared.map(|compared| now - compared);
        let pause = since.map_or(Duration::ZERO, |since| ROUTES_EVERY.saturating_sub(since));
        if !pause.is_zero() {
            return pause;
        }
        self.is_outdated = false;
        self.compared = Some(now);
        for hop in self.hops() {
            hop.refresh(&mut self.questions, false);
        }
        Duration::MAX
    }

    /// Checks the devices' interfaces, one by one: a list of all may lack some if interfaces come
    /// or go meanwhile.
    fn check_interfaces(&mut self) {
        for device in self.devices() {
            let change = match self.questions.link_of(device.interface) {
                Ok(link) => device.compare(&link),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    Some(InterfaceChange::Removed)
                }
                // The next check will tell.
                Err(_) => None,
            };
            if let Some(change) = change {
                device.notify(change);
            }
        }
    }

    fn devices(&self) -> Vec<Arc<InterfaceState>> {
        let table = lock(&self.table);
        table.devices.iter().filter_map(Weak::upgrade).collect()
    }

    fn hops(&self) -> Vec<Arc<NextHop>> {
        lock(&self.table)
            .hops
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Compares the next few entries with the kernel's tables, and forgets those without a
    /// reference.
    fn refresh_some(&mut self) {
        let mut table = lock(&self.table);
        table.hops.retain(|_, hop| hop.strong_count() > 0);
        drop(table);
        let hops = self.hops();
        if hops.is_empty() {
            return;
        }
        let count = REFRESH_COUNT.min(hops.len());
        for offset in 0..count {
            let hop = &hops[(self.position + offset) % hops.len()];
            hop.refresh(&mut self.questions, true);
        }
        self.position = (self.position + count) % hops.len();
    }
}

#[cfg(test)]
mod tests;
