//! The handle of a server that serves.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use super::control::{Control, ControlRequests, EndGuard};
use crate::error::Error;
use crate::health::Health;
use crate::plane::{Listener, Serving};
use crate::stats::ThreadStats;

/// How long a server that is dropped may take to finish its calls.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that serves. Dropping the handle shuts the server down, within a second.
pub struct ServerHandle {
    addresses: Vec<String>,
    health: Health,
    control: Arc<Control>,
    /// One for each thread.
    requests: Vec<Arc<ControlRequests>>,
    threads: Vec<JoinHandle<Result<bool, Error>>>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    pub(super) fn new(addresses: Vec<String>, health: Health) -> Self {
        Self {
            addresses,
            health,
            control: Arc::default(),
            requests: Vec::new(),
            threads: Vec::new(),
        }
    }

    pub(super) fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    pub(super) fn start(
        &mut self,
        listener: Box<dyn Listener>,
        serving: Serving,
    ) -> Result<(), Error> {
        self.requests.push(Arc::clone(&serving.requests));
        let guard = EndGuard(Arc::clone(&serving.control), Arc::clone(&serving.requests));
        let thread = std::thread::Builder::new()
            .name(format!("starling-{}-server", listener.scheme()))
            .spawn(move || {
                let _guard = guard;
                listener.serve(serving)
            })
            .map_err(|error| Error::system("start a dispatch thread", error))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the handle when all threads serve. If one does not, stops the others and returns its
    /// error.
    pub(super) fn started(mut self) -> Result<Self, Error> {
        let has_failed = self.control.wait_for(Some(self.threads.len())).ended > 0;
        if has_failed {
            self.stop(DROP_TIMEOUT);
            self.join()?;
        }
        self.health.begin();
        Ok(self)
    }

    /// The addresses that the server is bound to, as [`Server::addresses`](super::Server::addresses)
    /// returns them.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The first address.
    pub fn address(&self) -> &str {
        &self.addresses[0]
    }

    /// Whether all of its threads still serve. If not, [`ServerHandle::shutdown`] returns the error.
    pub fn is_serving(&self) -> bool {
        self.control.threads().ended == 0
    }

    /// The statuses that health checks get. All of the server's services are SERVING unless the program says
    /// otherwise, and everything is NOT_SERVING when the server begins to shut down.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Counters of each dispatch thread and its device, in the order of the addresses, and of the
    /// threads of one address: requests, dropped datagrams and why, the mode of an interface.
    ///
    /// A thread answers between two turns, so this waits for the handlers that run in the thread. No
    /// such handler may call it. A request for stats costs a thread nothing while there is none.
    /// Threads that have ended answer with their last stats. A thread that has panicked is missing.
    pub fn stats(&self) -> Vec<ThreadStats> {
        let asked: Vec<_> = (self.requests.iter())
            .map(|requests| requests.request_stats())
            .collect();
        let answers = asked.into_iter().filter_map(|answer| answer.recv().ok());
        answers.collect()
    }

    /// Shuts down: refuses new calls and sessions with UNAVAILABLE, and finishes the calls in progress,
    /// at most for `timeout`. True if all of them were finished.
    pub fn shutdown(mut self, timeout: Duration) -> Result<bool, Error> {
        self.finish(timeout)
    }

    /// Shuts down as [`ServerHandle::shutdown`] does, and keeps the handle: [`ServerHandle::stats`]
    /// returns the final stats afterwards.
    pub fn finish(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.stop(timeout);
        self.join()
    }

    /// Waits until the server ends, which it does only if a device fails. When the first one does, the
    /// other threads have a second to finish their calls.
    pub fn wait(mut self) -> Result<bool, Error> {
        drop(self.control.wait_for(None));
        self.stop(DROP_TIMEOUT);
        self.join()
    }

    /// The same as [`ServerHandle::wait`] for futures, until `stop` is ready: the server then has
    /// `timeout` to finish its calls. True if all of them were finished.
    pub(super) async fn ended_or(
        mut self,
        stop: impl Future<Output = ()>,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let control = self.control();
        let (mut ended, mut stop) = (pin!(control.ended(1)), pin!(stop));
        let timeout = std::future::poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(DROP_TIMEOUT);
            }
            stop.as_mut().poll(cx).map(|()| timeout)
        });
        let timeout = timeout.await;
        self.stop(timeout);
        control.ended(self.threads.len()).await;
        // All of them have ended, so this does not block.
        self.join()
    }

    fn stop(&self, timeout: Duration) {
        // First, so that watchers hear of it in front of the end of their streams.
        self.health.end();
        self.control.stop(timeout);
        self.requests.iter().for_each(|requests| requests.notify());
    }

    fn join(&mut self) -> Result<bool, Error> {
        let mut all_finished = true;
        let mut first_error = None;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(finished)) => all_finished &= finished,
                Ok(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Err(_) => {
                    first_error.get_or_insert(Error::Panicked);
                }
            }
        }
        first_error.map_or(Ok(all_finished), Err)
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop(DROP_TIMEOUT);
            // A caller that needs the error calls `shutdown`.
            let _ = self.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoWake;

    impl starling_io::Wake for NoWake {
        fn wake(&self) {}
    }

    fn requests() -> Arc<ControlRequests> {
        Arc::new(ControlRequests::new(Arc::new(NoWake)))
    }

    /// Two dispatch threads, the second of which ends with an error.
    fn with_one_that_fails() -> (ServerHandle, Arc<Control>) {
        let mut handle = ServerHandle::new(vec![String::new()], Health::default());
        let control = handle.control();
        let its_control = Arc::clone(&control);
        handle.threads.push(std::thread::spawn(move || {
            let _guard = EndGuard(Arc::clone(&its_control), requests());
            its_control.count(|threads| threads.serving += 1);
            while !its_control.is_stopping() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(true)
        }));
        let guard = EndGuard(Arc::clone(&control), requests());
        handle.threads.push(std::thread::spawn(move || {
            let _guard = guard;
            Err(Error::NothingToSteer)
        }));
        (handle, control)
    }

    #[test]
    fn a_server_has_not_started_if_one_of_its_threads_has_not() {
        let (handle, control) = with_one_that_fails();
        let error = handle.started().expect_err("one thread never serves");
        assert!(matches!(error, Error::NothingToSteer), "{error}");
        assert_eq!(control.threads().ended, 2, "a thread is left");
    }

    #[test]
    fn a_server_ends_with_the_first_thread_that_fails() {
        let (handle, control) = with_one_that_fails();
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = sender.send(handle.wait().is_err());
        });
        let ended = ended.recv_timeout(Duration::from_secs(60));
        control.stop(Duration::ZERO);
        assert_eq!(ended, Ok(true), "it waits for the thread that still serves");
    }
}
