//! `starling doctor`: what each plane would give on this host, what it lacks, and what to do.
//!
//! | module | holds |
//! |---|---|
//! | `host` | what the system says of itself |
//! | `planes` | what that means for each plane |
//! | `trial` | calls over each plane, to see that they go through |
//! | `report` | findings, as text and as JSON |

mod host;
mod planes;
mod report;
mod trial;

use clap::{Args, ValueEnum};

use crate::error::CliError;
use crate::output;

use host::Host;
use report::{Findings, Level};
use trial::Trial;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// Planes that have to work; any that can, unless named.
    planes: Vec<Plane>,
    /// Only looks, and makes no calls.
    #[arg(long)]
    look: bool,
    /// Prints one JSON object per line, with the keys about, level, what, advice.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Looks at the kernel, limits, capabilities and interfaces, then makes calls over each plane for a
tenth of a second, between two processes of its own. No interface of the host is touched: whether
one has an XDP program, and what its driver can do, is asked of the kernel. Calls over AF_XDP go
between network namespaces, for which the doctor, unlike a device, needs root and iproute2.

Each finding is ok, a note (the plane works, but could do more) or bad (it does not work), the last
two with what to do.

Exit status 0: every plane that was named works, or, if none was, udp and shm do. 1: one does not.

Examples:
  starling doctor
  starling doctor xdp --json";

/// A plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Plane {
    /// Kernel UDP.
    Udp,
    /// Shared memory between processes of this host.
    Shm,
    /// AF_XDP: UDP past the kernel's network stack.
    Xdp,
}

impl Plane {
    const ALL: [Self; 3] = [Self::Udp, Self::Shm, Self::Xdp];

    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Xdp => "xdp",
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let host = Host::look();
    let interfaces = starling_io_xdp::interfaces().map_err(|source| CliError::System {
        attempt: "listing the interfaces",
        source,
    })?;
    let print = |findings: &Findings| {
        output::print(&match arguments.json {
            true => findings.json(),
            false => findings.text() + "\n",
        })
    };
    print(&planes::host(&host))?;
    let mut lacking = Vec::new();
    for plane in Plane::ALL {
        let is_named = arguments.planes.contains(&plane);
        if !arguments.planes.is_empty() && !is_named {
            continue;
        }
        let mut findings = match plane {
            Plane::Udp => planes::udp(&host, &interfaces),
            Plane::Shm => planes::shm(&host),
            Plane::Xdp => planes::xdp(&host, &interfaces),
        };
        if !arguments.look && findings.level() != Level::Bad {
            match trial::of(plane.name())? {
                Trial::Made(finding) => findings.add_trial(finding),
                Trial::NotMade(finding) => findings.add(finding),
            }
        }
        if findings.level() == Level::Bad && (is_named || plane != Plane::Xdp) {
            lacking.push(plane.name());
        }
        print(&findings)?;
    }
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(CliError::PlanesLack(lacking.join(", "))),
    }
}
