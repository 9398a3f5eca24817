//! Making the workers of a device: a socket for each, and the dispatcher's part.

use std::os::fd::AsFd;
use std::sync::Arc;

use starling_io::{EventfdWaker, Fault, IoError, MatchTable, Steered, WorkerIo};

use super::XdpIo;
use crate::exchange::Exchange;
use crate::peer_cache::PeerCache;
use crate::queue_reservation::QueueId;
use crate::socket::QueueBinding;
use crate::steering::{MAX_DEPTH, MAX_WORKERS, XdpSteering};
use crate::worker::{WorkerParts, XdpWorker};

/// Ethernet frames that can wait for one worker, and answers of it that can wait to be sent: far
/// more than a worker has while the counts are right.
const WORKER_FRAMES: u32 = 64;

impl XdpIo {
    /// See [`starling_io::PacketIo::steer`].
    pub(super) fn make_workers(
        &mut self,
        workers: usize,
        depth: u8,
        table: &MatchTable,
    ) -> Result<Steered, IoError> {
        let attempt = format!("have {} place datagrams on workers", self.address);
        let fail = |problem: String, remedy: &str| {
            Err(IoError::new(
                Fault::Caller,
                attempt.as_str(),
                problem,
                remedy,
            ))
        };
        if !(1..=MAX_WORKERS).contains(&workers) {
            return fail(
                format!("{workers} workers are too few or too many"),
                "have 1 to 63, or another queue model",
            );
        }
        if !(1..=MAX_DEPTH).contains(&depth) {
            let problem = format!("{depth} requests are too few or too many for one worker");
            return fail(problem, "let it have 1 to 8");
        }
        if self.is_steered {
            return fail("it does already".to_owned(), "ask for it once");
        }
        let shared = &self.shared;
        let binding = QueueBinding {
            interface: &shared.interface,
            id: QueueId {
                namespace: shared.namespace,
                interface: shared.index,
                queue: shared.queue,
            },
            mode: self.address.mode(),
            is_generic: shared.program.is_generic,
            memory: shared.umem.layout.bytes(),
        };
        let exchange = Arc::new(Exchange::new(
            shared.umem.layout.rx_chunks,
            Arc::clone(self.rx.chunks()),
            workers,
        ));
        let mut parts: Vec<WorkerParts> = Vec::new();
        let host = |error| {
            let remedy = "raise the limits on memory and open files, or use another queue model";
            IoError::from_os(Fault::Host, attempt.as_str(), error, remedy)
        };
        for index in 0..workers {
            let (socket, rings) = shared.socket.open_another(&binding, WORKER_FRAMES)?;
            parts.push(WorkerParts {
                shared: Arc::clone(shared),
                exchange: Arc::clone(&exchange),
                index,
                socket: Arc::new(socket),
                rx: rings.rx,
                tx: rings.tx,
                peers: PeerCache::new(self.control.directory()),
                dispatcher: self.control.waker(),
                waker: Arc::new(EventfdWaker::new().map_err(host)?),
            });
        }
        let sockets = parts.iter().map(|parts| Arc::downgrade(&parts.socket));
        exchange.sockets.set(sockets);
        let sockets = parts.iter().map(|parts| parts.socket.as_fd());
        let steering =
            XdpSteering::start(shared, &exchange, sockets, depth, table).map_err(host)?;
        self.is_steered = true;
        self.rx.share_with_workers(Arc::clone(&exchange));
        self.tx.share_with_workers(exchange);
        let boxed = |parts| Box::new(XdpWorker::new(parts)) as Box<dyn WorkerIo>;
        Ok(Steered {
            steering: Box::new(steering),
            workers: parts.into_iter().map(boxed).collect(),
        })
    }
}
