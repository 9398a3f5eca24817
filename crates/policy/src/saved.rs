//! An engine's state on its way to its successor: versioned, checked bytes, and never Rust objects, so that it can pass
//! between builds.

/// What an engine has saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    version: u16,
    bytes: Vec<u8>,
    /// Why there is no state, although the engine has one.
    problem: Option<String>,
}

impl Saved {
    /// Begins a state of this version.
    pub(crate) fn new(version: u16) -> Self {
        Self {
            version,
            ..Self::default()
        }
    }

    /// A state whose bytes an engine makes in a way of its own.
    pub fn of_bytes(version: u16, bytes: Vec<u8>) -> Self {
        Self {
            version,
            bytes,
            problem: None,
        }
    }

    /// The engine could not save its state: none can go on with it.
    pub fn failed(problem: String) -> Self {
        Self {
            problem: Some(problem),
            ..Self::default()
        }
    }

    pub(crate) fn with_u64(mut self, value: u64) -> Self {
        self.put_u64(value);
        self
    }

    pub(crate) fn put_u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Behind their length.
    pub(crate) fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.put_u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// To be read by a successor.
    pub fn reader(&self) -> SavedReader<'_> {
        SavedReader {
            version: self.version,
            rest: &self.bytes,
            problem: self.problem.as_deref(),
        }
    }
}

/// What is left to be read of a state.
#[derive(Debug)]
pub struct SavedReader<'a> {
    version: u16,
    rest: &'a [u8],
    problem: Option<&'a str>,
}

impl<'a> SavedReader<'a> {
    /// Version and bytes of a state, if it is not of a later version than this.
    ///
    /// # Errors
    /// If it is, or if it was not saved.
    pub fn bytes(&self, newest: u16) -> Result<(u16, &'a [u8]), RestoreError> {
        self.check_version(newest)?;
        Ok((self.version, self.rest))
    }

    /// Fails if the state is of a later version than this, or was not saved.
    pub(crate) fn check_version(&self, newest: u16) -> Result<(), RestoreError> {
        if let Some(problem) = self.problem {
            let problem = problem.to_owned();
            return Err(RestoreError::Engine { problem });
        }
        match self.version <= newest {
            true => Ok(()),
            false => Err(RestoreError::Later {
                version: self.version,
                newest,
            }),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RestoreError> {
        let (value, rest) = self.rest.split_first_chunk().ok_or(RestoreError::Broken)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*value))
    }

    /// Bytes that are a text.
    pub(crate) fn text(&mut self) -> Result<String, RestoreError> {
        let len = usize::try_from(self.u64()?).map_err(|_| RestoreError::Broken)?;
        let (bytes, rest) = (self.rest.split_at_checked(len)).ok_or(RestoreError::Broken)?;
        self.rest = rest;
        String::from_utf8(bytes.to_vec()).map_err(|_| RestoreError::Broken)
    }

    /// Fails if there is more.
    pub(crate) fn end(&self) -> Result<(), RestoreError> {
        match self.rest {
            [] => Ok(()),
            _ => Err(RestoreError::Broken),
        }
    }
}

/// Why an engine cannot go on with a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// A later version has saved it.
    #[error(
        "the state is of version {version}, and this engine knows versions up to {newest}: use a newer build"
    )]
    Later {
        /// Of the state.
        version: u16,
        /// The newest that the engine reads.
        newest: u16,
    },
    /// It was not saved by an engine of this kind.
    #[error("the state is broken: it was not saved by an engine of this kind")]
    Broken,
    /// What an engine of a plug-in says, or how it has failed.
    #[error("{problem}")]
    Engine {
        /// The text.
        problem: String,
    },
}

#[cfg(test)]
mod tests {
    use starling_call::{CallOptions, MethodId};

    use super::*;
    use crate::engine::{PolicyEngine, PolicyRequest, Verdict};
    use crate::engines::testing::DATAPATH;
    use crate::kinds::KINDS;

