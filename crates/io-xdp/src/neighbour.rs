//! Which hardware address frames to a destination go to: a cache of what the kernel knows.
//!
//! The kernel finds routes and resolves neighbours (ARP, neighbour discovery); one thread for each
//! network namespace listens to what it says about them and writes it where the sending half of a
//! device reads it: one atomic load for each datagram, and nothing there ever waits.
//!
//! ```text
//!                 route and neighbour known               the kernel says: gone, failed, rerouted
//!   UNKNOWN ───────────────────────────────────▶ KNOWN ─────────────────────────────────▶ UNKNOWN
//!      │ datagrams leave through the kernel's           │ datagrams leave through AF_XDP
//!      │ socket, which makes it resolve                 │ now and then the kernel is told to see
//!                                                       │ whether a stale one is still there
//! ```
//!
//! Who opens a peer asks for the way at once; who admits one, as it answers a stranger, has the thread
//! ask, and asks only if the thread does not get to it, for all cores may be taken by threads that
//! spin. If the thread is asking it never asks itself: the kernel may be busy changing interfaces,
//! for seconds, and answers nobody meanwhile.

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

/// How often some of the cache is compared with the kernel's tables.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// How many entries are compared each time.
const REFRESH_COUNT: usize = 256;
/// All are compared when routes have changed, at most this often: a routing protocol may change
/// thousands at a time.
const ROUTES_EVERY: Duration = Duration::from_millis(100);

/// TransmitPolicy that wait for the thread to ask for them; what is beyond is found when it compares.
const MAX_REQUESTED: usize = 4096;

/// Bit of a hop's word that says that the other 48 are its hardware address.
const KNOWN: u64 = 1 << 48;

/// A destination of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// Number of the interface.
    pub(crate) interface: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

/// What is known of the way to a destination.
#[derive(Debug)]
pub(crate) struct NextHop {
    target: Target,
    /// Zero, or [`KNOWN`] and the hardware address of the next hop.
    word: AtomicU64,
    /// The router, or the destination itself; none while there is no route.
    next: Mutex<Option<IpAddr>>,
    /// The kernel was asked.
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

    /// Where frames go, if that is known.
    #[inline]
    pub(crate) fn mac(&self) -> Option<Mac> {
        let word = self.word.load(Ordering::Relaxed);
        let [.., a, b, c, d, e, f] = word.to_be_bytes();
        (word & KNOWN != 0).then_some([a, b, c, d, e, f])
    }

    fn put(&self, mac: Option<Mac>) {
        self.word.store(word_of(mac), Ordering::Relaxed);
    }

    /// The kernel was asked at least once.
    pub(crate) fn was_looked_up(&self) -> bool {
        self.was_looked_up.load(Ordering::Relaxed)
    }

    /// The next hop. Who holds it is asking, or writing what was answered.
    pub(crate) fn next(&self) -> MutexGuard<'_, Option<IpAddr>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel. With `probe`, it is also told to see after a stale neighbour. Whoever else
    /// asks waits, so that what is written last was asked for last.
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
        // If an event in the meantime says something else, it is looked at after this.
        self.put(known.and_then(|known| known.mac));
        if let Some(known) = known.filter(|known| probe && known.is_stale) {
            // If the kernel does not take it now, it will the next time.
            let _ = netlink.probe(interface, known.address);
        }
    }
}

fn word_of(mac: Option<Mac>) -> u64 {
    mac.map_or(0, |[a, b, c, d, e, f]| {
        KNOWN | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    })
}

/// What ends a device: something is the matter with its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterfaceChange {
    /// It does not exist any more.
    Removed = 1,
    /// It has another hardware address: the program knows the old one, as do all frames.
    OtherMac,
    /// It does not take the device's largest frames any more, and drops them without a word.
    SmallerMtu,
}

/// Whether a device's interface is there, as it was when the device was made.
pub(crate) struct InterfaceState {
    interface: u32,
    mac: Mac,
    /// The device's largest IP packet, in bytes.
    largest: usize,
    /// Zero, or an [`End`].
    change: AtomicU8,
    /// Of the device: a socket whose interface goes wakes nobody.
    waker: Arc<dyn Wake>,
}

impl InterfaceState {
    /// The device is of no use any more.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.change.load(Ordering::Relaxed) != 0
    }

    /// Why.
    pub(crate) fn change(&self) -> Option<InterfaceChange> {
        [
            InterfaceChange::Removed,
            InterfaceChange::OtherMac,
            InterfaceChange::SmallerMtu,
        ]
        .into_iter()
        .find(|change| *change as u8 == self.change.load(Ordering::Relaxed))
    }

    /// What the interface is like now, so far as it matters.
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
    /// What the thread is to ask for.
    requested: Vec<Weak<NextHop>>,
    /// It is to end.
    stop: bool,
}

