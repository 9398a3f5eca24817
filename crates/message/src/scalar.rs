//! Fixed-width values in memory.

/// A fixed-width value, little-endian in memory.
pub trait Scalar: Copy + Default + 'static {
    /// Width in bytes.
    const WIDTH: usize;
    /// The value of exactly [`Scalar::WIDTH`] bytes.
    fn from_le(bytes: &[u8]) -> Self;
    /// Writes the value to exactly [`Scalar::WIDTH`] bytes.
    fn to_le(self, bytes: &mut [u8]);
}

macro_rules! scalar {
    ($($type:ty)*) => {$(
        impl Scalar for $type {
            const WIDTH: usize = size_of::<$type>();
            #[inline]
            fn from_le(bytes: &[u8]) -> Self {
                match bytes.first_chunk() {
                    Some(bytes) => <$type>::from_le_bytes(*bytes),
                    None => <$type>::default(),
                }
            }
            #[inline]
            fn to_le(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

scalar!(u8 i32 u32 i64 u64 f32 f64);

impl Scalar for bool {
    const WIDTH: usize = 1;
    #[inline]
    fn from_le(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|byte| *byte != 0)
    }
    #[inline]
    fn to_le(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&[u8::from(self)]);
    }
}
