//! A page for a scraper: the least of HTTP/1.1 that Prometheus, a browser and `curl` ask for.
//!
//! A thread accepts connections, and each has a thread of its own, with a second for its request and five for the
//! answer. There are sixteen of them at most: further ones wait.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use starling_io::{Fault, IoError};

use crate::error::Error;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take to read the whole answer.
const READING: Duration = Duration::from_secs(5);
/// Connections at once, at most.
const MOST: usize = 16;
/// Bytes of a request's head, at most.
const MAX_HEAD: usize = 8 << 10;

const THREAD: &str = "starling-metrics";

/// What a page shows, or why it cannot.
pub(super) trait PageText: Fn() -> Result<String, String> + Send + Sync + 'static {}

impl<T: Fn() -> Result<String, String> + Send + Sync + 'static> PageText for T {}

/// A page of metrics, at `http://ADDRESS/metrics`. Dropping it closes the page.
pub struct MetricsPage {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPage {
    pub(super) fn open(address: &str, text: impl PageText) -> Result<Self, Error> {
        let attempt = || format!("show metrics at http://{address}/metrics");
        let failed = |error: io::Error| {
            let remedy = "choose another HOST:PORT of this host; port 0 is any free one";
            IoError::from_os(Fault::Host, attempt(), error, remedy)
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_closed = Arc::new(AtomicBool::new(false));
        let its_flag = Arc::clone(&is_closed);
        let thread = Builder::new()
            .name(THREAD.into())
            .spawn(move || answer_all(&listener, &its_flag, &text))
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

/// Returns when all connections have their answers.
fn answer_all(listener: &TcpListener, is_closed: &AtomicBool, text: &impl PageText) {
    let room = Room::default();
    std::thread::scope(|scope| {
        for connection in listener.incoming() {
            if is_closed.load(Ordering::Acquire) {
                return;
            }
            let Ok(connection) = connection else {
                // For lack of files: others are closed meanwhile.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let place = room.enter();
            let answer = move || {
                let _place = place;
                // A client that goes away has no answer, and that is all.
                let _ = answer(connection, text);
            };
            // If there is no thread for it, the connection is closed.
            let _ = Builder::new()
                .name(THREAD.into())
                .spawn_scoped(scope, answer);
        }
    });
}

/// Connections that have threads.
#[derive(Default)]
struct Room {
    taken: Mutex<usize>,
    left: Condvar,
}

/// That of one of them.
struct Place<'a>(&'a Room);

impl Room {
    /// Waits until there is a place.
    fn enter(&self) -> Place<'_> {
        let mut taken = self.taken.lock();
        while *taken == MOST {
            self.left.wait(&mut taken);
        }
        *taken += 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.left.notify_one();
    }
}

/// A connection that is of use until a time, however little comes or goes at once.
#[derive(Debug)]
pub struct Timed {
    connection: TcpStream,
    until: Instant,
}

impl Timed {
    /// A connection that is of use for so long from now on.
    pub fn new(connection: TcpStream, time: Duration) -> Self {
        let until = Instant::now() + time;
        Self { connection, until }
    }

    /// The time that is left, for a system call that takes no time of 0.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.connection.set_read_timeout(self.left()?)?;
        self.connection.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.connection.set_write_timeout(self.left()?)?;
        self.connection.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

fn answer(connection: TcpStream, text: &impl PageText) -> io::Result<()> {
    let mut connection = Timed::new(connection, PATIENCE);
    let head = read_head(&mut connection)?;
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = target.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match text() {
            Ok(text) => ("200 OK", text),
            Err(why) => ("503 Service Unavailable", format!("{why}\n")),
        },
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
    connection.until = Instant::now() + READING;
    connection.write_all(head.as_bytes())?;
    if method != "HEAD" {
        connection.write_all(body.as_bytes())?;
    }
    connection.flush()
}

/// The request up to its empty line, or as much as may be.
fn read_head(connection: &mut Timed) -> io::Result<String> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let count = connection.read(&mut part)?;
        head.extend_from_slice(&part[..count]);
        // RFC 9112, 2.2: a line feed alone may end a line, too.
        let has = |end: &[u8]| head.windows(end.len()).any(|window| window == end);
        let is_whole = has(b"\r\n\r\n") || has(b"\n\n");
        if count == 0 || is_whole || head.len() >= MAX_HEAD {
            return Ok(String::from_utf8_lossy(&head).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_a_little_at_a_time_holds_its_place_until_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut reader = TcpStream::connect(address).expect("it listens");
        let (connection, _) = listener.accept().expect("a reader");
        let reading = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while matches!(reader.read(&mut part), Ok(count) if count > 0) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let until = Instant::now() + Duration::from_millis(200);
        let mut connection = Timed { connection, until };
        // At 4 MB a second, at most, it takes some 15 s.
        let error = connection.write_all(&vec![0; 64 << 20]);
        let kind = error.expect_err("it is slow").kind();
        assert!(
            matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
            "{kind}"
        );
        drop(connection);
        reading.join().expect("no panic");
    }
}
