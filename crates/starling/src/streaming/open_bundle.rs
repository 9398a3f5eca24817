//! The bundle that a handler adds items to while it is polled.
//!
//! To lock a stream for each small item costs more than all else that sending one takes. So the stream
//! lends the last of its bundles to the thread that polls the handler, and gets it back when the bundle is
//! full, or when the handler waits:
//!
//! ```text
//!  begin_handler ─▶ OPEN.owner = the stream     send, send ─▶ OPEN.bundle, without a lock
//!                                  │ the second item of a poll                │ full, or the poll ends
//!                            ServerStream::lend_bundle ◀──── take_back_bundle ┘
//! ```

use std::cell::RefCell;

use starling_stream::LentBundle;

thread_local! {
    static OPEN: RefCell<Open> = const { RefCell::new(Open { owner: 0, bundle: None }) };
}

/// Identifies the end of a stream: its address.
pub(super) type Owner = usize;

/// What identifies this end. That of a client identifies none that a thread polls the handler of.
#[inline]
pub(super) fn owner_of<E: ?Sized>(end: &E) -> Owner {
    std::ptr::from_ref(end).addr()
}

/// What this thread polls.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// The end whose handler this thread polls. 0: none.
    owner: Owner,
    bundle: Option<LentBundle>,
}

/// This thread begins to poll the handler of a stream. Returns what it was polling, for [`end`].
pub(super) fn begin(owner: Owner) -> Open {
    let open = Open {
        owner,
        bundle: None,
    };
    OPEN.with(|now| now.replace(open))
}

/// The poll ends. Returns the bundle that was lent in it.
pub(super) fn end(outer: Open) -> Option<LentBundle> {
    OPEN.with(|now| now.replace(outer)).bundle
}

/// Adds an item to the bundle that was lent to this thread. False: none was, or it has no room.
#[inline]
pub(super) fn push(owner: Owner, item: &[u8]) -> bool {
    let push = |open: &RefCell<Open>| match &mut *open.borrow_mut() {
        Open {
            owner: own,
            bundle: Some(bundle),
        } if *own == owner => bundle.push(item),
        _ => false,
    };
    // A thread that is ending polls no handler.
    OPEN.try_with(push).unwrap_or(false)
}

/// Whether this thread polls the handler of this stream.
pub(super) fn is_polling(owner: Owner) -> bool {
    OPEN.try_with(|open| open.borrow().owner == owner)
        .unwrap_or(false)
}

/// Lends a bundle to this thread, which polls the handler of the stream.
pub(super) fn lend(bundle: LentBundle) {
    OPEN.with_borrow_mut(|open| open.bundle = Some(bundle));
}

/// Takes back the bundle that was lent, if this thread has it.
pub(super) fn take_back(owner: Owner) -> Option<LentBundle> {
    let take = |open: &RefCell<Open>| {
        let open = &mut *open.borrow_mut();
        (open.owner == owner).then(|| open.bundle.take()).flatten()
    };
    OPEN.try_with(take).ok().flatten()
}
