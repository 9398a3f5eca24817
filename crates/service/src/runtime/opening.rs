//! How an application that calls out gets its route, and the links for its routes.

use std::sync::Arc;

use starling_endpoint::Status;
use starling_io::PeerId;
use starling_io_shm::AcceptQueue;
use starling_policy::Side;

use super::identity::Identity;
use super::links::LinkId;
use super::routes::{Callers, Route, RouteId};
use super::upgrading::Adapter;
use super::{Application, Command, Runtime};
use crate::device::DeviceKind;
use crate::error::ServiceError;
use crate::link::Link;

/// Devices by which one application calls, at most.
const MAX_ADAPTERS: usize = 16;

impl Runtime {
    /// An application has a link of its own.
    pub(super) fn admit_application(
        &mut self,
        process: u32,
        link: Box<dyn Link>,
        queue: AcceptQueue,
    ) {
        let placed = self.shared.placement.placed(process);
        if let Some(placed) = placed.filter(|placed| *placed != self.own)
            && let Some(runtime) = self.shared.runtimes().get(placed)
        {
            // It has moved meanwhile.
            runtime.send(Command::Admit {
                process,
                link,
                queue,
            });
            return;
        }
        self.shared.placement.begin(Some(process), self.own);
        if let Err(error) = self.links.admit(link, Some((process, queue))) {
            // Who has connected sees it.
            self.shared.placement.end(Some(process));
            tracing::error!(%error, process, "an application cannot be served");
        }
    }

    /// Ends the links of applications that have gone. Returns whether there were any.
    pub(super) fn remove_deserted(&mut self) -> bool {
        let deserted = self.links.take_deserted();
        let any = !deserted.is_empty();
        for link in deserted {
            for route in self.routes.of_link(link) {
                self.remove_route(route);
            }
            self.remove_link(link);
        }
        any
    }

    /// The route of a peer that makes its first request.
    pub(super) fn open_route(&mut self, from: LinkId, peer: PeerId) -> Result<RouteId, Status> {
        let entry = self.links.get_mut(from);
        let peer_is = entry.map(|entry| entry.link.peer(peer));
        let Some(peer_is) = peer_is.filter(|peer| peer.target().is_some()) else {
            return Err(Status::unimplemented(
                "the service reaches servers for applications, and this caller has not said which: set \
                 STARLING_SERVICE, or call the server's own address",
            ));
        };
        let target = peer_is.target().unwrap_or_default();
        let kind =
            DeviceKind::of(target).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let process = peer_is.process();
        let pid = process.and_then(|process| process.pid);
        let application = pid.map_or(Application::Peer(from, peer), Application::Process);
        let user = process.and_then(|process| process.uid);
        let identity = Identity::new(Side::Client, pid, user, target, &self.shared.identities);
        let share = self.shared.accounts.lock().open(application, &identity)?;
        let link = match self.shared.directory.find(target) {
            Some(local) => {
                let kind = DeviceKind::of(&local.address);
                let kind = kind.map_err(|error| Status::unavailable(error.to_string()))?;
                self.adapter(application, &kind, &local.address)?
            }
            None => self.adapter(application, &kind, target)?,
        };
        let callers = Callers::Peer(from, peer);
        let target = target.to_owned();
        let route = Route::new(callers, target, link, application, identity, share);
        if let Some(entry) = self.links.get_mut(link) {
            entry.routes += 1;
        }
        self.shared.placement.begin(pid, self.own);
        Ok(self.routes.insert(route))
    }

    /// The link by which an application calls such addresses.
    pub(super) fn adapter(
        &mut self,
        application: Application,
        kind: &DeviceKind,
        target: &str,
    ) -> Result<LinkId, Status> {
        let adapters = self.adapters.entry(application).or_default();
        let is_of_kind = |of: &&Adapter| {
            DeviceKind::of(&of.address).is_ok_and(|of| of.scheme() == kind.scheme())
        };
        let reaches = |of: &&Adapter| !of.is_replaced && kind.reaches(&of.address, target);
        let found = adapters.iter().filter(is_of_kind).find(reaches);
        if let Some(adapter) = found {
            return Ok(adapter.link);
        }
        let in_place = adapters.iter().filter(|adapter| !adapter.is_replaced);
        if in_place.count() == MAX_ADAPTERS {
            return Err(Status::resource_exhausted(format!(
                "the service has {MAX_ADAPTERS} devices for this application already: use fewer interfaces, and \
                 addresses with the same settings"
            )));
        }
        // The operator may have set some of this application's alone.
        let own = adapters.iter().rfind(is_of_kind);
        let settings = own.map(|adapter| Arc::clone(&adapter.settings));
        let of_all = || self.shared.adapter_settings(kind.scheme());
        let settings = settings.unwrap_or_else(of_all);
        let failed = |error: ServiceError| Status::unavailable(error.to_string());
        let link = kind
            .client(target, &self.clock, &self.shared.config, &settings)
            .map_err(failed)?;
        let link = self.links.insert(link).map_err(failed)?;
        adapters.push(Adapter {
            address: target.to_owned(),
            link,
            settings,
            is_replaced: false,
        });
        Ok(link)
    }
}
