//! Whose the XDP program on an interface is.

use std::os::fd::AsFd;

use super::{LoadedProgram, NAME, Tag};
use crate::bpf::{self, Loaded};

/// The XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// The program of other devices of this version. One more device can share it.
    Starling,
    /// The program of another version of Starling. No device can share it.
    OtherVersion {
        /// Its number, as `bpftool` knows it.
        id: u32,
    },
    /// A program that is not Starling's. No device can share it.
    Other {
        /// Its number.
        id: u32,
    },
    /// This process may not see whose it is (CAP_SYS_ADMIN or CAP_NET_ADMIN is missing).
    Unknown {
        /// Its number.
        id: u32,
    },
}

/// Whose the program with this number is. `own` gives the tag of this version's program, if that
/// can be loaded; it is called only for a program of the same name.
pub(super) fn whose(id: u32, there: &Loaded, own: impl FnOnce() -> Option<Tag>) -> Occupant {
    if there.name != NAME {
        return Occupant::Other { id };
    }
    match own() {
        Some(own) if own == there.tag => Occupant::Starling,
        Some(_) => Occupant::OtherVersion { id },
        None => Occupant::Unknown { id },
    }
}

/// The same, without a device.
pub(crate) fn occupant(id: u32) -> Occupant {
    let there = bpf::program(id).and_then(|program| bpf::program_info(program.as_fd()));
    let own = || {
        LoadedProgram::load("load the program")
            .ok()
            .map(|own| own.tag)
    };
    there.map_or(Occupant::Unknown { id }, |there| whose(id, &there, own))
}
