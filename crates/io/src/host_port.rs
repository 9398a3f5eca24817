//! Parses and resolves addresses of the form `scheme://host:port`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use crate::{Fault, IoError};

/// A parsed `scheme://host:port`: a name or an IP address, and a port.
///
/// ```
/// use starling_io::HostPort;
///
/// let address = HostPort::parse("udp", "udp://[::1]:9000")?;
/// assert_eq!((address.host(), address.port()), ("::1", 9000));
/// # Ok::<(), starling_io::IoError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl HostPort {
    /// Parses `scheme://host:port`, `scheme://1.2.3.4:port` or `scheme://[v6]:port`.
    ///
    /// # Errors
    /// With [`Fault::Caller`]; the text says which part is wrong and how to write it.
    pub fn parse(scheme: &str, text: &str) -> Result<Self, IoError> {
        let malformed = |problem: &str, remedy: &str| {
            let remedy = remedy.replace("SCHEME", scheme);
            IoError::new(Fault::Caller, format!("parse {text:?}"), problem, remedy)
        };
        let form = "write SCHEME://HOST:PORT, such as SCHEME://127.0.0.1:9000";
        let rest = match text.split_once("://") {
            Some((its, rest)) if its == scheme => rest,
            Some(_) => return Err(malformed(&format!("its scheme is not {scheme}"), form)),
            None => return Err(malformed("it has no scheme", form)),
        };
        let (host, port) = rest
            .rsplit_once(':')
            .ok_or_else(|| malformed("it has no port", "write SCHEME://HOST:PORT"))?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let known_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host = match bracketed {
            Some(v6) => {
                let (ip, scope) = v6.split_once('%').unwrap_or((v6, "0"));
                if ip.parse::<std::net::Ipv6Addr>().is_err() || !scope.chars().all(known_char) {
                    return Err(malformed(
                        "the text in brackets is not an IPv6 address",
                        "write SCHEME://[::1]:9000",
                    ));
                }
                v6
            }
            None if host.is_empty() => {
                let remedy = "name a host; to listen on all interfaces, 0.0.0.0 or [::]";
                return Err(malformed("it has no host", remedy));
            }
            None if host.contains(':') => {
                let remedy = "put an IPv6 address in brackets: SCHEME://[::1]:9000";
                return Err(malformed("its host contains a colon", remedy));
            }
            None if !host.chars().all(known_char) => {
                let remedy = "use a host name or an IP address, and nothing after the port";
                return Err(malformed(
                    "its host has characters that no name has",
                    remedy,
                ));
            }
            None => host,
        };
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or_else(|| {
            malformed(
                "its port is not a number from 0 to 65535",
                "end it with a port and nothing else",
            )
        })?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// The name or IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 stands for any free port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the host is a name, and not an IP address.
    pub fn is_host_name(&self) -> bool {
        !self.host.contains('%') && self.host.parse::<IpAddr>().is_err()
    }

    /// All socket addresses of the host, at least one. Unless the host is an IP address, this asks
    /// the system's resolver, which may ask the network.
    ///
    /// # Errors
    /// If the name is unknown or the resolver fails.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, IoError> {
        let attempt = || format!("resolve {:?}", self.host);
        let remedy = "check the spelling, or use an IP address";
        let found: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| IoError::from_os(Fault::Caller, attempt(), error, remedy))?
            .collect();
        if found.is_empty() {
            let problem = "the name has no address";
            return Err(IoError::new(Fault::Caller, attempt(), problem, remedy));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_addresses_are_parsed() {
        for (text, host, port) in [
            ("udp://127.0.0.1:0", "127.0.0.1", 0),
            (
                "udp://node-7.rack_2.example:65535",
                "node-7.rack_2.example",
                65535,
            ),
            ("udp://[::]:9000", "::", 9000),
            ("udp://[fe80::1%eth0]:9000", "fe80::1%eth0", 9000),
        ] {
            let address = HostPort::parse("udp", text).expect(text);
            assert_eq!((address.host(), address.port()), (host, port));
        }
    }

    #[test]
    fn the_error_of_a_malformed_address_names_the_wrong_part() {
        for (text, problem) in [
            ("", "no scheme"),
            ("127.0.0.1:9000", "no scheme"),
            ("shm://name", "scheme is not udp"),
            ("UDP://a:1", "scheme is not udp"),
            ("udp://", "no port"),
            ("udp://host", "no port"),
            ("udp://:9000", "no host"),
            ("udp://host:", "port is not a number"),
            ("udp://host:+1", "port is not a number"),
            ("udp://host:65536", "port is not a number"),
            ("udp://host:9000/path", "port is not a number"),
            ("udp://a b:1", "characters that no name has"),
            ("udp://ho\0st:1", "characters that no name has"),
            ("udp://::1:9000", "contains a colon"),
            ("udp://[::1:9000", "contains a colon"),
            ("udp://[]:9000", "not an IPv6 address"),
            ("udp://[host]:9000", "not an IPv6 address"),
            ("udp://[::1%a b]:9000", "not an IPv6 address"),
        ] {
            let error = HostPort::parse("udp", text).expect_err(text);
            assert_eq!(error.fault, Fault::Caller);
            assert!(error.problem.contains(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn addresses_resolve_with_their_port() {
        let resolve = |text| HostPort::parse("udp", text).expect(text).resolve();
        let v6 = resolve("udp://[::1]:7").expect("an IP address");
        assert_eq!(v6, ["[::1]:7".parse().expect("an address")]);
        let error = resolve("udp://no-such-host.invalid:7").expect_err("a reserved name");
        assert!(
            error.to_string().contains("no-such-host.invalid"),
            "{error}"
        );
    }
}
