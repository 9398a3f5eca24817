//! How many of something each client has.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use starling_endpoint::Peer;

/// Counts what clients have, by client. Shares have a dynamic threshold (Choudhury and Hahne, 1998): a client may have
/// as many as are still free, so one that comes alone gets half.
#[derive(Debug, Default)]
pub(crate) struct ClientCounts {
    counts: HashMap<ClientNumber, usize, RandomState>,
    all: usize,
}

/// Stands for a client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientNumber(u64);

impl ClientCounts {
    /// One more of this client, of `most` for all. None: it may have no more.
    pub(crate) fn add(&mut self, client: &Peer, most: usize) -> Option<ClientNumber> {
        let number = ClientNumber(self.counts.hasher().hash_one(client.address()));
        let own = self.counts.get(&number).copied().unwrap_or_default();
        if own >= most.saturating_sub(self.all) {
            return None;
        }
        self.counts.insert(number, own + 1);
        self.all += 1;
        Some(number)
    }

    /// One of this client's is gone.
    pub(crate) fn remove(&mut self, client: ClientNumber) {
        let Some(own) = self.counts.get_mut(&client) else {
            debug_assert!(false, "it was not counted");
            return;
        };
        *own -= 1;
        if *own == 0 {
            self.counts.remove(&client);
        }
        self.all -= 1;
    }

    /// Of all clients.
    pub(crate) fn all(&self) -> usize {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many more this client gets.
    fn fill(counts: &mut ClientCounts, client: &Peer, most: usize) -> Vec<ClientNumber> {
        std::iter::from_fn(|| counts.add(client, most)).collect()
    }

    #[test]
    fn one_that_comes_alone_gets_half_and_there_is_room_for_the_next_one() {
        let mut counts = ClientCounts::default();
        let [one, two, three] =
            ["udp://a:1", "udp://b:1", "udp://c:1"].map(|address| Peer::new(address, None, None));
        let first = fill(&mut counts, &one, 64);
        assert_eq!(first.len(), 32);
        assert_eq!(fill(&mut counts, &two, 64).len(), 16);
        assert_eq!(fill(&mut counts, &three, 64).len(), 8);
        assert_eq!(counts.all, 56);
        // What one gives back is others', too.
        first.into_iter().for_each(|number| counts.remove(number));
        assert!(fill(&mut counts, &two, 64).len() >= 8);
        assert!(!fill(&mut counts, &one, 64).is_empty());
    }

    #[test]
    fn a_client_is_forgotten_with_its_last_one() {
        let mut counts = ClientCounts::default();
        let one = Peer::new("udp://a:1", None, None);
        assert!(counts.add(&one, 0).is_none());
        let number = counts.add(&one, 1).expect("room");
        assert!(counts.add(&one, 1).is_none());
        counts.remove(number);
        assert_eq!((counts.all, counts.counts.len()), (0, 0));
    }
}