    #[test]
    fn states_are_read_as_they_were_saved_and_no_others() {
        let saved = Saved::new(3).with_u64(7).with_u64(u64::MAX);
        let mut reader = saved.reader();
        assert_eq!(reader.check_version(3), Ok(()));
        let (version, newest) = (3, 2);
        let later = RestoreError::Later { version, newest };
        assert_eq!(reader.check_version(2), Err(later));
        assert_eq!(reader.end(), Err(RestoreError::Broken));
        assert_eq!((reader.u64(), reader.u64()), (Ok(7), Ok(u64::MAX)));
        assert_eq!(reader.end(), Ok(()));
        assert_eq!(reader.u64(), Err(RestoreError::Broken));
    }

    #[test]
    fn a_state_that_was_not_saved_is_no_state() {
        let saved = Saved::failed("it panicked".to_owned());
        let problem = "it panicked".to_owned();
        assert_eq!(
            saved.reader().bytes(7),
            Err(RestoreError::Engine { problem })
        );
        let saved = Saved::of_bytes(3, vec![7]);
        assert_eq!(saved.reader().bytes(3), Ok((3, &[7][..])));
        assert!(saved.reader().bytes(2).is_err());
    }

    /// Requests that an engine lets pass, of a hundred, an age apart, whatever became of those before.
    fn passed(engine: &mut dyn PolicyEngine, begun_ns: u64) -> usize {
        let passes = |call: &u64| {
            let mut request = PolicyRequest {
                now_ns: begun_ns.saturating_add(call * AGE_NS),
                call: *call,
                method: MethodId(7),
                datapath: &DATAPATH,
                options: &mut CallOptions::default(),
                body: b"",
                message: None,
            };
            !matches!(engine.on_request(&mut request, 0), Verdict::Refuse(_))
        };
        (1..=100).filter(passes).count()
    }

    /// Longer than any setting of the examples.
    const AGE_NS: u64 = 60_000_000_000;

    /// Bytes that no engine has saved are refused, and nothing changes, or the engine works with them.
    #[test]
    fn any_state_is_refused_or_leaves_an_engine_that_works() {
        bolero::check!()
            .with_type::<(u8, u8, Vec<(u64, u8)>, Vec<u8>, u32)>()
            .for_each(|(kind, version, words, rest, begun_s)| {
                let kind = &KINDS[usize::from(*kind) % KINDS.len()];
                let settings = serde_json::from_str(kind.example).expect(kind.name);
                let build = || kind.build(&settings).expect(kind.name);
                let mut saved = Saved::new(u16::from(version % 3));
                // As many as there may be, mostly; small and large.
                let words = words
                    .iter()
                    .take(4)
                    .map(|(word, shift)| word >> (shift % 64));
                saved.bytes = words.flat_map(u64::to_le_bytes).collect();
                saved.bytes.extend_from_slice(&rest[..rest.len() % 2]);
                let (mut fresh, mut engine) = (build(), build());
                if engine.restore(&mut saved.reader()).is_err() {
                    assert_eq!(engine.save(), fresh.save(), "{} has changed", kind.name);
                }
                let begun_ns = u64::from(*begun_s) * 1_000_000_000;
                let (of_engine, of_fresh) = (
                    passed(&mut *engine, begun_ns),
                    passed(&mut *fresh, begun_ns),
                );
                assert!(
                    of_engine >= of_fresh / 2,
                    "{}: {of_engine} of {of_fresh}",
                    kind.name
                );
                let again = engine.save();
                assert_eq!(
                    build().restore(&mut again.reader()),
                    Ok(()),
                    "{}",
                    kind.name
                );
            });
    }

    #[test]
    fn texts_are_read_as_they_were_saved_and_what_is_none_is_refused() {
        let saved = Saved::new(1).with_bytes("höhe".as_bytes()).with_bytes(b"");
        let mut reader = saved.reader();
        assert_eq!(
            (reader.text(), reader.text()),
            (Ok("höhe".to_owned()), Ok(String::new()))
        );
        for wrong in [
            Saved::new(1),
            Saved::new(1).with_bytes(b"\xff"),
            Saved::new(1).with_u64(1),
            Saved::new(1).with_u64(u64::MAX),
        ] {
            assert_eq!(wrong.reader().text(), Err(RestoreError::Broken));
        }
    }
}
