//! Large transfers over one TCP stream, with an application's answer to each request.
//!
//! A request is its bytes alone; the server knows the size and answers with 32 bytes once it has
//! read them all. One request is outstanding at a time, as in all benchmarks of the suite. There
//! are two variants: both sides block, as ordinary programs do, or both poll, as Starling does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::{BusyWait, Period, SMALL_BYTES};
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::announce;

/// Role of the server; its arguments are the size of a request in bytes, [`Waiting::name`], how to
/// wait between two tries, and the host to bind.
pub const ROLE: &str = "tcp-sink";

/// How both sides wait for the stream's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// In the system call.
    Blocking,
    /// By trying again.
    Polling,
}

impl Waiting {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Blocking, Self::Polling];

    /// Its name in cases and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Polling => "polling",
        }
    }
}

/// Bytes that the server reads at once.
const READ_BYTES: usize = 256 << 10;

/// The server: takes one connection.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let parse = || match arguments {
        [size, waiting, wait, host] => {
            let size = size.parse().ok().filter(|&size: &usize| size > 0)?;
            let waiting = Waiting::ALL.into_iter().find(|w| w.name() == waiting)?;
            Some((size, waiting, BusyWait::from_name(wait)?, host.as_str()))
        }
        _ => None,
    };
    let (size, waiting, wait, host) = parse().ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why:
            "expected the size of a request in bytes, `blocking` or `polling`, `spin` or `yield`, \
              and a host"
                .into(),
    })?;
    let listener = TcpListener::bind((host, 0)).map_err(BenchError::io("binding a TCP socket"))?;
    let address = listener
        .local_addr()
        .map_err(BenchError::io("asking for the socket's address"))?;
    announce(&address.to_string())?;
    let (stream, _) = listener
        .accept()
        .map_err(BenchError::io("accepting a connection"))?;
    Stream::new(stream, waiting, wait)
        .and_then(|stream| sink(stream, size))
        .map_err(BenchError::io("answering over TCP"))
}

/// A stream with one of the two ways to wait.
struct Stream {
    stream: TcpStream,
    wait: BusyWait,
}

impl Stream {
    fn new(stream: TcpStream, waiting: Waiting, wait: BusyWait) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting == Waiting::Polling)?;
        Ok(Self { stream, wait })
    }

    fn poll<R>(
        &mut self,
        mut attempt: impl FnMut(&mut TcpStream) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match attempt(&mut self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait.pause(),
                done => return done,
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.poll(|stream| stream.read(buffer))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.poll(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Answers requests of `size` bytes until the client closes the stream between two of them.
fn sink(mut stream: Stream, size: usize) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES.min(size)];
    let mut missing = size;
    loop {
        let wanted = missing.min(buffer.len());
        match stream.read(&mut buffer[..wanted])? {
            0 if missing == size => return Ok(()),
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => missing -= read,
        }
        if missing == 0 {
            let mut answer = [0; SMALL_BYTES];
            answer[0] = buffer[0];
            stream.write_all(&answer)?;
            missing = size;
        }
    }
}

/// Throughput of requests of `size` bytes.
pub fn throughput(context: &Context, size: usize, waiting: Waiting) -> Result<Sample, BenchError> {
    let wait = BusyWait::on(context.cores);
    let host = context.network.server();
    let arguments = [&size.to_string(), waiting.name(), wait.name(), host];
    let server = context.launcher.start(ROLE, &arguments)?;
    let failed = || BenchError::io("exchanging over TCP");
    let mut stream = TcpStream::connect(server.address())
        .and_then(|stream| Stream::new(stream, waiting, wait))
        .map_err(failed())?;
    let request = vec![7; size];
    let mut run = |period: Period| {
        let mut count = 0;
        // However short the period, something has to come of it.
        while !period.is_over() || count == 0 {
            stream.write_all(&request)?;
            stream.read_exact(&mut [0; SMALL_BYTES])?;
            count += 1;
        }
        Ok(period.rate_of(count * size as u64))
    };
    run(Period::warm_up(context)).map_err(failed())?;
    let throughput = run(Period::measured(context)).map_err(failed())?;
    Ok(vec![(Metric::Throughput, throughput)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(size: usize, waiting: Waiting) -> (TcpStream, std::thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let server = Stream::new(server, waiting, BusyWait { yields: true }).unwrap();
        (client, std::thread::spawn(move || sink(server, size)))
    }

    #[test]
    fn each_request_has_one_answer() {
        for waiting in Waiting::ALL {
            let (mut client, server) = pair(300_000, waiting);
            for _ in 0..3 {
                client.write_all(&vec![1; 300_000]).unwrap();
                client.read_exact(&mut [0; SMALL_BYTES]).unwrap();
            }
            drop(client);
            server.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_request_cut_short_is_an_error() {
        let (mut client, server) = pair(1000, Waiting::Blocking);
        client.write_all(&[1; 999]).unwrap();
        drop(client);
        let error = server.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_role_wants_a_size_and_how_to_wait() {
        assert!(serve(&[]).is_err());
        for arguments in [
            ["0", "polling", "spin"],
            ["many", "polling", "spin"],
            ["1", "polling", "sleep"],
            ["1", "dozing", "spin"],
        ] {
            assert!(serve(&arguments.map(String::from)).is_err());
        }
    }
}
