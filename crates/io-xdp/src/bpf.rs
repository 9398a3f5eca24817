//! The calls of bpf(2) that aya does not have: for links and programs that another process made.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_UPDATE_ELEM: u32 = 2;
const PROG_GET_FD_BY_ID: u32 = 13;
const MAP_GET_FD_BY_ID: u32 = 14;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_GET_FD_BY_ID: u32 = 30;
const LINK_GET_NEXT_ID: u32 = 31;

/// `BPF_XDP`, the place where a link attaches a program.
const ATTACH_XDP: u32 = 37;
/// `BPF_LINK_TYPE_XDP`
const LINK_TYPE_XDP: u32 = 6;

/// Bytes of a program's or map's name, the zero at its end included.
const NAME_BYTES: usize = 16;

/// The kernel's description of a program: the start of `struct bpf_prog_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    translated_len: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    map_count: u32,
    maps: u64,
    name: [u8; NAME_BYTES],
}

/// The same of a map: the start of `struct bpf_map_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
}

/// And of a link: the start of `struct bpf_link_info`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
}

/// A loaded program.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) name: String,
    /// A hash of its instructions.
    pub(crate) tag: [u8; 8],
    /// Numbers of the maps that it uses.
    pub(crate) maps: Vec<u32>,
}

/// Calls bpf(2) with an attribute of `bytes`, in 32-bit words.
fn call<const WORDS: usize>(command: u32, attribute: &mut [u32; WORDS]) -> io::Result<i32> {
    // Numbers of 64 bits in it are aligned so.
    #[repr(C, align(8))]
    struct Attribute<const WORDS: usize>([u32; WORDS]);
    const {
        assert!(
            WORDS.is_multiple_of(2),
            "the kernel refuses padding that is not zero"
        )
    };
    let mut aligned = Attribute(*attribute);
    // SAFETY: the kernel reads and writes the attribute within the size that it is told; each
    // caller passes pointers that are valid for the lengths beside them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw mut aligned,
            size_of::<Attribute<WORDS>>(),
        )
    };
    *attribute = aligned.0;
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

/// The same, for a command that returns a descriptor.
fn call_for_fd<const WORDS: usize>(
    command: u32,
    attribute: &mut [u32; WORDS],
) -> io::Result<OwnedFd> {
    let fd = call(command, attribute)?;
    // SAFETY: the kernel has just made it, and no one else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Both halves of a pointer, in the order in which the attribute has them.
fn halves(pointer: u64) -> [u32; 2] {
    let bytes = pointer.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes")))
}

fn info<I: Copy>(fd: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let [low, high] = halves(std::ptr::from_mut(info) as u64);
    let mut attribute = [fd.as_raw_fd() as u32, size_of::<I>() as u32, low, high];
    call(OBJ_GET_INFO_BY_FD, &mut attribute).map(drop)
}

fn text(name: &[u8; NAME_BYTES]) -> String {
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The name, tag and maps of a program.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<Loaded> {
    let mut maps = [0_u32; 16];
    let mut found = ProgramInfo {
        map_count: maps.len() as u32,
        maps: maps.as_mut_ptr() as u64,
        ..ProgramInfo::default()
    };
    info(program, &mut found)?;
    let count = (found.map_count as usize).min(maps.len());
    Ok(Loaded {
        name: text(&found.name),
        tag: found.tag,
        maps: maps[..count].to_vec(),
    })
}

/// The program of this number.
pub(crate) fn program(id: u32) -> io::Result<OwnedFd> {
    call_for_fd(PROG_GET_FD_BY_ID, &mut [id, 0, 0, 0])
}

/// The map of this number, with its name.
pub(crate) fn map(id: u32) -> io::Result<(String, OwnedFd)> {
    use std::os::fd::AsFd;
    let fd = call_for_fd(MAP_GET_FD_BY_ID, &mut [id, 0, 0, 0])?;
    let mut found = MapInfo::default();
    info(fd.as_fd(), &mut found)?;
    Ok((text(&found.name), fd))
}

/// Puts a value into a map.
pub(crate) fn update<V: Copy>(map: BorrowedFd<'_>, key: u32, value: &V) -> io::Result<()> {
    let [key_low, key_high] = halves(std::ptr::from_ref(&key) as u64);
    let [value_low, value_high] = halves(std::ptr::from_ref(value) as u64);
    let map = map.as_raw_fd() as u32;
    let mut attribute = [map, 0, key_low, key_high, value_low, value_high, 0, 0];
    call(MAP_UPDATE_ELEM, &mut attribute).map(drop)
}

/// Attaches a program to an interface for as long as the link is open, here or elsewhere.
pub(crate) fn attach(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    call_for_fd(LINK_CREATE, &mut [program, interface, ATTACH_XDP, flags])
}

/// The link that holds the program of this number on its interface. None: no link holds it.
pub(crate) fn link_of(program: u32) -> io::Result<Option<OwnedFd>> {
    use std::os::fd::AsFd;
    let mut id = 0;
    loop {
        let mut attribute = [id, 0, 0, 0];
        match call(LINK_GET_NEXT_ID, &mut attribute) {
            Ok(_) => id = attribute[1],
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
        let link = match call_for_fd(LINK_GET_FD_BY_ID, &mut [id, 0, 0, 0]) {
            Ok(link) => link,
            // It has gone in the meantime, or a process is just making it.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::WouldBlock
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut found = LinkInfo::default();
        // The kernel may not describe links of other kinds, which do not matter.
        let is_it = info(link.as_fd(), &mut found).is_ok()
            && found.kind == LINK_TYPE_XDP
            && found.program == program;
        if is_it {
            return Ok(Some(link));
        }
    }
}
