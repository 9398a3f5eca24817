//! Addresses at which the service listens for applications.

use std::sync::Arc;

use starling_endpoint::Status;
use starling_policy::Side;

use super::identity::Identity;
use super::links::LinkId;
use super::resolving::Wanted;
use super::routes::{Callers, Local, Route, RouteId};
use super::{Application, Command, Runtime};
use crate::ROOT;
use crate::adapter::AdapterSettings;
use crate::device::DeviceKind;
use crate::error::ServiceError;
use crate::publication::Publication;

/// The scheme by which the service reaches applications.
const WITHIN_HOST: &str = "shm";

/// Ports below it are the system's.
const FIRST_FREE_PORT: u16 = 1024;

/// Addresses of one application, at most.
const MAX_PUBLICATIONS: usize = 64;

impl Runtime {
    /// An application wants to be called at an address. If that is a host name, when a thread has resolved it.
    pub(super) fn begin_publication(
        &mut self,
        address: String,
        application: String,
        publication: Arc<Publication>,
    ) {
        if !publication.is_wanted() {
            return;
        }
        let has_host_name = |kind: DeviceKind| kind.has_host_name(&address);
        if DeviceKind::of(&address).is_ok_and(has_host_name) {
            let of = Application::Process(publication.process);
            let wanted = Wanted::ByApplication(application, publication);
            return self.resolve_by_thread(wanted, address, of);
        }
        self.publish_at_one(vec![address], application, publication);
    }

    /// Listens at the first address that can be listened at, for an application.
    pub(super) fn publish_at_one(
        &mut self,
        addresses: Vec<String>,
        application: String,
        publication: Arc<Publication>,
    ) {
        let placed = self
            .shared
            .runtime_of(publication.process, publication.user);
        if placed != self.own
            && let Some(runtime) = self.shared.runtimes().get(placed)
            && let Some(address) = addresses.first().cloned()
        {
            runtime.send(Command::Publish {
                address,
                application,
                publication,
            });
            return;
        }
        let mut begun = Err(Status::failed_precondition("the host name has no address"));
        for address in addresses {
            let again = Command::Publish {
                address: address.clone(),
                application: application.clone(),
                publication: Arc::clone(&publication),
            };
            // Another one may be about to be free.
            if (self.shared.directory)
                .defer(&address, &self.handle, again)
                .is_ok()
            {
                return;
            }
            begun = self.publish(&address, &application, &publication);
            if begun.is_ok() {
                break;
            }
        }
        publication.begin(begun);
    }

    /// Listens at an address, for the application that listens at another. Returns the address, with its port.
    fn publish(
        &mut self,
        address: &str,
        application: &str,
        publication: &Arc<Publication>,
    ) -> Result<String, Status> {
        let refused = |error: ServiceError| Status::failed_precondition(error.to_string());
        let kind = DeviceKind::of(address).map_err(refused)?;
        if !may_have(publication.user, address) {
            return Err(Status::permission_denied(format!(
                "{address}: the service listens for applications of other users only at udp:// and tcp:// ports \
                 from 1024 on"
            )));
        }
        let application = &*by_user(application, publication.user);
        self.replace_own(address, application);
        let (process, user) = (Some(publication.process), publication.user);
        let of = Application::Process(publication.process);
        let mut identity = Identity::new(
            Side::Server,
            process,
            user,
            address,
            &self.shared.identities,
        );
        let share = self.shared.accounts.lock().open(of, &identity)?;
        let own = |other: &&Arc<Publication>| other.process == publication.process;
        if self.publications.values().filter(own).count() >= MAX_PUBLICATIONS {
            return Err(Status::resource_exhausted(format!(
                "the service listens at {MAX_PUBLICATIONS} addresses for this application already"
            )));
        }
        let within = DeviceKind::of(application).map_err(refused)?;
        if within.scheme() != WITHIN_HOST {
            let text =
                format!("{application}: an application listens for the service at shm://NAME");
            return Err(Status::invalid_argument(text));
        }
        let (config, settings) = (&self.shared.config, AdapterSettings::default());
        let link = within
            .client(application, &self.clock, config, &settings)
            .map_err(refused)?;
        let to = self.links.insert(link).map_err(refused)?;
        let listening = kind
            .bind(address, &self.clock, config)
            .and_then(|link| self.links.insert(link));
        let from = match listening {
            Ok(from) => from,
            Err(error) => {
                self.links.remove(to);
                return Err(refused(error));
            }
        };
        let own = self.links.get_mut(from);
        let own = own.map_or_else(String::new, |entry| entry.link.local_address());
        identity.set_server(&own);
        let target = application.to_owned();
        let local = Local {
            address: target.clone(),
            identity: identity.clone(),
        };
        let mut route = Route::new(Callers::All(from), target, to, of, identity, share);
        route.chain = self.policies.chain(&route);
        if let Some(entry) = self.links.get_mut(to) {
            entry.routes += 1;
        }
        let route = self.routes.insert(route);
        self.shared.placement.begin(process, self.own);
        self.shared.directory.insert(publication.id, local);
        self.publications.insert(from, Arc::clone(publication));
        // The service learns by its session when the application ends.
        if let Err(status) = self.reach_application(route) {
            self.end_publication(from);
            return Err(status);
        }
        Ok(own)
    }

