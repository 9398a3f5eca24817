//! Adapters that are replaced while something else happens.

use std::sync::mpsc::{Receiver, sync_channel};

use starling_io::PeerId;
use starling_policy::Side;

use super::*;
use crate::link::Events;
use crate::publication::Publication;
use crate::runtime::identity::Identity;
use crate::runtime::routes::Callers;

const PUBLISHED: u64 = 1;

/// A runtime in which an application calls another one, which listens and answers when it is told to.
struct Calling {
    runtime: Runtime,
    application: Application,
    route: RouteId,
    address: String,
    peers: u64,
    listener: Box<dyn Link>,
    _publication: Arc<Publication>,
}

impl Calling {
    fn new(name: &str) -> Self {
        let mut runtime = Runtime::of_nobody();
        let process = std::process::id();
        let address = format!("shm://{name}-{process}");
        let (clock, config) = (&runtime.clock, &runtime.shared.config);
        let kind = DeviceKind::of(&address).expect("an address");
        let listener = kind.bind(&address, clock, config).expect("it is free");
        let user = Some(rustix::process::geteuid().as_raw());
        let publication = Publication::new(PUBLISHED, process, user);
        let at = "udp://127.0.0.1:0".to_owned();
        runtime.begin_publication(at, address.clone(), Arc::clone(&publication));
        let mut calling = Self {
            runtime,
            application: Application::Process(process),
            route: 0,
            address,
            peers: 0,
            listener,
            _publication: publication,
        };
        calling.route = calling.add_route();
        calling
    }

    /// One more route to the application, whose session begins to open.
    fn add_route(&mut self) -> RouteId {
        let runtime = &mut self.runtime;
        let Application::Process(process) = self.application else {
            panic!("it is a process");
        };
        let published = runtime.publications.keys().next().expect("it is published");
        let listens = runtime.links.get_mut(*published).expect("a link");
        let target = listens.link.local_address();
        let user = Some(rustix::process::geteuid().as_raw());
        let configured = &runtime.shared.identities;
        let identity = Identity::new(Side::Client, Some(process), user, &target, configured);
        let share = runtime
            .shared
            .accounts
            .lock()
            .open(self.application, &identity);
        let kind = DeviceKind::of(&self.address).expect("an address");
        let link = runtime.adapter(self.application, &kind, &self.address);
        let link = link.expect("a device");
        runtime.links.get_mut(link).expect("a link").routes += 1;
        self.peers += 1;
        let from = runtime.frontend.expect("it has one");
        let callers = Callers::Peer(from, PeerId(self.peers as _));
        let share = share.expect("a share");
        let route = Route::new(callers, target, link, self.application, identity, share);
        let id = runtime.routes.insert(route);
        runtime.resolve(id);
        id
    }

    fn route(&mut self, id: RouteId) -> &mut Route {
        self.runtime.routes.get_mut(id).expect("it is there")
    }

    /// As if the server had answered.
    fn open(&mut self, id: RouteId) {
        let link = self.route(id).link;
        let session = self.route(id).session().expect("a session");
        self.route(id).state = RouteState::Open(session);
        self.entry(link).connecting -= 1;
    }

    fn entry(&mut self, link: LinkId) -> &mut super::super::links::LinkEntry {
        self.runtime.links.get_mut(link).expect("a link")
    }

    /// Has another adapter take the place of one.
    fn replace(&mut self, old: LinkId) -> Receiver<Upgraded> {
        let (reply, upgraded) = sync_channel(1);
        let runtime = &mut self.runtime;
        let (clock, config) = (&runtime.clock, &runtime.shared.config);
        let settings = AdapterSettings::default();
        let kind = DeviceKind::of(&self.address).expect("an address");
        let link = kind.client(&self.address, clock, config, &settings);
        let replacement = Replacement {
            application: self.application,
            old,
            address: self.address.clone(),
            link: link.expect("a device"),
            settings: Arc::new(settings),
        };
        runtime.replace_adapters(vec![replacement], reply);
        upgraded
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.runtime.links.end_all();
    }
}

#[test]
fn a_session_that_opens_within_the_service_begins_anew_by_the_new_adapter() {
    let mut calling = Calling::new("upgrade-connecting");
    let route = calling.route;
    let old = calling.route(route).link;
    assert!(matches!(
        calling.route(route).state,
        RouteState::Connecting(_)
    ));
    let upgraded = calling.replace(old).try_recv().expect("nothing is tried");
    assert_eq!((upgraded.adapters, upgraded.stayed.len()), (1, 0));
    let address = calling.address.clone();
    let route = calling.route(route);
    assert!(matches!(route.state, RouteState::Connecting(_)) && route.link != old);
    let local = route.local.as_ref().expect("it is still an application's");
    assert_eq!((&local.address, &route.address), (&address, &address));
    let link = route.link;
    assert_eq!(calling.entry(link).connecting, 1);
    assert!(calling.runtime.links.get_mut(old).is_none());
}

