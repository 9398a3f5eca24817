//! The locks, atomics and threads that ship, or those of a checker of concurrent code: loom, which tries all
//! orders that are allowed, or shuttle, which tries random ones.

#[cfg(not(any(loom, shuttle)))]
mod shipped {
    pub(crate) use crossbeam_queue::SegQueue as Queue;
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    /// Not `parking_lot`'s, which has all threads that sleep in one table of the process: a child of the process
    /// inherits that, and gives the stacks of these threads to its own.
    pub(crate) use std::sync::{
        Arc, Condvar, Mutex as SleepMutex, MutexGuard as SleepGuard, atomic,
    };

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Locks what a [`Condvar`] is used with.
    pub(crate) fn lock_to_sleep<T>(mutex: &SleepMutex<T>) -> SleepGuard<'_, T> {
        mutex
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The lock of the driver role.
    pub(crate) struct RoleLock<T>(Mutex<T>);

    /// The role.
    pub(crate) type RoleGuard<'a, T> = MutexGuard<'a, T>;

    impl<T> RoleLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn try_lock(&self) -> Option<RoleGuard<'_, T>> {
            self.0.try_lock()
        }

        pub(crate) fn lock(&self) -> RoleGuard<'_, T> {
            self.0.lock()
        }

        pub(crate) fn is_locked(&self) -> bool {
            self.0.is_locked()
        }
    }

    /// Where one thread sleeps until others wake it.
    pub(crate) enum Parker {
        System(std::thread::Thread),
        Simulated(Arc<dyn crate::SimulatedThread>),
    }

    impl Parker {
        pub(crate) fn of_this_thread() -> Self {
            Self::System(std::thread::current())
        }

        pub(crate) fn is_of_this_thread(&self) -> bool {
            match self {
                Self::System(thread) => std::thread::current().id() == thread.id(),
                Self::Simulated(thread) => thread.is_current(),
            }
        }

        /// Sleeps until a wake since the last sleep. May return early.
        pub(crate) fn park(&self) {
            debug_assert!(self.is_of_this_thread(), "a thread parks itself");
            match self {
                Self::System(_) => std::thread::park(),
                Self::Simulated(thread) => thread.park(),
            }
        }

        pub(crate) fn unpark(&self) {
            match self {
                Self::System(thread) => thread.unpark(),
                Self::Simulated(thread) => thread.unpark(),
            }
        }

        /// Lets others of the core run. By the thread itself.
        pub(crate) fn yield_now(&self) {
            match self {
                Self::System(_) => std::thread::yield_now(),
                Self::Simulated(thread) => thread.yield_now(),
            }
        }
    }
}

#[cfg(any(loom, shuttle))]
mod modelled {
    #[cfg(loom)]
    use loom as checker;
    #[cfg(shuttle)]
    use shuttle as checker;

    pub(crate) use checker::sync::{Arc, Condvar, Mutex, Mutex as SleepMutex, MutexGuard, atomic};
    #[cfg(all(shuttle, test))]
    pub(crate) use checker::thread;
    use checker::thread::yield_now;
    use std::collections::VecDeque;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("a model does not panic with a lock")
    }

    pub(crate) use lock as lock_to_sleep;

    /// The lock of the driver role, by hand: loom blocks a thread at its `try_lock` while another
    /// has the lock.
    pub(crate) struct RoleLock<T> {
        taken: atomic::AtomicBool,
        value: Mutex<T>,
    }

    pub(crate) struct RoleGuard<'a, T> {
        lock: &'a RoleLock<T>,
        /// Never contended.
        value: Option<MutexGuard<'a, T>>,
    }

    impl<T> RoleLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self {
                taken: atomic::AtomicBool::new(false),
                value: Mutex::new(value),
            }
        }

        pub(crate) fn try_lock(&self) -> Option<RoleGuard<'_, T>> {
            let (acquire, relaxed) = (atomic::Ordering::Acquire, atomic::Ordering::Relaxed);
            let taken = self.taken.compare_exchange(false, true, acquire, relaxed);
            taken.is_ok().then(|| RoleGuard {
                lock: self,
                value: Some(lock(&self.value)),
            })
        }

        pub(crate) fn lock(&self) -> RoleGuard<'_, T> {
            loop {
                match self.try_lock() {
                    Some(guard) => return guard,
                    None => yield_now(),
                }
            }
        }
    }

    impl<T> std::ops::Deref for RoleGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("it has the lock")
        }
    }

    impl<T> std::ops::DerefMut for RoleGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("it has the lock")
        }
    }

    impl<T> Drop for RoleGuard<'_, T> {
        fn drop(&mut self) {
            self.value = None;
            self.lock.taken.store(false, atomic::Ordering::Release);
        }
    }

    /// Stands for a thread's parking. Loom's own also wakes a thread that waits for a lock.
    pub(crate) struct Parker {
        thread: checker::thread::ThreadId,
        woken: Mutex<bool>,
        changed: Condvar,
    }

    impl Parker {
        pub(crate) fn of_this_thread() -> Self {
            Self {
                thread: checker::thread::current().id(),
                woken: Mutex::new(false),
                changed: Condvar::new(),
            }
        }

        pub(crate) fn is_of_this_thread(&self) -> bool {
            checker::thread::current().id() == self.thread
        }

        pub(crate) fn park(&self) {
            let mut woken = lock(&self.woken);
            while !std::mem::take(&mut *woken) {
                woken = self.changed.wait(woken).expect("a model does not panic");
            }
        }

        pub(crate) fn unpark(&self) {
            *lock(&self.woken) = true;
            self.changed.notify_one();
        }

        /// A model has no cores.
        pub(crate) fn yield_now(&self) {}
    }

    /// Stands for the lock-free queue, whose own models are its authors'.
    pub(crate) struct Queue<T>(Mutex<VecDeque<T>>);

    impl<T> Queue<T> {
        pub(crate) fn new() -> Self {
            Self(Mutex::new(VecDeque::new()))
        }

        pub(crate) fn push(&self, item: T) {
            lock(&self.0).push_back(item);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            lock(&self.0).pop_front()
        }

        pub(crate) fn is_empty(&self) -> bool {
            lock(&self.0).is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            lock(&self.0).len()
        }
    }
}

#[cfg(any(loom, shuttle))]
pub(crate) use modelled::*;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use shipped::*;