/// The cache of one network namespace. Its thread ends with the last reference.
pub(crate) struct Neighbours {
    table: Arc<Mutex<Table>>,
    doorbell: Arc<OwnedFd>,
    /// How many are asking the kernel, or about to.
    pub(crate) lookups: Arc<AtomicU32>,
}

/// One cache for each network namespace, by the cookie that the kernel gives it.
static CACHES: Mutex<Vec<(u64, Weak<Neighbours>)>> = Mutex::new(Vec::new());

impl Neighbours {
    /// The cache of the namespace `cookie`, which this thread is in.
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

    /// The way to a destination, as the kernel knows it now; it is kept up to date as long as
    /// anybody holds it. Without a socket to ask by it is nowhere until the thread has asked.
    pub(crate) fn hop(&self, target: Target, netlink: Option<&mut Netlink>) -> Arc<NextHop> {
        let mut table = lock(&self.table);
        let place = table.hops.entry(target).or_default();
        if let Some(hop) = place.upgrade() {
            return hop;
        }
        let hop = Arc::new(NextHop::new(target));
        *place = Arc::downgrade(&hop);
        // It is asked for after it is in the table: no event is missed.
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

    /// Has the thread ask for a way.
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

    /// Somebody is asking the kernel, and may be waiting for it: so would whoever else asks.
    pub(crate) fn is_looking_up(&self) -> bool {
        self.lookups.load(Ordering::Relaxed) > 0
    }

    /// Has the thread look what is requested of it.
    fn wake_thread(&self) {
        // The only possible error is that it is readable already.
        let _ = rustix::io::write(&*self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Whether an interface stays there as it is, with room for IP packets of `largest` bytes; when
    /// it does not, the waker is used.
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

/// The route as it concerns a device: an error says why there is none for it.
pub(crate) fn check_route(route: io::Result<Route>, interface: u32) -> Result<Route, String> {
    match route {
        Err(error) => Err(format!("there is no route: {error}")),
        Ok(route) if !route.is_unicast => {
            Err("it is an address of this host itself, or of no single one".to_owned())
        }
        Ok(route) if route.interface != interface => Err(format!(
            "the route to it leaves by another interface (number {}; `ip route get` shows it)",
            route.interface
        )),
        Ok(route) => Ok(route),
    }
}

/// What the thread has.
struct Watcher {
    table: Arc<Mutex<Table>>,
    doorbell: Arc<OwnedFd>,
    /// One while the thread does anything but wait.
    lookups: Arc<AtomicU32>,
    events: Netlink,
    questions: Netlink,
    /// Where the next comparison begins.
    position: usize,
    /// Routes have changed, or nobody knows what has.
    is_outdated: bool,
    /// When everything was compared.
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

    /// Asks for what is requested. False: it is to end.
    fn handle_requests(&mut self) -> bool {
        // Before the look at what is requested: a call in the meantime is not lost.
        let _ = rustix::io::read(&*self.doorbell, &mut [0; 8]);
        let mut table = lock(&self.table);
        let (requested, stop) = (std::mem::take(&mut table.requested), table.stop);
        drop(table);
        for hop in requested.iter().filter_map(Weak::upgrade) {
            // Who waited for long has requested it several times.
            if !hop.was_looked_up() {
                hop.refresh(&mut self.questions, false);
            }
        }
        !stop
    }

    fn handle_events(&mut self) {
        let Ok(events) = self.events.events() else {
            // Some were lost; with an interface go all of its neighbours, and the word of it is
            // the last.
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
                // A bridge says so, too, of an interface that only leaves it; that has a family.
                libc::RTM_DELLINK if event.body.first() == Some(&(libc::AF_UNSPEC as u8)) => {
                    let gone = parse_link(&event.body).map(|link| link.index);
                    for device in self.devices() {
                        if Some(device.interface) == gone {
                            device.notify(InterfaceChange::Removed);
                        }
                    }
                }
                // Some of these say little: the kernel is asked.
                libc::RTM_NEWLINK => links_changed = true,
                libc::RTM_NEWROUTE | libc::RTM_DELROUTE => self.is_outdated = true,
                _ => {}
            }
        }
        if links_changed {
            self.check_interfaces();
        }
    }

    /// Compares all that there is, if it may be wrong and that was not done a moment ago. Returns how
    /// long it can wait.
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

    /// Sees whether the devices' interfaces are still there and as they were, one by one: a list of
    /// all may lack some, if any come or go meanwhile.
    fn check_interfaces(&mut self) {
        for device in self.devices() {
            let change = match self.questions.link_of(device.interface) {
                Ok(link) => device.compare(&link),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    Some(InterfaceChange::Removed)
                }
                // The next look will tell.
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

    /// Compares the next few with the kernel's tables, and forgets those that nobody holds.
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
