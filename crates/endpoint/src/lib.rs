//! One thread's event loop: sessions, handlers, continuations.
