//! Who may read the message heap of a device without a name.
//!
//! A message that its sender has put there by itself is for one peer, and no other one may read it. So the heap is
//! then that peer's alone: of the one for whom the first such message was made, if nobody else has the heap. A peer is
//! a name and the process that has it: another process may have the name later. All that the sender was asked to put
//! there ([`PacketIo::memory`](starling_io::PacketIo::memory)) may be read by every peer of this process's user and of
//! root. A peer of another user gets no heap that has such messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The process of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderProcess {
    pub(crate) uid: u32,
    /// 0: the kernel does not say. Then it cannot be told from the next one.
    pub(crate) pid: u32,
    /// Neither of this process's user nor of root.
    pub(crate) is_of_other_user: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    whose: Whose,
    /// Peers that can read the heap, as far as is known.
    able: HashMap<Arc<str>, ReaderProcess>,
    /// It has messages for whoever gets them.
    has_common: bool,
    /// A peer of another user has it.
    is_with_other_user: bool,
}

#[derive(Debug, Default)]
enum Whose {
    #[default]
    Nobodys,
    One {
        name: Arc<str>,
        process: ReaderProcess,
        /// It has messages for this peer alone.
        is_exclusive: bool,
    },
    Several,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message may be made for whoever gets it.
    pub(crate) fn add_common(&self) -> bool {
        let mut state = self.lock();
        state.has_common |= !state.is_with_other_user;
        !state.is_with_other_user
    }

    /// Whether a message may be made for this peer alone.
    pub(crate) fn add_exclusive(&self, peer: &Arc<str>) -> bool {
        let mut state = self.lock();
        let Some(process) = state.able.get(peer).copied() else {
            return false;
        };
        match &mut state.whose {
            whose @ Whose::Nobodys => {
                *whose = Whose::One {
                    name: Arc::clone(peer),
                    process,
                    is_exclusive: true,
                };
                true
            }
            Whose::One {
                name,
                process: owner,
                is_exclusive,
            } if name == peer && *owner == process => {
                *is_exclusive = true;
                true
            }
            Whose::One { .. } | Whose::Several => false,
        }
    }

    /// This peer can read the heap; or it cannot.
    pub(crate) fn set_able(&self, peer: &Arc<str>, process: Option<ReaderProcess>) {
        let able = &mut self.lock().able;
        match process.filter(|process| process.pid != 0) {
            Some(process) => able.insert(Arc::clone(peer), process),
            None => able.remove(peer),
        };
    }

    /// Whether this peer may have the heap; if so, it counts as one that has it.
    pub(crate) fn admit(&self, peer: &Arc<str>, process: ReaderProcess) -> bool {
        let mut state = self.lock();
        let is_owner = state.whose.is_of(peer, process);
        let is_exclusive = matches!(
            state.whose,
            Whose::One {
                is_exclusive: true,
                ..
            }
        );
        if is_exclusive && !is_owner {
            return false;
        }
        if process.is_of_other_user {
            let may = is_exclusive && !state.has_common;
            state.is_with_other_user |= may;
            return may;
        }
        if !is_owner {
            state.whose = match state.whose {
                Whose::Nobodys => Whose::One {
                    name: Arc::clone(peer),
                    process,
                    is_exclusive: false,
                },
                Whose::One { .. } | Whose::Several => Whose::Several,
            };
        }
        true
    }
}

impl Whose {
    fn is_of(&self, peer: &Arc<str>, by: ReaderProcess) -> bool {
        by.pid != 0
            && matches!(self, Self::One { name, process, .. } if name == peer && *process == by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ReaderProcess = ReaderProcess {
        uid: 7,
        pid: 1,
        is_of_other_user: false,
    };
    const NEXT: ReaderProcess = ReaderProcess { pid: 2, ..OWN };
    const STRANGER: ReaderProcess = ReaderProcess {
        uid: 8,
        pid: 3,
        is_of_other_user: true,
    };

    /// With two peers that can read it.
    fn readers(process: ReaderProcess) -> (Readers, [Arc<str>; 2]) {
        let (readers, peers) = (
            Readers::default(),
            ["shm://a", "shm://b"].map(Arc::<str>::from),
        );
        for peer in &peers {
            readers.set_able(peer, Some(process));
        }
        (readers, peers)
    }

    #[test]
    fn a_heap_with_a_message_for_one_is_that_ones() {
        let (readers, [a, b]) = readers(OWN);
        assert!(readers.add_exclusive(&a) && readers.add_exclusive(&a));
        assert!(!readers.add_exclusive(&b));
        assert!(!readers.admit(&b, OWN));
        assert!(
            readers.admit(&a, OWN),
            "what the others asked for left it so"
        );
        assert!(readers.add_common() && readers.add_exclusive(&a));
    }

    #[test]
    fn the_next_process_with_its_name_is_somebody_else() {
        let (readers, [a, _]) = readers(OWN);
        assert!(readers.add_exclusive(&a) && readers.admit(&a, OWN));
        readers.set_able(&a, Some(NEXT));
        assert!(!readers.admit(&a, NEXT), "it was for the one before");
        assert!(!readers.add_exclusive(&a));

        let (shared, [a, _]) = self::readers(OWN);
        assert!(shared.admit(&a, OWN) && shared.admit(&a, NEXT));
        assert!(!shared.add_exclusive(&a), "two processes have it");
    }

    #[test]
    fn a_heap_that_others_have_takes_no_message_for_one() {
        let (readers, [a, b]) = readers(OWN);
        assert!(readers.add_common() && readers.admit(&a, OWN));
        assert!(!readers.add_exclusive(&b));
        assert!(readers.admit(&b, OWN));
        assert!(!readers.add_exclusive(&a), "the other one has it");
    }

    #[test]
    fn another_user_gets_only_what_is_its_own() {
        let (readers, [a, b]) = readers(STRANGER);
        assert!(!readers.admit(&a, STRANGER), "nothing is for it");
        assert!(readers.add_exclusive(&a) && !readers.admit(&b, STRANGER));
        assert!(readers.admit(&a, STRANGER));
        assert!(!readers.add_common(), "it would read that, too");
        assert!(readers.add_exclusive(&a));

        let (common, [a, _]) = self::readers(STRANGER);
        assert!(common.add_common() && common.add_exclusive(&a));
        assert!(!common.admit(&a, STRANGER), "it has something of others");
    }

    #[test]
    fn nothing_is_put_there_for_a_peer_that_is_not_known_to_read_it() {
        let (readers, [a, b]) = readers(OWN);
        let nameless = ReaderProcess { pid: 0, ..OWN };
        readers.set_able(&a, Some(nameless));
        assert!(!readers.add_exclusive(&a));
        let unknown = Arc::from("shm://c");
        assert!(!readers.add_exclusive(&unknown));
        assert!(readers.admit(&b, OWN), "it has not got the heap");

        let (readers, [a_too, _]) = self::readers(OWN);
        readers.set_able(&a_too, None);
        assert!(!readers.add_exclusive(&a_too));
        readers.set_able(&a, Some(NEXT));
        assert!(readers.add_exclusive(&a), "its next process does");
    }
}
