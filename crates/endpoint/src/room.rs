//! How much may wait outside its handler, and how much of that may be one peer's.
//!
//! The bound on all is in requests and in the bytes of their messages. A peer may hold as much as is
//! still free, in each of the two: the dynamic threshold of Choudhury and Hahne (IEEE/ACM ToN 6(2),
//! 1998) with the factor 1.
//!
//! ```text
//!  one greedy peer     ████████████████░░░░░░░░░░░░░░░░   a half, and a half is free
//!  two of them         ███████████▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░   a third each, and a third is free
//! ```
//! So no peer has to be told its share, a peer alone has much of the room, and there is room for a
//! newcomer unless there are more greedy peers than places.

use starling_io::PeerId;
use starling_proto::HighWater;

/// What a request takes that waits, beside its message, roughly: its task or its job, and its entry in tables.
const REQUEST_BYTES: usize = 1024;

/// Requests, and the bytes of their messages.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: usize,
    bytes: usize,
}

impl Load {
    fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.requests -= 1;
        self.bytes -= bytes;
    }

    fn memory(&self) -> usize {
        self.bytes + self.requests * REQUEST_BYTES
    }
}

/// A request that takes room: whose it is, and the bytes of its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) peer: PeerId,
    /// A message is never longer.
    pub(crate) bytes: u32,
}

impl Holding {
    /// A message of so many bytes takes room.
    pub(crate) fn new(peer: PeerId, bytes: usize) -> Self {
        Self {
            peer,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    fn bytes(self) -> usize {
        self.bytes as usize
    }
}

/// The room for requests that wait.
#[derive(Debug)]
pub(crate) struct Room {
    /// What is left.
    free: Load,
    /// What all have taken.
    all: Load,
    most: HighWater,
    /// What is taken, by peer, up to the highest one that ever had a request that waited.
    taken: Vec<Load>,
}

impl Room {
    pub(crate) fn new(requests: usize, bytes: usize) -> Self {
        Self {
            free: Load { requests, bytes },
            all: Load::default(),
            most: HighWater::default(),
            taken: Vec::new(),
        }
    }

    /// Whether a request fits into what its peer may hold.
    pub(crate) fn admits(&self, request: Holding) -> bool {
        let taken = self.taken.get(request.peer.0 as usize).copied();
        let taken = taken.unwrap_or_default();
        taken.requests < self.free.requests
            && taken.bytes.saturating_add(request.bytes()) <= self.free.bytes
    }

    /// A request waits that [`Room::admits`] has admitted.
    pub(crate) fn add(&mut self, request: Holding) {
        let peer = request.peer.0 as usize;
        if peer >= self.taken.len() {
            self.taken.resize(peer + 1, Load::default());
        }
        self.taken[peer].add(request.bytes());
        self.free.remove(request.bytes());
        self.all.add(request.bytes());
        self.most.note(self.all.memory());
    }

    /// A request waits no more.
    pub(crate) fn remove(&mut self, request: Holding) {
        self.taken[request.peer.0 as usize].remove(request.bytes());
        self.free.add(request.bytes());
        self.all.remove(request.bytes());
    }

    /// Requests of all.
    pub(crate) fn requests(&self) -> usize {
        self.all.requests
    }

    /// Bytes of the messages of all.
    pub(crate) fn bytes(&self) -> usize {
        self.all.bytes
    }

    /// The most memory that requests took since this was last asked, and now.
    pub(crate) fn take_most(&mut self) -> usize {
        self.most.take(self.all.memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: u32, bytes: usize) -> Holding {
        let peer = PeerId(peer);
        Holding::new(peer, bytes)
    }

    /// Each of the peers in turn adds requests of so many bytes until none of them may add one.
    /// Returns how many each one has.
    fn fill(room: &mut Room, peers: u32, bytes: usize) -> Vec<usize> {
        let mut counts = vec![0; peers as usize];
        let mut refused = 0;
        for peer in (0..peers).cycle() {
            if room.admits(of(peer, bytes)) {
                room.add(of(peer, bytes));
                counts[peer as usize] += 1;
                refused = 0;
            } else {
                refused += 1;
            }
            if refused == peers {
                break;
            }
        }
        counts
    }

    #[test]
    fn greedy_peers_have_equal_shares_and_leave_one_for_a_newcomer() {
        for peers in 1..10 {
            let share = 2520 / (peers as usize + 1);
            let mut by_number = Room::new(2520, usize::MAX);
            assert_eq!(
                fill(&mut by_number, peers, 1000),
                vec![share; peers as usize]
            );
            let mut by_bytes = Room::new(usize::MAX, 2520 * 1000);
            assert_eq!(
                fill(&mut by_bytes, peers, 1000),
                vec![share; peers as usize]
            );
            for mut room in [by_number, by_bytes] {
                let newcomer = of(peers, 1000);
                assert!(room.admits(newcomer));
                for peer in 0..peers {
                    (0..share).for_each(|_| room.remove(of(peer, 1000)));
                }
            }
        }
    }

    #[test]
    fn the_room_that_a_greedy_peer_leaves_is_the_others() {
        let mut room = Room::new(100, usize::MAX);
        assert_eq!(fill(&mut room, 1, 0), [50]);
        assert_eq!(fill(&mut room, 2, 0), [0, 25], "half of what is free");
        (0..50).for_each(|_| room.remove(of(0, 0)));
        assert!(room.admits(of(0, 0)) && room.admits(of(1, 0)));
    }

    #[test]
    fn a_peer_alone_may_have_one_request_of_all_the_bytes() {
        let mut room = Room::new(10, 1000);
        assert!(!room.admits(of(3, 1001)));
        assert!(!room.admits(of(3, usize::MAX)));
        assert!(room.admits(of(3, 1000)));
        room.add(of(3, 1000));
        assert!(!room.admits(of(3, 1)) && !room.admits(of(4, 1)));
        room.remove(of(3, 1000));
        assert!(room.admits(of(4, 1000)));
    }
}
