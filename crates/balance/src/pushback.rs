//! What a server says about another attempt (gRPC A6, "Pushback").

/// The key of the metadata in which a server says when a failed call may be made again: milliseconds, or a
/// negative number for never.
pub const PUSHBACK_KEY: &str = "grpc-retry-pushback-ms";

/// When a server wants a failed call to be made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pushback {
    /// It does not say.
    #[default]
    None,
    /// After exactly so many nanoseconds.
    AfterNs(u64),
    /// Never.
    Never,
}

impl Pushback {
    /// What the metadata of a failed call says. A value that is no number means never, as in gRPC.
    pub fn parse(value: Option<&[u8]>) -> Self {
        let Some(value) = value else {
            return Self::None;
        };
        let is_canonical = |text: &&str| *text == "0" || !text.starts_with(['0', '+']);
        let text = std::str::from_utf8(value).ok().filter(is_canonical);
        match text.and_then(|text| text.parse::<i32>().ok()) {
            Some(ms) => u64::try_from(ms).map_or(Self::Never, |ms| Self::AfterNs(ms * 1_000_000)),
            None => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_read_and_anything_else_means_never() {
        let parse = |text: &str| Pushback::parse(Some(text.as_bytes()));
        assert_eq!(Pushback::parse(None), Pushback::None);
        assert_eq!(parse("0"), Pushback::AfterNs(0));
        assert_eq!(parse("25"), Pushback::AfterNs(25_000_000));
        assert_eq!(
            parse("2147483647"),
            Pushback::AfterNs(2_147_483_647_000_000)
        );
        for text in ["-1", "", "soon", "1.5", " 1", "01", "+1", "2147483648"] {
            assert_eq!(parse(text), Pushback::Never, "{text:?}");
        }
        assert_eq!(Pushback::parse(Some(&[0xff])), Pushback::Never);
    }
}
