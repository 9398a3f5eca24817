//! The peer of large transfers: one TCP stream, with an application's answer to each request.
//!
//! A request is its bytes alone; the server knows the size and answers with 32 bytes once it has
//! read them all. One request is outstanding at a time, as for everyone in this suite.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::{Period, SMALL_BYTES};
use crate::contest::{Context, Sample};
use crate::error::BenchError;
use crate::process::announce;
use crate::row::Metric;

/// Role of the server; its argument is the size of a request in bytes.
pub const ROLE: &str = "tcp-sink";

/// Bytes that the server reads at once.
const READ_BYTES: usize = 256 << 10;

/// The server: takes one connection.
pub fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let size = match arguments {
        [size] => size.parse().ok().filter(|&size: &usize| size > 0),
        _ => None,
    };
    let size = size.ok_or_else(|| BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected the size of a request in bytes".into(),
    })?;
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(BenchError::io("binding a TCP socket"))?;
    let address = listener
        .local_addr()
        .map_err(BenchError::io("asking for the socket's address"))?;
    announce(&address.to_string())?;
    let (stream, _) = listener
        .accept()
        .map_err(BenchError::io("accepting a connection"))?;
    sink(stream, size).map_err(BenchError::io("answering over TCP"))
}

/// Answers requests of `size` bytes until the client closes the stream between two of them.
fn sink(mut stream: TcpStream, size: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; READ_BYTES.min(size)];
    let mut missing = size;
    loop {
        let wanted = missing.min(buffer.len());
        match stream.read(&mut buffer[..wanted])? {
            0 if missing == size => return Ok(()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
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
pub fn throughput(context: &Context, size: usize) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[&size.to_string()])?;
    let failed = || BenchError::io("exchanging over TCP");
    let mut stream = TcpStream::connect(server.address()).map_err(failed())?;
    stream.set_nodelay(true).map_err(failed())?;
    let request = vec![7; size];
    let mut run = |period: Period| {
        let mut count = 0;
        while !period.over() {
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

    fn pair(size: usize) -> (TcpStream, std::thread::JoinHandle<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, std::thread::spawn(move || sink(server, size)))
    }

    #[test]
    fn each_request_has_one_answer() {
        let (mut client, server) = pair(300_000);
        for _ in 0..3 {
            client.write_all(&vec![1; 300_000]).unwrap();
            client.read_exact(&mut [0; SMALL_BYTES]).unwrap();
        }
        drop(client);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn a_request_cut_short_is_an_error() {
        let (mut client, server) = pair(1000);
        client.write_all(&[1; 999]).unwrap();
        drop(client);
        let error = server.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_role_wants_a_size() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["0".into()]).is_err());
        assert!(serve(&["many".into()]).is_err());
    }
}
