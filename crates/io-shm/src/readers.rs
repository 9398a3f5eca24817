//! Who may read a device's message heap.
//!
//! A message that its sender has put there by itself is for one peer, and no other one may read it. So the heap is
//! then that peer's alone: of the one for whom the first such message was made, if nobody else has the heap. All that
//! the sender was asked to put there ([`PacketIo::memory`](starling_io::PacketIo::memory)) may be read by every peer
//! of this process's user and of root. A peer of another user gets no heap that has such messages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the head of this file. Peers are known by their names.
#[derive(Debug, Default)]
pub(crate) struct Readers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    whose: Whose,
    /// It has messages for whoever gets them.
    has_common: bool,
    /// A peer of another user has it.
    is_abroad: bool,
}

#[derive(Debug, Default)]
enum Whose {
    #[default]
    Nobodys,
    One {
        name: Arc<str>,
        /// It has messages for this peer alone.
        is_exclusive: bool,
        /// The peer cannot read it.
        is_declined: bool,
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
        state.has_common |= !state.is_abroad;
        !state.is_abroad
    }

    /// Whether a message may be made for this peer alone.
    pub(crate) fn add_exclusive(&self, peer: &Arc<str>) -> bool {
        let whose = &mut self.lock().whose;
        match whose {
            Whose::Nobodys => {
                *whose = Whose::One {
                    name: Arc::clone(peer),
                    is_exclusive: true,
                    is_declined: false,
                };
                true
            }
            Whose::One {
                name,
                is_exclusive,
                is_declined: false,
            } if name == peer => {
                *is_exclusive = true;
                true
            }
            Whose::One { .. } | Whose::Several => false,
        }
    }

    /// This peer cannot read the heap, or now it can.
    pub(crate) fn set_declined(&self, peer: &str, declined: bool) {
        if let Whose::One {
            name, is_declined, ..
        } = &mut self.lock().whose
            && **name == *peer
        {
            *is_declined = declined;
        }
    }

    /// Whether this peer may have the heap; if so, it counts as one that has it. `None`: a client without a name.
    pub(crate) fn admit(&self, peer: Option<&Arc<str>>, is_of_other_user: bool) -> bool {
        let mut state = self.lock();
        let is_exclusively_its = match (&state.whose, peer) {
            (
                Whose::One {
                    name, is_exclusive, ..
                },
                Some(peer),
            ) if name == peer => *is_exclusive,
            (
                Whose::One {
                    is_exclusive: true, ..
                },
                _,
            ) => return false,
            _ => false,
        };
        if is_of_other_user {
            let may = is_exclusively_its && !state.has_common;
            state.is_abroad |= may;
            return may;
        }
        state.whose = match (std::mem::take(&mut state.whose), peer) {
            (Whose::Nobodys, Some(peer)) => Whose::One {
                name: Arc::clone(peer),
                is_exclusive: false,
                is_declined: false,
            },
            (one @ Whose::One { .. }, Some(peer)) if one.is_of(peer) => one,
            _ => Whose::Several,
        };
        true
    }
}

impl Whose {
    fn is_of(&self, peer: &str) -> bool {
        matches!(self, Self::One { name, .. } if **name == *peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> [Arc<str>; 2] {
        ["shm://a", "shm://b"].map(Arc::from)
    }

    #[test]
    fn a_heap_with_a_message_for_one_is_that_ones() {
        let [a, b] = peers();
        let readers = Readers::default();
        assert!(readers.add_exclusive(&a) && readers.add_exclusive(&a));
        assert!(!readers.add_exclusive(&b));
        assert!(!readers.admit(Some(&b), false) && !readers.admit(None, false));
        assert!(
            readers.admit(Some(&a), false),
            "what the others asked for left it so"
        );
        assert!(readers.add_common() && readers.add_exclusive(&a));
    }

    #[test]
    fn a_heap_that_others_have_takes_no_message_for_one() {
        let [a, b] = peers();
        let readers = Readers::default();
        assert!(readers.add_common() && readers.admit(Some(&a), false));
        assert!(!readers.add_exclusive(&b));
        assert!(readers.admit(Some(&b), false));
        assert!(!readers.add_exclusive(&a), "the other one has it");

        let clients = Readers::default();
        assert!(clients.admit(None, false));
        assert!(!clients.add_exclusive(&a), "a client has it");
    }

    #[test]
    fn another_user_gets_only_what_is_its_own() {
        let [a, b] = peers();
        let readers = Readers::default();
        assert!(!readers.admit(Some(&a), true), "nothing is for it");
        assert!(readers.add_exclusive(&a) && !readers.admit(Some(&b), true));
        assert!(readers.admit(Some(&a), true));
        assert!(!readers.add_common(), "it would read that, too");
        assert!(readers.add_exclusive(&a));

        let common = Readers::default();
        assert!(common.add_common() && common.add_exclusive(&a));
        assert!(!common.admit(Some(&a), true), "it has something of others");
        assert!(common.admit(Some(&a), false));
    }

    #[test]
    fn nothing_is_put_there_for_a_peer_that_cannot_read_it() {
        let [a, _] = peers();
        let readers = Readers::default();
        assert!(readers.add_exclusive(&a), "it is not known yet");
        readers.set_declined("shm://b", true);
        assert!(readers.add_exclusive(&a), "that was another one");
        readers.set_declined(&a, true);
        assert!(!readers.add_exclusive(&a));
        readers.set_declined(&a, false);
        assert!(readers.add_exclusive(&a), "its next process does");
    }
}
