//! What applications ask of the service besides calls: `starling.control.Control`, at `shm://NAME.control`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use starling::managed::{
    Control, ControlServer, HoldRequest, HoldResponse, OperatorServer, PublishRequest, Published,
};
use starling::{NestedContext, OwnedRequest, Server, ServerHandle, Status};

use crate::error::ServiceError;
use crate::operator::Operations;
use crate::publication::Publication;
use crate::runtime::Command;
use crate::shared::Shared;

/// Serves the control interface of a service.
pub(crate) fn serve(
    name: &str,
    any_user: bool,
    shared: Arc<Shared>,
    operations: Arc<Operations>,
) -> Result<ServerHandle, ServiceError> {
    let users = if any_user { "?users=any" } else { "" };
    let controller = Controller {
        shared,
        publications: Mutex::default(),
        next: AtomicU64::new(1),
    };
    let server = Server::builder()
        .direct()
        .bind(&format!("shm://{name}.control{users}"))?
        .add_service(ControlServer::new(controller))
        .add_service(OperatorServer::from_arc(operations))
        .build()?;
    Ok(server.spawn()?)
}

struct Controller {
    shared: Arc<Shared>,
    publications: Mutex<HashMap<u64, Weak<Publication>>>,
    next: AtomicU64,
}

impl Controller {
    /// Keeps a publication to be found by its id.
    fn remember(&self, publication: &Arc<Publication>) {
        let mut publications = self.publications.lock();
        publications.retain(|_, publication| publication.strong_count() > 0);
        publications.insert(publication.id, Arc::downgrade(publication));
    }

    /// The publication of the process that asks.
    fn own(&self, request: &OwnedRequest<HoldRequest>) -> Result<Arc<Publication>, Status> {
        let process = process_of(request)?;
        let id = request.message().id();
        let publication = self.publications.lock().get(&id).and_then(Weak::upgrade);
        let own = publication.filter(|publication| publication.process == process);
        own.ok_or_else(|| Status::not_found("the address is not published any more"))
    }
}

impl Control for Controller {
    async fn publish(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<PublishRequest>,
    ) -> Result<Published, Status> {
        let process = process_of(&request)?;
        let user = request.peer().process().and_then(|process| process.uid);
        let message = request.message();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let publication = Publication::new(id, process, user);
        self.remember(&publication);
        let publish = Command::Publish {
            address: message.address().to_owned(),
            application: message.application().to_owned(),
            publication: Arc::clone(&publication),
        };
        let runtime = self.shared.runtime_of(process, user);
        if let Some(runtime) = self.shared.runtimes().get(runtime) {
            runtime.send(publish);
        }
        let address = publication.begun().await?;
        Ok(Published::new()
            .with_id(publication.id)
            .with_address(&address))
    }

    async fn hold(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<HoldRequest>,
    ) -> Result<HoldResponse, Status> {
        self.own(&request)?.over().await;
        Ok(HoldResponse::new())
    }

    async fn unpublish(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<HoldRequest>,
    ) -> Result<HoldResponse, Status> {
        let publication = self.own(&request)?;
        publication.withdraw();
        // It may be on its way from one runtime to another: the one that has it takes this in.
        for runtime in self.shared.runtimes() {
            runtime.send(Command::Unpublish(publication.id));
        }
        publication.over().await;
        Ok(HoldResponse::new())
    }
}

/// The process that asks.
fn process_of<M: starling::Message>(request: &OwnedRequest<M>) -> Result<u32, Status> {
    let process = request.peer().process().and_then(|process| process.pid);
    process.ok_or_else(|| {
        Status::permission_denied(
            "the service cannot see which process this is: run both in one pid namespace",
        )
    })
}
