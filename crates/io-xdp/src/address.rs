//! Addresses of the form `xdp://ifname/host:port?queue=N&mode=MODE&frames=N`.

use std::fmt;
use std::net::SocketAddr;

use starling_io::{Fault, HostPort, IoError};

use crate::socket::Mode;

/// The longest name of an interface, in bytes.
const MAX_NAME: usize = 15;

/// A parsed `xdp://ifname/host:port`, perhaps with options, joined by `&`:
///
/// | option | meaning |
/// |---|---|
/// | `queue=N` | the queue of the interface, counted from 0 |
/// | `mode=MODE` | `zero-copy`, `driver` or `generic` |
/// | `frames=N` | how many Ethernet frames can wait to be received, a power of two from 64 to 32768. Most of a device's locked memory is for them |
///
/// ```
/// use starling_io_xdp::{Mode, XdpAddress};
///
/// let address = XdpAddress::parse("xdp://eth0/10.0.0.7:9000?queue=2&mode=driver")?;
/// assert_eq!((address.interface(), address.queue()), ("eth0", Some(2)));
/// assert_eq!(address.mode(), Some(Mode::Driver));
/// # Ok::<(), starling_io::IoError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAddress {
    interface: String,
    host: HostPort,
    queue: Option<u32>,
    mode: Option<Mode>,
    frames: Option<u32>,
}

impl XdpAddress {
    /// Parses an address. The interface is always one of this host. Host and port are this end's
    /// when a device is bound, and the other end's when a peer is opened.
    ///
    /// # Errors
    /// With [`Fault::Caller`], saying which part is wrong and what it should look like.
    pub fn parse(text: &str) -> Result<Self, IoError> {
        let malformed = |problem: &str, remedy: &str| {
            IoError::new(Fault::Caller, format!("parse {text:?}"), problem, remedy)
        };
        let form = "write xdp://IFNAME/HOST:PORT, such as xdp://eth0/10.0.0.7:9000";
        let rest = match text.split_once("://") {
            Some(("xdp", rest)) => rest,
            Some(_) => return Err(malformed("its scheme is not xdp", form)),
            None => return Err(malformed("it has no scheme", form)),
        };
        let (interface, rest) = rest
            .split_once('/')
            .ok_or_else(|| malformed("it has no interface", form))?;
        let is_name_byte = |b: u8| b.is_ascii_graphic() && !matches!(b, b':' | b'?' | b'%');
        let is_name = (1..=MAX_NAME).contains(&interface.len())
            && interface.bytes().all(is_name_byte)
            && !matches!(interface, "." | "..");
        if !is_name {
            let problem = "what is before the slash is no name of an interface";
            return Err(malformed(problem, form));
        }
        let (host, options) = rest.split_once('?').unwrap_or((rest, ""));
        let host = HostPort::parse("udp", &format!("udp://{host}")).map_err(|error| {
            let remedy = error.remedy.replace("udp://", "xdp://IFNAME/");
            malformed(&error.problem, &remedy)
        })?;
        let mut address = Self {
            interface: interface.to_owned(),
            host,
            queue: None,
            mode: None,
            frames: None,
        };
        for option in options.split('&').filter(|_| rest.contains('?')) {
            address
                .set_option(option)
                .map_err(|(problem, remedy)| malformed(&problem, remedy))?;
        }
        Ok(address)
    }

    /// Takes in an option. The error is a problem and a remedy.
    fn set_option(&mut self, option: &str) -> Result<(), (String, &'static str)> {
        let malformed = |problem: &str, remedy| (problem.to_owned(), remedy);
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| digits)
        };
        let parts = option.split_once('=');
        let is_twice = match parts {
            Some(("queue", _)) => self.queue.is_some(),
            Some(("mode", _)) => self.mode.is_some(),
            Some(("frames", _)) => self.frames.is_some(),
            _ => false,
        };
        if is_twice {
            return Err(malformed(
                &format!("its option {option:?} is the second of its kind"),
                "say each option once",
            ));
        }
        match parts {
            Some(("queue", queue)) => {
                let queue = number(queue);
                let remedy = "number queues from 0: ?queue=2";
                let queue = queue.ok_or_else(|| malformed("its queue is not a number", remedy))?;
                self.queue = Some(queue);
            }
            Some(("mode", mode)) => {
                let known = [Mode::ZeroCopy, Mode::Driver, Mode::Generic];
                let mode = known.into_iter().find(|known| known.to_string() == mode);
                let remedy = "write mode=zero-copy, mode=driver or mode=generic";
                self.mode = Some(mode.ok_or_else(|| malformed("there is no such mode", remedy))?);
            }
            Some(("frames", frames)) => {
                let frames = number(frames).filter(|frames| is_ring(*frames));
                let problem = "its frames are not a power of two from 64 to 32768";
                let remedy = "write frames=1024, or leave it out for 4096";
                self.frames = Some(frames.ok_or_else(|| malformed(problem, remedy))?);
            }
            _ => {
                return Err(malformed(
                    &format!("its option {option:?} is unknown"),
                    "write ?queue=N, ?mode=MODE or ?frames=N, joined by &",
                ));
            }
        }
        Ok(())
    }

    /// The name of the interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Host and port.
    pub fn host(&self) -> &HostPort {
        &self.host
    }

    /// The queue of the interface, counted from 0, if the address has one. The default is the
    /// first.
    pub fn queue(&self) -> Option<u32> {
        self.queue
    }

    /// The mode, if the address has one.
    pub fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// Ethernet frames that can wait to be received, if the address says how many. Overrides
    /// [`XdpConfig::rx_frames`](crate::XdpConfig::rx_frames).
    pub fn frames(&self) -> Option<u32> {
        self.frames
    }

    /// The same address on another queue.
    pub fn on_queue(&self, queue: u32) -> Self {
        Self {
            queue: Some(queue),
            ..self.clone()
        }
    }

    /// The same address without queue, mode and frames, which matter only at this end.
    pub fn without_options(&self) -> Self {
        Self {
            queue: None,
            mode: None,
            frames: None,
            ..self.clone()
        }
    }

    /// The same address with an IP address in place of the host's name.
    ///
    /// # Panics
    /// Never: the text of an IP address is a valid host.
    pub fn at(&self, host: SocketAddr) -> Self {
        Self {
            host: HostPort::parse("udp", &format!("udp://{host}")).expect("an IP address is one"),
            ..self.clone()
        }
    }
}

