//! The least of HTTP/1.1 by which a collector takes spans: one request for each connection.
//!
//! There is no TLS: a collector runs on the host, or in a network that is trusted.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use starling::metrics::Timed;

use crate::error::ServiceError;

/// How long a collector may take to answer a connection, and then for a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer that are looked at, at most.
const MAX_HEAD: usize = 8 << 10;
/// Where a collector takes spans, by OTLP's specification.
const TRACES: &str = "/v1/traces";

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// HOST:PORT.
    authority: String,
    path: String,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl Destination {
    /// Reads `http://HOST:PORT`, perhaps with a path before that of the traces.
    pub(crate) fn parse(address: &str) -> Result<Self, ServiceError> {
        let malformed = || ServiceError::Collector {
            address: address.to_owned(),
        };
        let rest = address.strip_prefix("http://").ok_or_else(malformed)?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let (host, port) = authority.rsplit_once(':').ok_or_else(malformed)?;
        let is_sound = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_port = port.parse().is_ok_and(|port: u16| port > 0);
        if host.is_empty() || !is_port || !is_sound(rest) {
            return Err(malformed());
        }
        Ok(Self {
            authority: authority.to_owned(),
            path: format!("{}{TRACES}", path.trim_end_matches('/')),
        })
    }

    /// Sends a request in JSON.
    ///
    /// # Errors
    /// Why the collector has not taken it, for the operator.
    pub(crate) fn post(&self, body: &[u8]) -> Result<(), String> {
        let answer = self.exchange(body).map_err(|error| error.to_string())?;
        let mut words = answer.split(' ');
        match (words.next(), words.next()) {
            (Some(version), Some(status)) if version.starts_with("HTTP/1.") => {
                match status.starts_with('2') {
                    true => Ok(()),
                    false => Err(format!("it answers {status}")),
                }
            }
            _ => Err("it does not speak HTTP/1.1".to_owned()),
        }
    }

    /// Sends it, and returns the first line of the answer.
    fn exchange(&self, body: &[u8]) -> io::Result<String> {
        let mut connection = Timed::new(self.connect()?, PATIENCE);
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.authority,
            body.len()
        );
        connection.write_all(head.as_bytes())?;
        connection.write_all(body)?;
        let (mut head, mut part) = (Vec::new(), [0; 1024]);
        while head.len() < MAX_HEAD && !head.contains(&b'\n') {
            match connection.read(&mut part)? {
                0 => break,
                count => head.extend_from_slice(&part[..count]),
            }
        }
        let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(String::from_utf8_lossy(line).trim_end().to_owned())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::other("the host has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_read_and_others_refused() {
        let parse = |text: &str| Destination::parse(text).map(|it| it.to_string());
        let plain = parse("http://127.0.0.1:4318").expect("an address");
        assert_eq!(plain, "http://127.0.0.1:4318/v1/traces");
        let path = parse("http://collector:80/otlp/").expect("an address");
        assert_eq!(path, "http://collector:80/otlp/v1/traces");
        parse("http://[::1]:4318").expect("an address");
        for wrong in [
            "",
            "127.0.0.1:4318",
            "https://h:4318",
            "http://h",
            "http://:1",
            "http://h:x",
            "http://h:0",
            "http://h:1/a b",
            "http://h:1/\r\nx: y",
        ] {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("write http://HOST:4318"), "{error}");
        }
    }

    #[test]
    fn an_answer_says_whether_spans_were_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let answers = [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
            (
                "HTTP/1.1 503 Busy\r\n\r\n",
                Err("it answers 503".to_owned()),
            ),
            ("SSH-2.0\r\n", Err("it does not speak HTTP/1.1".to_owned())),
            ("", Err("it does not speak HTTP/1.1".to_owned())),
        ];
        let texts = answers.clone().map(|(text, _)| text);
        let collector = std::thread::spawn(move || {
            for text in texts {
                let (mut connection, _) = listener.accept().expect("a request");
                let (mut request, mut part) = (Vec::new(), [0; 1024]);
                while !request.ends_with(b"{}") {
                    let count = connection.read(&mut part).expect("a request");
                    request.extend_from_slice(&part[..count]);
                }
                let request = String::from_utf8(request).expect("a text");
                assert!(
                    request.starts_with("POST /v1/traces HTTP/1.1\r\n"),
                    "{request}"
                );
                assert!(request.contains("\r\nContent-Length: 2\r\n"), "{request}");
                connection.write_all(text.as_bytes()).expect("an answer");
            }
        });
        let destination = Destination::parse(&format!("http://{address}")).expect("an address");
        for (text, expected) in answers {
            assert_eq!(destination.post(b"{}"), expected, "{text}");
        }
        collector.join().expect("no panic");
    }

    #[test]
    fn a_collector_that_answers_drop_by_drop_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let collector = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().expect("a request");
            let drops = b"HTTP/1.1 200 ".iter().chain([&b'O'; 40]).chain(b"\n");
            for drop in drops {
                // It may have been left.
                if connection.write_all(&[*drop]).is_err() {
                    return;
                }
                std::thread::sleep(PATIENCE / 10);
            }
        });
        let destination = Destination::parse(&format!("http://{address}")).expect("an address");
        destination.post(b"{}").expect_err("its time is over");
        collector.join().expect("no panic");
    }
}