#[test]
fn an_adapter_that_fails_is_replaced_no_more() {
    let mut calling = Calling::new("upgrade-failing");
    let route = calling.route;
    calling.open(route);
    let first = calling.route(route).link;
    // It had to stay with an upgrade of before.
    let adapters = calling.runtime.adapters.get_mut(&calling.application);
    adapters.expect("there is one")[0].is_replaced = true;
    let other = calling.add_route();
    let old = calling.route(other).link;
    assert_ne!(first, old);
    let upgraded = calling.replace(old);
    assert!(
        upgraded.try_recv().is_err(),
        "the route has a session to come"
    );
    calling.runtime.fail_link(old, "for the test");
    let upgraded = upgraded.try_recv().expect("it is over");
    assert_eq!((upgraded.adapters, upgraded.stayed.len()), (0, 1));
    assert!(calling.route(route).successor.is_none());
    assert!(calling.runtime.links.get_mut(old).is_none());
    assert!(calling.runtime.upgrading.operations.is_empty());
    assert_eq!(calling.route(route).link, first);
}

#[test]
fn an_upgrade_ends_in_time_and_is_alone() {
    let mut calling = Calling::new("upgrade-late");
    let (route, other) = (calling.route, calling.add_route());
    calling.open(route);
    let old = calling.route(route).link;
    let upgraded = calling.replace(old);
    let again = calling.replace(old).try_recv().expect("it is refused");
    assert_eq!(again.adapters, 0);
    let refused = format!("{}: {UNDER_WAY}", calling.address);
    assert_eq!(again.stayed, [refused], "not one of its routes");
    // Its session opens meanwhile.
    calling.open(other);
    let replacing = &mut calling.runtime.upgrading.operations[0].replacing[0];
    let until_ns = std::mem::take(&mut replacing.until_ns);
    calling.runtime.end_late_trials(until_ns - 1);
    assert!(upgraded.try_recv().is_err(), "it has time");
    calling.runtime.end_late_trials(until_ns);
    let upgraded = upgraded.try_recv().expect("it is over");
    assert_eq!((upgraded.adapters, upgraded.datapaths), (0, 0));
    assert!(
        upgraded.stayed[0].contains("not ready"),
        "{}",
        upgraded.stayed[0]
    );
    assert!(
        upgraded.stayed[1].contains("too long"),
        "{}",
        upgraded.stayed[1]
    );
    assert!(calling.route(other).successor.is_none());
    assert_eq!(calling.route(other).link, old);
}

#[test]
fn numbers_of_routes_that_are_gone_are_for_others() {
    let mut calling = Calling::new("upgrade-numbers");
    let (route, gone) = (calling.route, calling.add_route());
    calling.open(route);
    calling.open(gone);
    let old = calling.route(route).link;
    let upgraded = calling.replace(old);
    assert!(calling.route(gone).successor.is_some());
    calling.runtime.remove_route(gone);
    let other = calling.add_route();
    assert_eq!(other, gone);
    calling.open(other);
    calling.runtime.fail_trial(route, "for the test");
    let tried = calling.route(other).successor.as_mut();
    let tried = tried.expect("it is another one");
    tried.is_open = true;
    let new = tried.link;
    calling.entry(new).connecting -= 1;
    // A question is over that the route asked which is gone.
    calling.runtime.ask_too(other, LinkId::MAX, None);
    assert!(upgraded.try_recv().is_err() && calling.route(other).link == old);
    let from = calling.route(other).from();
    calling.runtime.ask_too(other, from, None);
    let upgraded = upgraded.try_recv().expect("it is over");
    assert_eq!((upgraded.adapters, upgraded.datapaths), (1, 1));
    assert_eq!(calling.route(other).link, new);
}

#[test]
fn a_route_with_too_many_methods_stays_also_if_they_came_meanwhile() {
    let mut calling = Calling::new("upgrade-methods");
    let route = calling.route;
    calling.open(route);
    let old = calling.route(route).link;
    let upgraded = calling.replace(old);
    let new = calling.route(route).successor.as_ref();
    let new = new.expect("it is tried").link;
    let too_long = [0; 1000];
    assert_eq!(calling.route(route).bindings.question(&too_long), None);
    let mut events = Events::default();
    let upgraded = loop {
        calling.listener.turn().expect("it works");
        calling.runtime.turn(new, &mut events).expect("it works");
        match upgraded.try_recv() {
            Ok(upgraded) => break upgraded,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    assert_eq!((upgraded.adapters, upgraded.datapaths), (0, 0));
    assert!(
        upgraded.stayed[0].contains("too many"),
        "{}",
        upgraded.stayed[0]
    );
    assert_eq!(calling.route(route).link, old);
}
