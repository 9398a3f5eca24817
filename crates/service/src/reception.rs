//! Where applications connect: each gets a link of its own, in its runtime.

use std::collections::HashMap;
use std::sync::Arc;

use starling_endpoint::EndpointConfig;
use starling_io::{MonotonicClock, PeerProcess};
use starling_io_shm::{Door, Doors};

use crate::error::ServiceError;
use crate::link::EndpointLink;
use crate::runtime::Command;
use crate::shared::Shared;

/// See the head of this file.
pub(crate) struct Reception {
    pub(crate) doors: Doors,
    pub(crate) clock: MonotonicClock,
    pub(crate) config: EndpointConfig,
    pub(crate) shared: Arc<Shared>,
    /// The ways to the links of processes and their users: a number may be another's by now.
    pub(crate) links: HashMap<(u32, Option<u32>), Door>,
}

impl Reception {
    /// The way to the link of a process. None: it has to do with that of all which are not to be seen.
    pub(crate) fn door_of(&mut self, process: Option<PeerProcess>) -> Option<Door> {
        let process = process?;
        let pid = process.pid?;
        let known = self.links.get(&(pid, process.uid));
        if let Some(door) = known.filter(|door| !door.is_closed()) {
            return Some(door.clone());
        }
        match self.open(pid, process.uid) {
            Ok(door) => door,
            Err(error) => {
                tracing::warn!(%error, pid, "an application has no link of its own, and stays in the first runtime");
                None
            }
        }
    }

    /// None: its runtime has ended, as the service does.
    fn open(&mut self, process: u32, user: Option<u32>) -> Result<Option<Door>, ServiceError> {
        self.links.retain(|_, door| !door.is_closed());
        let (device, door) = self.doors.open()?;
        let link = EndpointLink::new(device, self.clock.clone(), &self.config)?;
        let runtime = self.shared.runtime_of(process, user);
        let admit = Command::Admit {
            process,
            link: Box::new(link),
            door: door.clone(),
        };
        let runtime = self.shared.runtimes().get(runtime);
        if !runtime.is_some_and(|runtime| runtime.send(admit)) {
            return Ok(None);
        }
        self.links.insert((process, user), door.clone());
        Ok(Some(door))
    }
}
