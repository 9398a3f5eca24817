//! A collector that takes spans by OTLP over HTTP with JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::mesh::LONG;

/// What it has taken, and whether it is over.
#[derive(Default)]
struct Taken {
    state: Mutex<(Vec<Value>, bool)>,
    changed: Condvar,
}

/// It listens until it is dropped.
pub(crate) struct Collector {
    address: SocketAddr,
    taken: Arc<Taken>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let taken = Arc::<Taken>::default();
        let into = Arc::clone(&taken);
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if into.state.lock().expect("no panic").1 {
                    return;
                }
                let spans = take(connection.expect("a connection"));
                into.state.lock().expect("no panic").0.extend(spans);
                into.changed.notify_all();
            }
        });
        Self {
            address,
            taken,
            thread: Some(thread),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Value> {
        self.taken.state.lock().expect("no panic").0.clone()
    }

    /// Waits for so many spans, and returns all.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Value> {
        let state = self.taken.state.lock().expect("no panic");
        let is_short = |state: &mut (Vec<Value>, bool)| state.0.len() < count;
        let waited = self.taken.changed.wait_timeout_while(state, LONG, is_short);
        let (state, timeout) = waited.expect("no panic");
        assert!(!timeout.timed_out(), "only {} spans", state.0.len());
        state.0.clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Ok(mut state) = self.taken.state.lock() {
            state.1 = true;
        }
        // Ends the accept.
        let is_woken = TcpStream::connect(self.address).is_ok();
        if let (true, Some(thread)) = (is_woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Reads a request and answers it. Returns its spans.
fn take(connection: TcpStream) -> Vec<Value> {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a request");
    assert_eq!(line, "POST /v1/traces HTTP/1.1\r\n");
    let mut len = 0;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.trim_end().parse().expect("a number");
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).expect("a body");
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    reader.into_inner().write_all(answer).expect("it waits");
    let request: Value = serde_json::from_slice(&body).expect("JSON");
    let spans = &request["resourceSpans"][0]["scopeSpans"][0]["spans"];
    spans.as_array().expect("spans").clone()
}
