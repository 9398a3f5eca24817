//! The marking switch of `bpf/mark.bpf.c`, in the kernel while the value here lives.

use std::fs::File;

use aya::maps::{Array, MapData};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode};
use aya::{Ebpf, EbpfError};

use starling_netns::inside;

/// The place on an interface at which the program sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the output: the kernel gives packets to the interface, before segmentation.
    Leaving,
    /// At the input. The program sees single datagrams: with such a program on its other end, a veth
    /// interface segments before it sends.
    Arriving,
}

/// A program on one interface.
pub(crate) struct Marker {
    /// Unloads the program when it is dropped, and when the process ends in any way.
    ebpf: Ebpf,
}

// Words of the map, as in the source.
const EVERY: u32 = 0;
const SEEN: u32 = 1;
const MARKED: u32 = 2;

impl Marker {
    /// A program on `interface` of `namespace` that marks nothing yet. `None` if the kernel does
    /// not support it; prints that the test is skipped.
    pub(crate) fn new(test: &str, namespace: &File, interface: &str, place: Place) -> Option<Self> {
        let made = inside(namespace, || Self::try_new(interface, place));
        if let Err(problem) = &made {
            println!("skipped: {test} needs BPF programs on interfaces, Linux 6.6 ({problem})");
        }
        made.ok()
    }

    /// # Panics
    /// If the program itself is at fault.
    fn try_new(interface: &str, place: Place) -> Result<Self, String> {
        let object = aya::include_bytes_aligned!("../bpf/mark.bpf.o");
        let mut ebpf = Ebpf::load(object).map_err(|error| match error {
            EbpfError::ParseError(error) => panic!("the object: {}", chain(&error)),
            error => chain(&error),
        })?;
        let attached = match place {
            Place::Leaving => {
                let program = ebpf.program_mut("mark_tc").expect("in the object");
                let program: &mut SchedClassifier = program.try_into().expect("its type");
                loaded(program.load())?;
                program.attach(interface, TcAttachType::Egress).map(drop)
            }
            Place::Arriving => {
                let program = ebpf.program_mut("mark_xdp").expect("in the object");
                let program: &mut Xdp = program.try_into().expect("its type");
                loaded(program.load())?;
                program.attach(interface, XdpMode::Driver).map(drop)
            }
        };
        attached.map_err(|error| chain(&error))?;
        Ok(Self { ebpf })
    }

    /// Marks one packet in `every` from now on, or none if it is zero. Counts restart at zero.
    pub(crate) fn mark_one_in(&mut self, every: u64) {
        let mut words = self
            .ebpf
            .map_mut("words")
            .map(Array::<&mut MapData, u64>::try_from);
        let words = words
            .as_mut()
            .expect("in the object")
            .as_mut()
            .expect("its type");
        for (word, value) in [(SEEN, 0), (MARKED, 0), (EVERY, every)] {
            words.set(word, value, 0).expect("within its length");
        }
    }

    /// Packets that the program could have marked, since the last [`Self::mark_one_in`].
    pub(crate) fn seen(&self) -> u64 {
        self.word(SEEN)
    }

    /// Packets that the program has marked.
    pub(crate) fn marked(&self) -> u64 {
        self.word(MARKED)
    }

    fn word(&self, word: u32) -> u64 {
        let words = self.ebpf.map("words").expect("in the object");
        let words = Array::<&MapData, u64>::try_from(words).expect("its type");
        words.get(&word, 0).expect("within its length")
    }
}

/// The error of a kernel that cannot load programs.
///
/// # Panics
/// If the verifier refuses the program.
fn loaded(result: Result<(), ProgramError>) -> Result<(), String> {
    match result {
        Err(ProgramError::LoadError {
            io_error,
            verifier_log,
        }) if io_error.raw_os_error() != Some(libc::EPERM) => {
            panic!("the verifier refuses the program: {io_error}\n{verifier_log}")
        }
        result => result.map_err(|error| chain(&error)),
    }
}

/// The text of an error and of its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