/// Whether a ring can have so many entries.
pub(crate) fn is_ring(entries: u32) -> bool {
    entries.is_power_of_two() && (64..=1 << 15).contains(&entries)
}

impl fmt::Display for XdpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.host.host(), self.host.port());
        let (open, close) = if host.contains(':') {
            ("[", "]")
        } else {
            ("", "")
        };
        write!(f, "xdp://{}/{open}{host}{close}:{port}", self.interface)?;
        let queue = self.queue.map(|queue| format!("queue={queue}"));
        let mode = self.mode.map(|mode| format!("mode={mode}"));
        let frames = self.frames.map(|frames| format!("frames={frames}"));
        let options: Vec<String> = [queue, mode, frames].into_iter().flatten().collect();
        if options.is_empty() {
            return Ok(());
        }
        write!(f, "?{}", options.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_parsing_and_printing() {
        for text in [
            "xdp://eth0/10.0.0.7:9000",
            "xdp://eth0.100/[fd00::1]:0",
            "xdp://veth-a/[fe80::1%veth-a]:9000",
            "xdp://eth0/node-7:9000?queue=3",
            "xdp://eth0/node-7:9000?mode=zero-copy",
            "xdp://eth0/node-7:9000?queue=63&mode=generic",
            "xdp://eth0/node-7:9000?frames=64",
            "xdp://eth0/node-7:9000?queue=0&mode=driver&frames=32768",
        ] {
            assert_eq!(XdpAddress::parse(text).expect(text).to_string(), text);
        }
        let address = XdpAddress::parse("xdp://a/h:1?frames=128&mode=driver&queue=0");
        let address = address.expect("any order");
        let same = "xdp://a/h:1?queue=0&mode=driver&frames=128";
        assert_eq!(address.to_string(), same);
        assert_eq!(address.on_queue(2).queue(), Some(2));
        assert_eq!(address.without_options().to_string(), "xdp://a/h:1");
        let ip = SocketAddr::from(([10, 0, 0, 1], 1));
        let there = address.without_options().at(ip);
        assert_eq!(there.to_string(), "xdp://a/10.0.0.1:1");
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (text, problem) in [
            ("eth0/h:1", "it has no scheme"),
            ("udp://eth0/h:1", "its scheme is not xdp"),
            ("xdp://10.0.0.7:9000", "it has no interface"),
            ("xdp:///h:1", "no name of an interface"),
            ("xdp://a-name-of-16-chr/h:1", "no name of an interface"),
            ("xdp://et h/h:1", "no name of an interface"),
            (
                "xdp://eth0/h",
                "it has no port; write xdp://IFNAME/HOST:PORT",
            ),
            ("xdp://eth0/:1", "it has no host"),
            ("xdp://eth0/h:70000", "its port is not a number"),
            ("xdp://eth0/h:1?", "its option \"\" is unknown"),
            ("xdp://eth0/h:1?queue=x", "its queue is not a number"),
            ("xdp://eth0/h:1?queue=-1", "its queue is not a number"),
            ("xdp://eth0/h:1?mode=fast", "there is no such mode"),
            (
                "xdp://eth0/h:1?frames=",
                "its frames are not a power of two",
            ),
            (
                "xdp://eth0/h:1?frames=+64",
                "its frames are not a power of two",
            ),
            (
                "xdp://eth0/h:1?frames=32",
                "its frames are not a power of two",
            ),
            (
                "xdp://eth0/h:1?frames=1000",
                "its frames are not a power of two",
            ),
            (
                "xdp://eth0/h:1?frames=65536",
                "its frames are not a power of two",
            ),
            ("xdp://eth0/h:1?cpu=1", "its option \"cpu=1\" is unknown"),
            (
                "xdp://eth0/h:1?queue=1&frames=64&queue=1",
                "its option \"queue=1\" is the second of its kind",
            ),
        ] {
            let error = XdpAddress::parse(text).expect_err(text);
            assert_eq!(error.fault, Fault::Caller);
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
