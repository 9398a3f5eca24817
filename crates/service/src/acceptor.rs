//! Where applications connect: each gets a link of its own, in its runtime.

use std::collections::HashMap;
use std::sync::Arc;

use starling_endpoint::EndpointConfig;
use starling_io::{MonotonicClock, PeerProcess};
use starling_io_shm::{AcceptQueue, AcceptQueues};

use crate::error::ServiceError;
use crate::link::EndpointLink;
use crate::runtime::Command;
use crate::shared::Shared;

/// See the head of this file.
pub(crate) struct Acceptor {
    pub(crate) queues: AcceptQueues,
    pub(crate) clock: MonotonicClock,
    pub(crate) config: EndpointConfig,
    pub(crate) shared: Arc<Shared>,
    /// The ways to the links of processes and their users: a number may be another's by now.
    pub(crate) links: HashMap<(u32, Option<u32>), AcceptQueue>,
}

impl Acceptor {
    /// The way to the link of a process. None: it has to do with that of all which are not to be seen.
    pub(crate) fn queue_of(&mut self, process: Option<PeerProcess>) -> Option<AcceptQueue> {
        let process = process?;
        let pid = process.pid?;
        let known = self.links.get(&(pid, process.uid));
        if let Some(queue) = known.filter(|queue| !queue.is_closed()) {
            return Some(queue.clone());
        }
        match self.open(pid, process.uid) {
            Ok(queue) => queue,
            Err(error) => {
                tracing::warn!(%error, pid, "an application has no link of its own, and stays in the first runtime");
                None
            }
        }
    }

    /// None: its runtime has ended, as the service does.
    fn open(
        &mut self,
        process: u32,
        user: Option<u32>,
    ) -> Result<Option<AcceptQueue>, ServiceError> {
        self.links.retain(|_, queue| !queue.is_closed());
        let (device, queue) = self.queues.open()?;
        let link = EndpointLink::new(device, self.clock.clone(), &self.config)?;
        let runtime = self.shared.runtime_of(process, user);
        let admit = Command::Admit {
            process,
            link: Box::new(link),
            queue: queue.clone(),
        };
        let runtime = self.shared.runtimes().get(runtime);
        if !runtime.is_some_and(|runtime| runtime.send(admit)) {
            return Ok(None);
        }
        self.links.insert((process, user), queue.clone());
        Ok(Some(queue))
    }
}
