//! The mapping of a connection: its parts, its ends, and files that are refused.

use super::*;

const BULK: usize = 64 << 10;

#[test]
fn a_write_over_the_end_continues_at_the_beginning() {
    let (region, file) = Region::create(BULK).unwrap();
    let ours = Ring::produced_by(&Arc::new(region), Side::Connector);
    let theirs = Arc::new(Region::map_foreign(file.as_fd(), BULK).unwrap());
    let theirs = Ring::consumed_by(&theirs, Side::Acceptor);
    let mut read = [0; 12];
    let mut end = [0; 7];
    let at = 3 * ours.line_bytes() - 5;
    ours.write_lines(at, b"over the end");
    theirs.read_lines(at, &mut read);
    theirs.read_lines(5 * ours.line_bytes(), &mut end);
    assert_eq!((&read, &end), (b"over the end", b"the end"));
    let at = 3 * BULK as u64 - 5;
    ours.write_bulk(at, b"over the END");
    theirs.read_bulk(at, &mut read);
    theirs.read_bulk(5 * BULK as u64, &mut end);
    assert_eq!((&read, &end), (b"over the END", b"the END"));
}

#[test]
fn rings_and_words_do_not_overlap() {
    let region = Arc::new(Region::create(BULK).unwrap().0);
    let out = Ring::produced_by(&region, Side::Acceptor);
    out.write_lines(0, &vec![0xff; region.line_bytes()]);
    let back = Ring::consumed_by(&region, Side::Acceptor);
    back.write_bulk(0, &[0xee; BULK]);
    let mut read = [1; 64];
    back.read_lines(0, &mut read);
    assert_eq!(read, [0; 64]);
    out.read_bulk(0, &mut read);
    assert_eq!(read, [0; 64]);
    let heads = Heads { line: 64, bulk: 5 };
    out.store_heads(heads);
    assert_eq!(
        (out.load_heads(), back.load_heads()),
        (heads, Heads::default())
    );
    let (a, b) = (
        MappedSleepWords::new(&region, Side::Connector),
        MappedSleepWords::new(&region, Side::Acceptor),
    );
    a.store_own(5);
    assert_eq!((a.load_peer(), b.load_peer()), (0, 5));
}

#[test]
fn files_that_could_fault_are_refused() {
    let made = |flags, bytes, seals| {
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        Region::map_foreign(file.as_fd(), BULK).map(|_| ())
    };
    let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let right = file_bytes(BULK);
    assert_eq!(made(sealable, right, SEALS), Ok(()));
    assert_eq!(made(sealable, right, SealFlags::empty()), Err(Errno::PERM));
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let result = made(sealable, right, SEALS.difference(missing));
        assert_eq!(result, Err(Errno::PERM));
    }
    assert_eq!(made(sealable, right - 1, SEALS), Err(Errno::INVAL));
    assert_eq!(made(sealable, 0, SEALS), Err(Errno::INVAL));
    assert_eq!(made(sealable, right + 4096, SEALS), Err(Errno::INVAL));
    // Read-only for everybody: it cannot be mapped for writing.
    let read_only = SEALS.union(SealFlags::WRITE);
    assert_eq!(made(sealable, right, read_only), Err(Errno::PERM));
    let no_memory = std::fs::File::open("/dev/zero").unwrap();
    assert!(Region::map_foreign(no_memory.as_fd(), BULK).is_err());
}

/// Every offset of the target behind the source that the copy treats apart, and its neighbours.
#[test]
fn large_copies_are_whole_wherever_source_and_target_begin_in_their_pages() {
    const PAGE: usize = 4096;
    let from: Vec<u8> = (0..8 * PAGE).map(|at| (at * 7 + at / 251) as u8).collect();
    let mut to = vec![0; 8 * PAGE];
    let base = to.as_ptr() as usize;
    for begin in [0, 1, 100] {
        for behind in [0, 1, 2, 4, 8, 15, 16, 17, PAGE / 2, PAGE - 1] {
            for bytes in [1, PAGE, PAGE + 1, 3 * PAGE, 4 * PAGE + 77] {
                let source = &from[begin..begin + bytes];
                let at = (source.as_ptr() as usize + behind).wrapping_sub(base) % PAGE;
                to.fill(0xee);
                let target = &mut to[at..at + bytes];
                // SAFETY: both slices have so many bytes.
                unsafe { copy_out_large(source.as_ptr(), target.as_mut_ptr(), bytes) };
                assert!(target == source, "{begin}, {behind}, {bytes}");
                let others = [&to[..at], &to[at + bytes..]].concat();
                assert!(others.iter().all(|byte| *byte == 0xee));
            }
        }
    }
}
