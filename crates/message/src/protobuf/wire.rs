//! Tags, varints and the mapping between scalars in memory and on the wire.

use super::error::DecodeErrorKind;
use crate::layout::Kind;

/// How a value is delimited on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint = 0,
    Fixed64 = 1,
    Delimited = 2,
    StartGroup = 3,
    EndGroup = 4,
    Fixed32 = 5,
}

impl WireType {
    /// The wire type of one value of this kind.
    pub(super) fn of(kind: Kind) -> WireType {
        match kind {
            Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => WireType::Fixed64,
            Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => WireType::Fixed32,
            Kind::String | Kind::Bytes | Kind::Message => WireType::Delimited,
            Kind::Bool
            | Kind::Int32
            | Kind::Uint32
            | Kind::Sint32
            | Kind::Int64
            | Kind::Uint64
            | Kind::Sint64
            | Kind::Enum => WireType::Varint,
        }
    }

    fn from_number(number: u32) -> Option<WireType> {
        Some(match number {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Delimited,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            _ => return None,
        })
    }
}

pub(super) fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn tag(number: u32, wire: WireType) -> u64 {
    u64::from(number) << 3 | wire as u64
}

/// A varint scalar's value on the wire, from its bits in memory.
pub(super) fn to_varint(kind: Kind, bits: u64) -> u64 {
    match kind {
        Kind::Int32 | Kind::Enum => i64::from(bits as u32 as i32) as u64,
        Kind::Sint32 => {
            let value = bits as u32 as i32;
            u64::from(((value << 1) ^ (value >> 31)) as u32)
        }
        Kind::Sint64 => {
            let value = bits as i64;
            ((value << 1) ^ (value >> 63)) as u64
        }
        _ => bits,
    }
}

/// A varint scalar's bits in memory, from its value on the wire.
pub(super) fn from_varint(kind: Kind, wire: u64) -> u64 {
    match kind {
        Kind::Bool => u64::from(wire != 0),
        Kind::Int32 | Kind::Enum | Kind::Uint32 => u64::from(wire as u32),
        Kind::Sint32 => {
            let wire = wire as u32;
            u64::from((wire >> 1) ^ (wire & 1).wrapping_neg())
        }
        Kind::Sint64 => (wire >> 1) ^ (wire & 1).wrapping_neg(),
        _ => wire,
    }
}

/// The rest of an encoded message.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor { left: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeErrorKind> {
        let (taken, left) = self
            .left
            .split_at_checked(count)
            .ok_or(DecodeErrorKind::Truncated)?;
        self.left = left;
        Ok(taken)
    }

    pub(super) fn varint(&mut self) -> Result<u64, DecodeErrorKind> {
        let mut value = 0;
        for (index, byte) in self.left.iter().take(10).enumerate() {
            // The tenth byte holds only the 64th bit.
            if index == 9 && *byte > 1 {
                return Err(DecodeErrorKind::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.left = &self.left[index + 1..];
                return Ok(value);
            }
        }
        Err(DecodeErrorKind::Truncated)
    }

    /// A field's number and wire type.
    pub(super) fn tag(&mut self) -> Result<(u32, WireType), DecodeErrorKind> {
        let tag = u32::try_from(self.varint()?).map_err(|_| DecodeErrorKind::Tag)?;
        let wire = WireType::from_number(tag & 7).ok_or(DecodeErrorKind::Tag)?;
        match tag >> 3 {
            0 => Err(DecodeErrorKind::Tag),
            number => Ok((number, wire)),
        }
    }

    pub(super) fn delimited(&mut self) -> Result<&'a [u8], DecodeErrorKind> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| DecodeErrorKind::Truncated)?)
    }

    /// A scalar's bits.
    pub(super) fn scalar(&mut self, kind: Kind) -> Result<u64, DecodeErrorKind> {
        Ok(match WireType::of(kind) {
            WireType::Varint => from_varint(kind, self.varint()?),
            WireType::Fixed32 => self
                .take(4)?
                .iter()
                .rev()
                .fold(0, |bits, byte| bits << 8 | u64::from(*byte)),
            _ => self
                .take(8)?
                .iter()
                .rev()
                .fold(0, |bits, byte| bits << 8 | u64::from(*byte)),
        })
    }

    /// Skips the value of field `number`, whose tag was just read.
    pub(super) fn skip(
        &mut self,
        number: u32,
        wire: WireType,
        depth_left: u32,
    ) -> Result<(), DecodeErrorKind> {
        match wire {
            WireType::Varint => self.varint().map(drop),
            WireType::Fixed64 => self.take(8).map(drop),
            WireType::Fixed32 => self.take(4).map(drop),
            WireType::Delimited => self.delimited().map(drop),
            WireType::EndGroup => Err(DecodeErrorKind::Group),
            WireType::StartGroup => {
                let depth_left = depth_left.checked_sub(1).ok_or(DecodeErrorKind::TooDeep)?;
                loop {
                    match self.tag()? {
                        (end, WireType::EndGroup) if end == number => return Ok(()),
                        (inner, wire) => self.skip(inner, wire, depth_left)?,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_round_trip() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                let mut cursor = Cursor::new(&out);
                assert_eq!(cursor.varint(), Ok(value));
                assert!(cursor.is_empty());
            }
        }
    }

    #[test]
    fn a_varint_has_64_bits() {
        let mut ones = [0xff; 10];
        ones[9] = 1;
        assert_eq!(Cursor::new(&ones).varint(), Ok(u64::MAX));
        ones[9] = 2;
        assert_eq!(Cursor::new(&ones).varint(), Err(DecodeErrorKind::Varint));
        assert_eq!(
            Cursor::new(&[0x80; 11]).varint(),
            Err(DecodeErrorKind::Varint)
        );
        assert_eq!(
            Cursor::new(&[0x80; 3]).varint(),
            Err(DecodeErrorKind::Truncated)
        );
    }

    #[test]
    fn zigzag_and_sign_extension() {
        assert_eq!(
            to_varint(Kind::Sint32, i32::MIN as u32 as u64),
            u64::from(u32::MAX)
        );
        assert_eq!(to_varint(Kind::Sint64, -1i64 as u64), 1);
        assert_eq!(to_varint(Kind::Int32, -1i32 as u32 as u64), u64::MAX);
        for value in [0, 1, -1, i32::MIN, i32::MAX] {
            for kind in [Kind::Int32, Kind::Sint32, Kind::Enum] {
                let bits = u64::from(value as u32);
                assert_eq!(from_varint(kind, to_varint(kind, bits)), bits);
            }
        }
        assert_eq!(from_varint(Kind::Bool, 1 << 40), 1);
        assert_eq!(from_varint(Kind::Uint32, 1 << 32 | 5), 5);
    }
}
