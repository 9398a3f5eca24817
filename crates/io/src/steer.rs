//! Devices that hand requests to workers by themselves.
//!
//! A network interface may look at what arrives and give whole requests straight to the worker
//! that has the fewest (RPCValet, ASPLOS 2019). Such a device has a part for each worker and one
//! for the dispatcher, the thread that has the device itself:
//!
//! ```text
//!              ┌─ requests ─▶ WorkerIo 0 ─▶ answers, or
//!  interface ──┼─ requests ─▶ WorkerIo 1 ─▶ hands over ─┐
//!              └─ the rest ─▶ PacketIo ◀────────────────┘
//!                             Steering: who has how much
//! ```
//!
//! What a device goes by when it chooses is advice. Datagrams may be given to any worker, and
//! twice; it is for those who run them to see to it that a request runs once.

use std::sync::Arc;
use std::time::Duration;

use crate::{Datagram, IoError, Wake};

/// A device's parts for workers and dispatcher, from [`PacketIo::steer`](crate::PacketIo::steer).
pub struct Steered {
    /// The dispatcher's.
    pub steering: Box<dyn Steering>,
    /// One for each worker.
    pub workers: Vec<Box<dyn WorkerIo>>,
}

/// One worker's part of a device: it has one datagram at a time.
pub trait WorkerIo: Send {
    /// Takes the next datagram that is for this worker, if there is one. The last one was answered
    /// or handed over.
    fn receive(&mut self) -> bool;

    /// The datagram that was received and neither answered nor handed over.
    ///
    /// # Panics
    /// If there is none.
    fn datagram(&self) -> Datagram<'_>;

    /// Sends `parts`, one after the other, as one datagram to where the one that is held came from,
    /// in its memory. False, with nothing done, if there is no room for it.
    fn answer(&mut self, parts: [&[u8]; 3]) -> bool;

    /// Gives the datagram to the dispatcher, which receives it as if it had come to it at first.
    fn hand_over(&mut self);

    /// Is done with the datagram; nothing is sent.
    fn discard(&mut self);

    /// The worker is done with one thing that it was given: a datagram, or what
    /// [`Steering::take`] counted. Sequentially consistent, as what `take` sees of it is: of a worker
    /// that then looks whether something is held, and a dispatcher that holds something and then
    /// calls `take`, one sees the other.
    fn complete(&mut self);

    /// Sleeps until something may be there, or the waker was used. The caller has nothing to do: if
    /// nothing comes for a while, what is counted for this worker is counted wrongly, and is
    /// forgotten. May return early for no reason.
    ///
    /// # Errors
    /// If the device is of no use any more.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError>;

    /// A handle for other threads to end a [`WorkerIo::wait`].
    fn waker(&self) -> Arc<dyn Wake>;
}

/// The dispatcher's part: it gives out what the device did not, by the same counts.
pub trait Steering: Send {
    /// A method that workers run, by its id: requests for others do not go to them. False
    /// positives are possible.
    fn add_method(&mut self, method: u32);

    /// The worker with the fewest requests, if it has fewer than its bound, counted for one more.
    fn take(&mut self) -> Option<usize>;

    /// Called now and then. A worker that is still at what it was at the last time is counted as
    /// having its bound until it is done with that: whatever else it were given, by the device or by
    /// [`Steering::take`], nobody would look at for as long, not even to say that it has arrived.
    fn avoid_blocked(&mut self);

    /// Requests that the dispatcher holds until a worker is free. As long as there are any,
    /// everything goes to the dispatcher, so that nothing overtakes them.
    fn set_held(&mut self, held: usize);

    /// From now on everything goes to the dispatcher.
    fn stop(&mut self);
}
