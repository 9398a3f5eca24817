//! Where in which trace a call is made, as W3C's recommendation Trace Context has it in metadata (level 1, 2020).
//!
//! ```text
//!  traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
//!               version  trace id                    span id      flags: 01 is sampled
//! ```

use std::fmt;

/// The key of a trace's context in metadata.
pub const TRACEPARENT: &str = "traceparent";
/// The key of what tracing systems add to it.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 0.
const LEN: usize = 55;
const SAMPLED: u8 = 1;

/// A span of a trace: what a `traceparent` says. Written by `to_string`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

/// Lower-case hexadecimal digits as a number. `None` if there are others.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

impl TraceParent {
    /// A span with these ids. `None` if one of them is 0, which names nothing.
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        (trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id,
            flags: if is_sampled { SAMPLED } else { 0 },
        })
    }

    /// What a `traceparent` says. `None` if it is malformed.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (head, rest) = text.split_at_checked(LEN)?;
        let version = hex(&head[..2])?;
        // A later version may have more fields, behind a dash.
        let is_whole = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with(b"-"),
        };
        let has_dashes = [2, 35, 52].iter().all(|at| head[*at] == b'-');
        if !is_whole || !has_dashes {
            return None;
        }
        let (trace_id, span_id) = (hex(&head[3..35])?, hex(&head[36..52])? as u64);
        let flags = hex(&head[53..])? as u8;
        Self::new(trace_id, span_id, flags & SAMPLED != 0)
    }

    /// The first span of a new trace, which is sampled. Its ids are these random numbers.
    pub fn root(random: [u64; 3]) -> Self {
        let trace_id = u128::from(random[0]) << 64 | u128::from(random[1]);
        Self {
            trace_id: trace_id.max(1),
            span_id: random[2].max(1),
            flags: SAMPLED,
        }
    }

    /// Another span of the same trace. Its id is this random number.
    pub fn child(self, random: u64) -> Self {
        Self {
            span_id: random.max(1),
            ..self
        }
    }

    /// The same, and nobody records it from here on.
    pub fn not_sampled(self) -> Self {
        Self { flags: 0, ..self }
    }

    /// The trace.
    pub fn trace_id(self) -> u128 {
        self.trace_id
    }

    /// The span.
    pub fn span_id(self) -> u64 {
        self.span_id
    }

    /// Whether whoever began the trace records it.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id, flags) = (self.trace_id, self.span_id, self.flags);
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_recommendations_example_comes_back_as_it_was() {
        let parent = TraceParent::parse(PARENT.as_bytes()).expect("well formed");
        assert_eq!(parent.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.span_id(), 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled());
        assert_eq!(parent.to_string(), PARENT);
        let child = parent.child(7);
        assert_eq!((child.trace_id(), child.span_id()), (parent.trace_id(), 7));
        assert!(child.is_sampled() && !child.not_sampled().is_sampled());
        // No id is 0, whatever is drawn.
        let root = TraceParent::root([0, 0, 0]);
        assert_eq!((root.trace_id(), root.child(0).span_id()), (1, 1));
    }

    #[test]
    fn what_is_malformed_says_nothing() {
        let with = |at: usize, text: &str| {
            let mut parent = PARENT.to_owned();
            parent.replace_range(at..at + text.len(), text);
            TraceParent::parse(parent.as_bytes())
        };
        for wrong in [
            with(0, "ff"),
            with(0, "0g"),
            with(2, "_"),
            with(3, &"0".repeat(32)),
            with(3, "4B"),
            with(36, &"0".repeat(16)),
            with(53, "0x"),
            TraceParent::parse(b""),
            TraceParent::parse(&PARENT.as_bytes()[..54]),
            TraceParent::parse(format!("{PARENT}-x").as_bytes()),
        ] {
            assert_eq!(wrong, None);
        }
        // A later version, which may have more.
        for more in ["", "-what-comes-later"] {
            let later = format!("cc{}{more}", &PARENT[2..]);
            assert!(TraceParent::parse(later.as_bytes()).is_some(), "{later}");
        }
        assert_eq!(
            TraceParent::parse(format!("cc{}x", &PARENT[2..]).as_bytes()),
            None
        );
        assert_eq!(TraceParent::new(0, 1, true), None);
    }
}
