//! A server whose answers a test sets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use starling::{
    Code, InterceptedCall, InterceptedResponse, Interceptor, Metadata, Next, ServerHandle, Status,
};

use crate::common::{Gate, server};

/// What a server does with its calls.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// How the next calls fail, before their handlers run.
    failures: VecDeque<Status>,
    /// How all others fail.
    always: Option<Status>,
    /// What responses have as metadata.
    metadata: Metadata,
    calls: Vec<Call>,
}

/// A call that has come.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// What it says of attempts before it.
    pub(crate) previous_attempts: Option<String>,
    pub(crate) came: Instant,
}

impl Script {
    pub(crate) fn fail_once(&self, status: Status) {
        self.0.lock().failures.push_back(status);
    }

    pub(crate) fn fail_always(&self, status: Option<Status>) {
        self.0.lock().always = status;
    }

    pub(crate) fn respond_with(&self, key: &str, value: &[u8]) {
        let mut state = self.0.lock();
        state.metadata = Metadata::new();
        state.metadata.insert(key, value).expect("a valid pair");
    }

    /// The calls since this was asked last.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().calls)
    }

    fn next(&self, call: &InterceptedCall) -> Option<Status> {
        let mut state = self.0.lock();
        let previous = call.metadata().value("grpc-previous-rpc-attempts");
        state.calls.push(Call {
            previous_attempts: previous.map(|it| String::from_utf8_lossy(it).into_owned()),
            came: Instant::now(),
        });
        state.failures.pop_front().or_else(|| state.always.clone())
    }
}

impl Interceptor for Script {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        // Health checks are no calls of the tests.
        if !call.path().starts_with("/grpc.")
            && let Some(status) = self.next(&call)
        {
            if !call.is_stream() {
                // It reached its method, and may have run.
                let _ = next.run(call).await;
            }
            return Err(status);
        }
        let is_stream = call.is_stream();
        let mut response = next.run(call).await?;
        if !is_stream {
            let metadata = self.0.lock().metadata.clone();
            response.metadata_mut().extend(&metadata).expect("room");
        }
        Ok(response)
    }
}

/// A running server with a script.
pub(crate) fn serve_script(address: &str) -> (ServerHandle, Arc<Gate>, Script) {
    let script = Script::default();
    let (builder, gate) = server(&[address]);
    let server = builder.interceptor(script.clone()).build();
    let server = server.expect("a server").spawn().expect("threads");
    (server, gate, script)
}

/// A failure of a server that may work the next time.
pub(crate) fn unavailable() -> Status {
    Status::unavailable("as the test says")
}

/// The same, with what the server says of another attempt, in milliseconds.
pub(crate) fn pushback(status: Status, value: &str) -> Status {
    let mut metadata = Metadata::new();
    let added = metadata.insert("grpc-retry-pushback-ms", value);
    added.expect("a valid pair");
    status.with_metadata(metadata)
}

/// Codes of calls that fail.
pub(crate) fn code_of<T>(result: Result<T, Status>) -> Code {
    match result {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

pub(crate) const MILLI: Duration = Duration::from_millis(1);
