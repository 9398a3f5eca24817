//! `starling doctor`: what each device can do on this host, what it lacks, and what to do about it.
//!
//! | module | holds |
//! |---|---|
//! | `host` | facts about the host, read from the kernel |
//! | `checks` | what these facts mean for each device |
//! | `device` | the devices |
//! | `trial` | calls over each device, to see that they go through |
//! | `report` | findings, as text and as JSON |

mod checks;
mod device;
mod host;
mod report;
mod trial;

use clap::Args;

use crate::error::CliError;
use crate::output;

use device::Device;
use host::Host;
use report::{Findings, Level};
use trial::Trial;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// Devices that have to work. Without any, all are checked, and all but xdp have to work.
    devices: Vec<Device>,
    /// Only looks, and makes no calls.
    #[arg(long)]
    look: bool,
    /// Prints one JSON object per line, with the keys about, level, what, advice.
    #[arg(long)]
    json: bool,
    /// Serves an echo at ADDRESS until standard input ends: the other end of the doctor's calls.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    echo_server: Option<String>,
}

const HELP: &str = "\
Reads kernel version, limits, capabilities and interfaces, then makes calls over each device for a
tenth of a second, to a second process that it starts. It changes no interface of the host: it asks
the kernel whether an interface has an XDP program, and what its driver can do. Calls over AF_XDP go
between two network namespaces of its own; making those needs root and iproute2, which a device does
not.

It also says how much memory clients can make a server hold, at its defaults.

Each finding is ok, a note (the device works, but could do more) or bad (it does not work). Notes and
bad findings say what to do.

Exit status 0: every device that was named works or, without names, all but xdp do. 1: one does not.

Examples:
  starling doctor
  starling doctor xdp --json";

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    if let Some(address) = &arguments.echo_server {
        return trial::serve(address);
    }
    let host = Host::read();
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
    print(&checks::host(&host))?;
    print(&checks::server(
        &host,
        &starling::Server::builder().budgets(),
    ))?;
    let mut lacking = Vec::new();
    for device in Device::ALL {
        let is_named = arguments.devices.contains(&device);
        if !arguments.devices.is_empty() && !is_named {
            continue;
        }
        let mut findings = match device {
            Device::Udp => checks::udp(&host, &interfaces),
            Device::Tcp => checks::tcp(),
            Device::Shm => checks::shm(&host),
            Device::Xdp => checks::xdp(&host, &interfaces),
        };
        if !arguments.look && findings.level() != Level::Bad {
            match trial::of(device)? {
                Trial::Made(finding) => findings.add_trial(finding),
                Trial::NotMade(finding) => findings.add(finding),
            }
        }
        if findings.level() == Level::Bad && (is_named || device != Device::Xdp) {
            lacking.push(device.scheme());
        }
        print(&findings)?;
    }
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(CliError::DevicesLack(lacking.join(", "))),
    }
}
