//! Data of fragments, which may be in two places.

/// The end of a datagram that is not in the receive buffer, but in memory of its sender's. It can only be
/// copied out.
pub trait Tail {
    /// Its length in bytes.
    fn bytes(&self) -> usize;

    /// Appends it. False if the sender has taken its memory back: what was appended is worth nothing.
    fn append_to(&self, buffer: &mut Vec<u8>) -> bool;

    /// Copies it to a slice of its length. False as above.
    fn copy_to(&self, into: &mut [u8]) -> bool;
}

/// The bytes of a message that one fragment has.
#[derive(Clone, Copy)]
pub(crate) struct FragmentData<'a> {
    pub(crate) head: &'a [u8],
    pub(crate) tail: Option<&'a dyn Tail>,
}

impl FragmentData<'_> {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.tail.map_or(0, |tail| tail.bytes())
    }

    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
        buffer.extend_from_slice(self.head);
        self.tail.is_none_or(|tail| tail.append_to(buffer))
    }

    pub(crate) fn copy_to(&self, into: &mut [u8]) -> bool {
        let (head, rest) = into.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        self.tail.is_none_or(|tail| tail.copy_to(rest))
    }
}

impl<'a> From<&'a [u8]> for FragmentData<'a> {
    fn from(head: &'a [u8]) -> Self {
        Self { head, tail: None }
    }
}

#[cfg(test)]
mod tests {
    use starling_msgbuf::Msgbuf;

    use super::*;
    use crate::transfer::ReceiveWindow;

    /// A tail whose sender may have taken it back.
    struct Lent<'a>(&'a [u8], bool);

    impl Tail for Lent<'_> {
        fn bytes(&self) -> usize {
            self.0.len()
        }

        fn append_to(&self, buffer: &mut Vec<u8>) -> bool {
            // A sender that takes its memory back may have changed some of it.
            let bytes = if self.1 { self.0 } else { &[0xff; 7] };
            buffer.extend_from_slice(bytes);
            self.1
        }

        fn copy_to(&self, into: &mut [u8]) -> bool {
            into.copy_from_slice(self.0);
            self.1
        }
    }

    fn accept(window: &mut ReceiveWindow, message: &[u8], index: u32, is_lent: bool) -> bool {
        let from = index as usize * 400;
        let fragment = &message[from..(from + 400).min(message.len())];
        let (head, rest) = fragment.split_at(10);
        let tail = Lent(rest, is_lent);
        let data = FragmentData {
            head,
            tail: Some(&tail),
        };
        window
            .accept(message.len() as u32, index, &data)
            .expect("it is of the message")
    }

    #[test]
    fn tails_go_to_their_place_and_those_taken_back_have_not_arrived() {
        let message: Vec<u8> = (0..1000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
            let mut window = ReceiveWindow::new(1000, 400, Msgbuf::new());
            for index in order {
                assert!(!accept(&mut window, &message, index, false), "taken back");
                assert!(accept(&mut window, &message, index, true));
                assert!(!accept(&mut window, &message, index, true), "again");
            }
            assert!(window.is_complete());
            assert_eq!(window.into_buffer().head(), &message[..]);
        }
    }
}
