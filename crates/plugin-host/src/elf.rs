//! Whether a library has all that its head says: the loader maps what is missing, and the process ends with SIGBUS when
//! it is read.

/// The head of a 64-bit little-endian file.
const HEAD: &[u8] = b"\x7fELF\x02\x01";
/// A segment that is mapped.
const LOAD: u32 = 1;
/// Bytes of a program header.
const ENTRY: usize = 56;

/// Where the last segment of a library ends. None: it has none, or is none of this kind; the loader refuses it.
pub(crate) fn end_of(bytes: &[u8]) -> Option<u64> {
    if !bytes.starts_with(HEAD) {
        return None;
    }
    let table = usize::try_from(u64_at(bytes, 32)?).ok()?;
    let (size, count) = (u16_at(bytes, 54)?, u16_at(bytes, 56)?);
    if usize::from(size) != ENTRY {
        return None;
    }
    let table_end = table.checked_add(ENTRY * usize::from(count))?;
    let Some(entries) = bytes.get(table..table_end) else {
        return Some(table_end as u64);
    };
    let ends = entries.chunks_exact(ENTRY).filter_map(|entry| {
        let (kind, at, len) = (u32_at(entry, 0)?, u64_at(entry, 8)?, u64_at(entry, 32)?);
        (kind == LOAD).then(|| at.saturating_add(len))
    });
    ends.max()
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_program_is_within_it() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let end = end_of(&own).expect("it has segments") as usize;
        assert!(end > 1000 && end <= own.len(), "{end} of {}", own.len());
        assert_eq!(end_of(&own[..end - 1]), Some(end as u64));
        assert_eq!(end_of(&own[..100]), Some(64 + 56 * u64::from(own[56])));
        assert_eq!(end_of(b"no library"), None);
    }

    #[test]
    fn any_bytes_have_an_end_or_none() {
        bolero::check!()
            .with_type::<(u64, u16, u16, Vec<u8>)>()
            .for_each(|(table, size, count, rest)| {
                let mut bytes = HEAD.to_vec();
                bytes.resize(32, 0);
                bytes.extend((table % 256).to_le_bytes());
                bytes.resize(54, 0);
                let size = if size % 4 == 0 { *size } else { ENTRY as u16 };
                bytes.extend([size, count % 8].map(u16::to_le_bytes).concat());
                bytes.extend(rest);
                let end = end_of(&bytes);
                assert!(end.is_none() || size == ENTRY as u16);
                end_of(rest);
            });
    }
}
