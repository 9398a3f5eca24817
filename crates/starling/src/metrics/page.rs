//! A page for a scraper: the least of HTTP/1.1 that Prometheus, a browser and `curl` ask for.
//!
//! One thread, one connection at a time, each with a second for its request and another for each write of the
//! answer: a page is asked for every few seconds. Whoever reads slowly holds up the others.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use starling_io::{Fault, IoError};

use crate::error::Error;

/// How long a client may take to send its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request's head, at most.
const MAX_HEAD: usize = 8 << 10;

/// A page of metrics, at `http://ADDRESS/metrics`. Dropping it closes the page.
pub struct MetricsPage {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPage {
    pub(super) fn open(address: &str) -> Result<Self, Error> {
        let attempt = || format!("show metrics at http://{address}/metrics");
        let failed = |error: io::Error| {
            let remedy = "choose another HOST:PORT of this host; port 0 is any free one";
            IoError::from_os(Fault::Host, attempt(), error, remedy)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let its_flag = Arc::clone(&is_closed);
        let thread = std::thread::Builder::new()
            .name("starling-metrics".into())
            .spawn(move || answer_all(&listener, &its_flag))
            .map_err(|error| Error::system("start a thread for the page of metrics", error))?;
        Ok(Self {
            address,
            is_closed,
            thread: Some(thread),
        })
    }

    /// The page's address, with the port that port 0 became.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for MetricsPage {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(match own {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        // Ends the accept. If it fails, the thread ends after the next connection.
        let is_woken = TcpStream::connect_timeout(&own, PATIENCE).is_ok();
        if let (true, Some(thread)) = (is_woken, self.thread.take()) {
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

fn answer_all(listener: &TcpListener, is_closed: &AtomicBool) {
    for connection in listener.incoming() {
        if is_closed.load(Ordering::Acquire) {
            return;
        }
        match connection {
            // A client that goes away has no answer, and that is all.
            Ok(connection) => drop(answer(connection)),
            // For lack of files: others are closed meanwhile.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    connection.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut connection)?;
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => ("200 OK", super::prometheus()),
        ("GET" | "HEAD", _) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "ask with GET\n".to_owned()),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes())?;
    if method != "HEAD" {
        connection.write_all(body.as_bytes())?;
    }
    connection.flush()
}

/// The request up to its empty line, or as much as may be.
fn read_head(connection: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_read_timeout(Some(left))?;
        let count = connection.read(&mut part)?;
        head.extend_from_slice(&part[..count]);
        let is_whole = head.windows(4).any(|window| window == b"\r\n\r\n");
        if count == 0 || is_whole || head.len() >= MAX_HEAD {
            return Ok(String::from_utf8_lossy(&head).into_owned());
        }
    }
}
