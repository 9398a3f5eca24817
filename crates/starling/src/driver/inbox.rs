//! The queue of commands that callers share with a driver's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::SegQueue;
use starling_io::Wake;

use super::command::{Command, Submission, stopped};

pub(super) struct Inbox {
    commands: SegQueue<Command>,
    wake: Arc<dyn Wake>,
    stop: AtomicBool,
    /// Why the thread stopped.
    failure: OnceLock<String>,
}

impl Inbox {
    pub(super) fn new(wake: Arc<dyn Wake>) -> Arc<Self> {
        Arc::new(Self {
            commands: SegQueue::new(),
            wake,
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    pub(super) fn push(&self, command: Command) {
        self.commands.push(command);
        self.wake.wake();
        if self.failure().is_some() {
            // The thread may have read the queue for the last time before the push.
            self.refuse_all();
        }
    }

    pub(super) fn pop(&self) -> Option<Command> {
        self.commands.pop()
    }

    /// Has the thread end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Why the thread has stopped, if it has. It executes no commands then.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(super) fn fail(&self, why: String) {
        // Only the first reason is kept.
        let _ = self.failure.set(why);
    }

    /// Ends all calls in the queue.
    fn refuse_all(&self) {
        while let Some(command) = self.commands.pop() {
            if let Command::Call(Submission { reply, .. }) | Command::Connect { reply, .. } =
                command
            {
                reply.finish(Err(stopped(self.failure())));
            }
        }
    }
}

/// Closes the inbox when the thread ends, by a panic, too.
pub(super) struct CloseGuard(pub(super) Arc<Inbox>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.fail("it has ended".to_owned());
        // A caller that pushes a command from now on sees the failure and does the same.
        self.0.refuse_all();
    }
}
