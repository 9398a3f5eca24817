//! The event loop behind channels, whose device is chosen at run time.

use std::sync::Arc;
use std::time::Duration;

use starling_io::{IoError, MessageMemory, Wake};
use starling_share::Step;

use super::command::{Command, refuse};
use super::event_loop::EventLoop;
use crate::device::Device;

/// An [`EventLoop`] on a device of any kind: one dynamic call for each turn and each command.
pub(crate) trait AnyLoop: Send {
    fn waker(&self) -> Arc<dyn Wake>;
    fn memory(&self) -> MessageMemory;
    fn resume(&mut self) -> Result<(), IoError>;
    fn execute(&mut self, command: Command);
    /// Returns whether the turn did anything.
    fn turn(&mut self) -> Result<bool, IoError>;
    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError>;
    fn spin_ns(&self) -> u64;
    fn is_expecting(&self) -> bool;
    fn next_timer_ns(&mut self) -> Option<u64>;
    fn end(self: Box<Self>, failure: Option<&str>);
}

impl<I: Device> AnyLoop for EventLoop<I> {
    fn waker(&self) -> Arc<dyn Wake> {
        self.waker()
    }

    fn memory(&self) -> MessageMemory {
        self.memory()
    }

    fn resume(&mut self) -> Result<(), IoError> {
        self.resume()
    }

    fn execute(&mut self, command: Command) {
        self.execute(command);
    }

    fn turn(&mut self) -> Result<bool, IoError> {
        self.turn()
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.sleep(limit)
    }

    fn spin_ns(&self) -> u64 {
        self.spin_ns()
    }

    fn is_expecting(&self) -> bool {
        self.is_expecting()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        self.next_timer_ns()
    }

    fn end(self: Box<Self>, failure: Option<&str>) {
        (*self).end(failure);
    }
}

/// A loop of any kind, as `starling_share` drives it.
pub(crate) struct DrivenLoop(pub(super) Box<dyn AnyLoop>);

impl starling_share::EventLoop for DrivenLoop {
    type Command = Command;

    fn resume(&mut self) -> Result<(), IoError> {
        self.0.resume()
    }

    fn execute(&mut self, command: Command) {
        self.0.execute(command);
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        Ok(match self.0.turn()? {
            true => Step::Busy,
            false => Step::Idle,
        })
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.0.sleep(limit)
    }

    fn spin_ns(&self) -> u64 {
        self.0.spin_ns()
    }

    fn is_expecting(&self) -> bool {
        self.0.is_expecting()
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        self.0.next_timer_ns()
    }

    fn end(self, failure: Option<&str>) {
        self.0.end(failure);
    }

    fn refuse(command: Command, failure: &str) {
        refuse(command, failure);
    }
}
