//! What other threads tell a runtime, and how they reach it.

use std::sync::{Arc, mpsc};

use starling_io_shm::AcceptQueue;

use super::Application;
use super::moving::Handover;
use super::policies::Counts;
use super::poller::RuntimeWaker;
use super::report::Report;
use super::resolving::Wanted;
use super::upgrading::{AdapterReport, Replacement, Upgraded};
use crate::attached::AttachedPolicy;
use crate::link::Link;
use crate::publication::Publication;

/// What other threads tell a runtime.
#[derive(Debug)]
pub(crate) enum Command {
    /// A host name was resolved.
    Resolved {
        wanted: Wanted,
        target: String,
        /// Whose thread that was.
        application: Application,
        result: Result<Vec<String>, String>,
    },
    /// An application wants to be called at an address.
    Publish {
        address: String,
        /// Where it listens for the service.
        application: String,
        publication: Arc<Publication>,
    },
    /// An application wants to be called no more.
    Unpublish(u64),
    /// The link of an application that connects, and the way by which its connections come.
    Admit {
        process: u32,
        link: Box<dyn Link>,
        queue: AcceptQueue,
    },
    /// An application goes on in another runtime. Answered with the number of its datapaths that do. None: it cannot.
    Move {
        process: u32,
        to: usize,
        reply: mpsc::SyncSender<Option<usize>>,
    },
    /// What another runtime had.
    Adopt(Box<Handover>),
    /// These policies take the place of all.
    SetPolicies {
        list: Vec<AttachedPolicy>,
        reply: mpsc::SyncSender<()>,
    },
    /// The operator wants to know by which links applications call.
    Adapters {
        reply: mpsc::SyncSender<Vec<AdapterReport>>,
    },
    /// These links take the places of adapters. Answered when it is known for all calls.
    ReplaceAdapters {
        list: Vec<Replacement>,
        reply: mpsc::SyncSender<Upgraded>,
    },
    /// The operator wants to know.
    Report { reply: mpsc::SyncSender<Report> },
    /// The operator wants the counts of policies, by name.
    Counts {
        reply: mpsc::SyncSender<Vec<(String, Counts)>>,
    },
    /// Ends the runtime.
    Stop,
}

/// How other threads reach a runtime.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeHandle {
    sender: mpsc::Sender<Command>,
    waker: Arc<RuntimeWaker>,
}

impl RuntimeHandle {
    pub(super) fn new(sender: mpsc::Sender<Command>, waker: Arc<RuntimeWaker>) -> Self {
        Self { sender, waker }
    }

    /// Without effect once the runtime has ended. Returns whether it has not.
    pub(crate) fn send(&self, command: Command) -> bool {
        let is_there = self.sender.send(command).is_ok();
        if is_there {
            self.waker.wake();
        }
        is_there
    }
}
