//! Peers that send what no peer of this version sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use starling_endpoint::{
    CallOptions, Context, Endpoint, EndpointConfig, Handler, MethodId, OwnedMessage, Reply,
    Request, Secrets, SessionId, Status,
};
use starling_io::{MonotonicClock, Wake};
use starling_io_mem::MemIo;
use starling_message::method_id;

type Raw = Endpoint<MemIo, MonotonicClock>;

fn raw(io: MemIo, key: u32) -> Raw {
    let secrets = Secrets {
        token_key: [key as u8; 16],
        cookie_key: [key as u8; 16],
    };
    let clock = MonotonicClock::new();
    Endpoint::new(io, clock, EndpointConfig::default(), secrets).expect("an endpoint")
}

/// A server that answers one method by a function, and says that it has these algorithms.
pub(crate) struct RawServer {
    stop: Arc<AtomicBool>,
    waker: Arc<dyn Wake>,
    thread: Option<JoinHandle<()>>,
}

impl RawServer {
    /// One of `/test.Test/Echo`. `accepts` is None for a server of a version that knows of no compression.
    pub(crate) fn start(
        address: &str,
        accepts: Option<u8>,
        echo: impl FnMut(&mut Context<'_, MemIo>, Request<'_>, Reply<'_>) + Send + 'static,
    ) -> Self {
        Self::start_with(address, accepts, "/test.Test/Echo", echo)
    }

    /// One of another method.
    pub(crate) fn start_with(
        address: &str,
        accepts: Option<u8>,
        path: &str,
        handler: impl FnMut(&mut Context<'_, MemIo>, Request<'_>, Reply<'_>) + Send + 'static,
    ) -> Self {
        let mut server = raw(MemIo::bind(address).expect("a free name"), 1);
        let bind = method_id("/starling.reflection.Reflection/Bind");
        let answers_bind = Handler::inline(move |_, _, mut reply| {
            // identical = true, and perhaps compression.
            reply.buffer().extend_from_slice(&[0x08, 1]);
            if let Some(bits) = accepts {
                reply.buffer().extend_from_slice(&[0x18, bits]);
            }
            reply.ok();
        });
        server.register(MethodId(bind), answers_bind);
        server.register(MethodId(method_id(path)), Handler::inline(handler));
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, waker) = (Arc::clone(&stop), server.waker());
        let thread = std::thread::spawn(move || {
            let run = server.run_until(|_| stopped.load(Ordering::SeqCst));
            run.expect("the device works");
        });
        Self {
            stop,
            waker,
            thread: Some(thread),
        }
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        let joined = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            joined.expect("it is joined once").expect("no panic");
        }
    }
}

/// A client that sends any header and body.
pub(crate) struct RawClient {
    endpoint: Raw,
    session: SessionId,
}

impl RawClient {
    pub(crate) fn new(address: &str) -> Self {
        let mut endpoint = raw(MemIo::client(), 2);
        let session = endpoint.connect(address).expect("a session");
        Self { endpoint, session }
    }

    pub(crate) fn call(
        &mut self,
        path: &str,
        options: &CallOptions,
        body: &[u8],
    ) -> Result<OwnedMessage, Status> {
        let method = MethodId(method_id(path));
        let local = self.endpoint.local();
        let call = local.call(self.session, method, options, |out| {
            out.extend_from_slice(body)
        });
        self.endpoint.block_on(call).expect("the device works")
    }
}
