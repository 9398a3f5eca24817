//! A set of status codes.

use std::fmt;

use starling_call::Code;

/// A set of status codes. OK is never in it: a call that succeeded is never made again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct CodeSet(u32);

impl CodeSet {
    /// No code.
    pub const EMPTY: Self = Self(0);

    /// These codes, without OK.
    pub fn of(codes: impl IntoIterator<Item = Code>) -> Self {
        let mut set = Self::EMPTY;
        codes.into_iter().for_each(|code| set.insert(code));
        set
    }

    /// Adds a code, unless it is OK.
    pub fn insert(&mut self, code: Code) {
        if code != Code::Ok {
            self.0 |= 1 << code as u32;
        }
    }

    /// Whether the code is among them.
    #[inline]
    pub fn contains(self, code: Code) -> bool {
        self.0 & 1 << code as u32 != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for CodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codes = Code::ALL.into_iter().filter(|code| self.contains(*code));
        f.debug_set().entries(codes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it_but_never_ok() {
        let set = CodeSet::of([Code::Unavailable, Code::Ok, Code::Aborted]);
        for code in Code::ALL {
            let is_meant = matches!(code, Code::Unavailable | Code::Aborted);
            assert_eq!(set.contains(code), is_meant, "{code}");
        }
        assert!(!set.is_empty() && CodeSet::EMPTY.is_empty());
        assert!(CodeSet::of([Code::Ok]).is_empty());
        assert_eq!(format!("{set:?}"), "{Aborted, Unavailable}");
    }
}