    /// Begins to open a session with an application that is published.
    ///
    /// # Errors
    /// If another process listens where the application did: it has not asked to be called.
    pub(super) fn reach_application(&mut self, id: RouteId) -> Result<(), Status> {
        self.resolve(id);
        let route = self.routes.get(id);
        let found = route.and_then(|it| Some((it.session()?, it.link, it.identity.process)));
        let Some((session, link, process)) = found else {
            return Err(Status::failed_precondition(
                "nothing listens where the application said",
            ));
        };
        let server = self
            .links
            .get_mut(link)
            .and_then(|entry| entry.link.server_of(session));
        let owner = server.and_then(|server| server.process()?.pid);
        match owner.is_some() && owner == process {
            true => Ok(()),
            false => Err(Status::permission_denied(
                "another process listens where the application said: it can only publish itself",
            )),
        }
    }

    /// Ends the publication of this very listener at this address, of which its application has lost sight. What
    /// another listener has is in use, also if it is of the same process.
    fn replace_own(&mut self, address: &str, application: &str) {
        let links: Vec<LinkId> = self.publications.keys().copied().collect();
        for link in links {
            let is_same = self
                .routes
                .of_all(link)
                .is_some_and(|route| route.target == application);
            let entry = self.links.get_mut(link).filter(|_| is_same);
            if entry.is_some_and(|entry| entry.link.local_address() == address) {
                self.end_publication(link);
            }
        }
    }

    pub(super) fn unpublish(&mut self, id: u64) {
        let found = self
            .publications
            .iter()
            .find(|(_, publication)| publication.id == id);
        let route = found.and_then(|(link, _)| self.routes.of_link(*link).pop());
        if let Some(route) = route {
            self.begin_leaving(route);
        }
    }

    /// The service listens at an address no more: its clients have left.
    pub(super) fn end_publication(&mut self, from: LinkId) {
        let Some(publication) = self.publications.remove(&from) else {
            return;
        };
        for route in self.routes.of_link(from) {
            self.remove_route(route);
        }
        self.links.remove(from);
        publication.end();
        self.shared.directory.remove(publication.id);
    }
}

/// Where an application listens for the service, which its user has to own.
fn by_user(application: &str, user: Option<u32>) -> String {
    let own = rustix::process::geteuid().as_raw();
    let (name, _) = application.split_once('?').unwrap_or((application, ""));
    match user {
        Some(user) if user != own && user != ROOT => format!("{name}?users={user}"),
        _ => name.to_owned(),
    }
}

/// Whether a user may be called at an address: the service's own rights and name are not lent to others.
fn may_have(user: Option<u32>, address: &str) -> bool {
    let own = rustix::process::geteuid().as_raw();
    if user == Some(own) || user == Some(ROOT) {
        return true;
    }
    let is_by_port = address.starts_with("udp://") || address.starts_with("tcp://");
    let port = address
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    is_by_port && port.is_some_and(|port| port == 0 || port >= FIRST_FREE_PORT)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use starling_io_shm::{ShmConfig, ShmIo};

    use super::*;

    #[test]
    fn an_application_listens_as_its_user_whatever_it_says() {
        let own = rustix::process::geteuid().as_raw();
        let other = own.wrapping_add(4711);
        for said in ["shm://a", "shm://a?users=7", "shm://a?users=any"] {
            assert_eq!(by_user(said, Some(own)), "shm://a");
            assert_eq!(by_user(said, Some(ROOT)), "shm://a");
            assert_eq!(by_user(said, Some(other)), format!("shm://a?users={other}"));
        }
    }

    #[test]
    fn other_users_get_free_ports_and_nothing_that_is_the_services() {
        let own = rustix::process::geteuid().as_raw();
        let other = Some(own.wrapping_add(4711));
        for address in [
            "udp://0.0.0.0:80",
            "tcp://0.0.0.0:80",
            "shm://kv",
            "xdp://eth0/10.0.0.7:9000",
            "udp://h:port",
        ] {
            assert!(may_have(Some(own), address) && may_have(Some(ROOT), address));
            assert!(
                !may_have(other, address) && !may_have(None, address),
                "{address}"
            );
        }
        assert!(may_have(other, "udp://0.0.0.0:9000") && may_have(other, "tcp://[::1]:0"));
    }

    #[test]
    fn the_runtime_does_not_wait_for_the_name_server_of_a_host_name() {
        let mut runtime = Runtime::of_nobody();
        let name = format!("shm://publish-{}", std::process::id());
        let _own = ShmIo::bind(&name, ShmConfig::default()).expect("it is free");
        let user = Some(rustix::process::geteuid().as_raw());
        let publication = Publication::new(1, std::process::id(), user);
        let address = "udp://localhost:0".to_owned();
        runtime.begin_publication(address.clone(), name.clone(), Arc::clone(&publication));
        let mut begun = pin!(publication.begun());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(runtime.publications.is_empty() && begun.as_mut().poll(cx).is_pending());
        let own = loop {
            runtime.execute_commands();
            match begun.as_mut().poll(cx) {
                Poll::Ready(own) => break own.expect("it can be listened at"),
                Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        assert!(
            own.starts_with("udp://127.0.0.1:") || own.starts_with("udp://[::1]:"),
            "{own}"
        );
        assert_eq!(runtime.publications.len(), 1);
        // Nobody waits for this one any more.
        let given_up = Publication::new(2, std::process::id(), user);
        runtime.begin_publication("udp://127.0.0.1:0".to_owned(), name, given_up);
        assert_eq!(runtime.publications.len(), 1);
        runtime.links.end_all();
    }
}
