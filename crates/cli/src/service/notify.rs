//! What systemd hears of a service: datagrams to the socket that it names in `NOTIFY_SOCKET` (sd_notify).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The environment variable that names the socket: a path, or `@` and an abstract name.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells systemd, if it has started this process and wants to know. It may have ended: then nobody hears.
pub(super) fn tell(state: &str) {
    let Ok(socket) = std::env::var(VARIABLE) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        eprintln!("warning: systemd does not hear {state:?} at {socket:?}: {error}");
    }
}

fn send(socket: &str, state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sent = UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    debug_assert_eq!(sent, state.len(), "a datagram is sent as a whole");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(by: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = by.recv(&mut bytes).expect("it was sent");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn a_state_goes_to_a_path_or_an_abstract_name() {
        let name = format!("starling-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("it is free");
        send(&format!("@{name}"), "READY=1").expect("somebody listens");
        assert_eq!(heard(&manager), "READY=1");

        let path = std::env::temp_dir().join(name);
        let manager = UnixDatagram::bind(&path).expect("it is free");
        let sent = send(path.to_str().expect("text"), "STOPPING=1");
        std::fs::remove_file(&path).expect("it was made");
        sent.expect("somebody listens");
        assert_eq!(heard(&manager), "STOPPING=1");
        send(path.to_str().expect("text"), "READY=1").expect_err("nobody listens");
    }
}
