//! Helpers that the unit tests of several modules share.

use starling_netns::{Pair, inside};

use crate::{XdpConfig, XdpIo};

/// A device at `vb` of a new pair of namespaces. None, having said so, where it cannot be made.
pub(crate) fn device(test: &str) -> Option<(Pair, XdpIo)> {
    let bind = || XdpIo::bind("xdp://vb/10.77.0.2:0", XdpConfig::default());
    let made = Pair::new().and_then(|pair| {
        let device = inside(&pair.b, bind).map_err(|error| error.to_string());
        Ok((pair, device?))
    });
    if let Err(problem) = &made {
        println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
    }
    made.ok()
}
