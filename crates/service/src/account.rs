//! What applications and users have of the service now, beside their quotas.
//!
//! ```text
//!  Charge (a call) ─▶ DatapathShare (a route) ─▶ Account (an application) ─▶ Account (its user)
//! ```
//!
//! Each gives back what it took when it is dropped: whatever ends a call or a route, nothing stays behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use starling_endpoint::Status;
use starling_policy::Side;

use crate::quota::{Holder, Quota, Resource};

/// A number that one thread changes, that of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, more: usize) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }

    fn sub(&self, less: usize) {
        self.0.store(self.get() - less, Ordering::Relaxed);
    }
}

/// A number that several runtimes change, if there are several: with one, that costs less.
#[derive(Debug, Default)]
pub(crate) struct SharedCount {
    count: Count,
    is_shared: bool,
}

impl SharedCount {
    fn new(is_shared: bool) -> Self {
        Self {
            count: Count::default(),
            is_shared,
        }
    }

    pub(crate) fn get(&self) -> usize {
        self.count.get()
    }

    /// Adds to it, unless it would be more than this.
    fn take(&self, more: usize, most: usize) -> bool {
        let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
        if self.is_shared {
            let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
            return self.count.0.fetch_update(set, get, fits).is_ok();
        }
        let fits = fits(self.get()).is_some();
        if fits {
            self.count.add(more);
        }
        fits
    }

    fn give_back(&self, less: usize) {
        match self.is_shared {
            true => drop(self.count.0.fetch_sub(less, Ordering::Relaxed)),
            false => self.count.sub(less),
        }
    }
}

/// Whose an account is, for the operator.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) holder: Holder,
    pub(crate) side: Side,
    pub(crate) process: Option<u32>,
    pub(crate) user: Option<u32>,
    pub(crate) program: String,
}

/// What one owner has now.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) owner: Owner,
    pub(crate) quota: Quota,
    /// That of the user.
    parent: Option<Arc<Account>>,
    pub(crate) calls: SharedCount,
    pub(crate) datapaths: SharedCount,
    pub(crate) memory: SharedCount,
    /// Requests and datapaths that would have been beyond the quota.
    pub(crate) refused: SharedCount,
}

impl Account {
    /// `is_shared`: several runtimes take from it.
    pub(crate) fn new(
        owner: Owner,
        quota: Quota,
        parent: Option<Arc<Self>>,
        is_shared: bool,
    ) -> Self {
        Self {
            owner,
            quota,
            parent,
            calls: SharedCount::new(is_shared),
            datapaths: SharedCount::new(is_shared),
            memory: SharedCount::new(is_shared),
            refused: SharedCount::new(is_shared),
        }
    }

    /// It, and that of its user.
    fn levels(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.parent.as_deref())
    }

    fn exceeded(&self, resource: Resource, wanted: usize) -> Exceeded {
        self.refused.take(1, usize::MAX);
        Exceeded {
            resource,
            holder: self.owner.holder,
            side: self.owner.side,
            used: self.of(resource).0.get(),
            wanted,
        }
    }

    fn of(&self, resource: Resource) -> (&SharedCount, usize) {
        match resource {
            Resource::Calls => (&self.calls, self.quota.calls),
            Resource::Datapaths => (&self.datapaths, self.quota.datapaths),
            Resource::Memory => (&self.memory, self.quota.memory),
        }
    }

    /// Takes from it and from that of its user, or from neither.
    fn take(&self, resource: Resource, more: usize) -> Result<(), Exceeded> {
        let taken = self.try_take(resource, more);
        taken.map_err(|level| level.exceeded(resource, more))
    }

    /// The same, without a count of what is refused. The error is whose quota it does not fit.
    fn try_take(&self, resource: Resource, more: usize) -> Result<(), &Self> {
        let fits = |level: &Self| {
            let (count, most) = level.of(resource);
            count.take(more, most)
        };
        if !fits(self) {
            return Err(self);
        }
        match self.parent.as_deref().filter(|parent| !fits(parent)) {
            None => Ok(()),
            Some(parent) => {
                self.of(resource).0.give_back(more);
                Err(parent)
            }
        }
    }

    fn give_back(&self, resource: Resource, less: usize) {
        for level in self.levels() {
            level.of(resource).0.give_back(less);
        }
    }

    /// Takes a datapath, which gets this id.
    pub(crate) fn open(self: &Arc<Self>, id: u64) -> Result<Arc<DatapathShare>, Exceeded> {
        self.take(Resource::Datapaths, 1)?;
        Ok(Arc::new(DatapathShare {
            account: Arc::clone(self),
            id,
            calls: Count::default(),
            in_flight: Count::default(),
            memory: Count::default(),
            request_bytes: Count::default(),
            response_bytes: Count::default(),
        }))
    }
}

/// What a route takes, and what it has done.
#[derive(Debug)]
pub(crate) struct DatapathShare {
    account: Arc<Account>,
    id: u64,
    /// So far.
    calls: Count,
    /// Not over, and the bytes of their requests.
    in_flight: Count,
    memory: Count,
    /// So far.
    request_bytes: Count,
    response_bytes: Count,
}

/// What a datapath has done, for other threads: a share itself belongs to the runtime's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatapathCounts {
    pub(crate) id: u64,
    pub(crate) calls: usize,
    pub(crate) in_flight: usize,
    pub(crate) memory: usize,
    pub(crate) request_bytes: usize,
    pub(crate) response_bytes: usize,
}

impl DatapathShare {
    pub(crate) fn counts(&self) -> DatapathCounts {
        DatapathCounts {
            id: self.id,
            calls: self.calls.get(),
            in_flight: self.in_flight.get(),
            memory: self.memory.get(),
            request_bytes: self.request_bytes.get(),
            response_bytes: self.response_bytes.get(),
        }
    }

    /// Takes what a call with a request of so many bytes needs.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, Exceeded> {
        self.account.take(Resource::Calls, 1)?;
        let memory = self.account.take(Resource::Memory, bytes);
        memory.inspect_err(|_| self.account.give_back(Resource::Calls, 1))?;
        self.calls.add(1);
        self.in_flight.add(1);
        self.memory.add(bytes);
        self.request_bytes.add(bytes);
        Ok(Charge {
            of: Arc::clone(self),
            bytes,
        })
    }
}

impl Drop for DatapathShare {
    fn drop(&mut self) {
        self.account.give_back(Resource::Datapaths, 1);
    }
}

/// What a call takes.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Arc<DatapathShare>,
    bytes: usize,
}

impl Charge {
    /// The call needs so many bytes more, until it is over. Returns whether they are within the quotas; else nothing
    /// has changed.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let taken = self.of.account.try_take(Resource::Memory, bytes);
        let is_within = taken.is_ok();
        if is_within {
            self.of.memory.add(bytes);
            self.bytes += bytes;
        }
        is_within
    }

    /// The call has a response.
    pub(crate) fn count_response(&self, bytes: usize) {
        self.of.response_bytes.add(bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.in_flight.sub(1);
        self.of.memory.sub(self.bytes);
        self.of.account.give_back(Resource::Calls, 1);
        self.of.account.give_back(Resource::Memory, self.bytes);
    }
}

/// A quota that something does not fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exceeded {
    pub(crate) resource: Resource,
    holder: Holder,
    side: Side,
    used: usize,
    wanted: usize,
}

impl From<Exceeded> for Status {
    fn from(exceeded: Exceeded) -> Self {
        let Exceeded {
            resource,
            holder,
            side,
            used,
            wanted,
        } = exceeded;
        let setting = resource.setting(holder);
        let who = match (holder, side) {
            (Holder::Application, Side::Client) => "this application",
            (Holder::User, Side::Client) => "all applications of this user",
            (Holder::Application, Side::Server) => "the application that is called",
            (Holder::User, Side::Server) => "all applications of the called one's user",
        };
        let text = match resource {
            Resource::Calls => format!(
                "{setting}: {used} calls for {who} are not over in the service, which is the quota: wait for answers"
            ),
            Resource::Datapaths => format!(
                "{setting}: {used} datapaths for {who} are open in the service, which is the quota: use fewer channels"
            ),
            Resource::Memory => format!(
                "{setting}: the service holds {used} bytes of requests for {who}, and {wanted} more are beyond the \
                 quota: wait for answers"
            ),
        };
        Self::resource_exhausted(format!("{text}, or have the operator raise it")).with_not_run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(holder: Holder, parent: Option<Arc<Account>>, is_shared: bool) -> Arc<Account> {
        let owner = Owner {
            holder,
            side: Side::Client,
            process: Some(1),
            user: Some(2),
            program: String::new(),
        };
        let quota = Quota {
            calls: 2,
            datapaths: 2,
            memory: 100,
        };
        Arc::new(Account::new(owner, quota, parent, is_shared))
    }

    fn text(exceeded: Exceeded) -> String {
        let status = Status::from(exceeded);
        assert!(!status.may_have_run());
        status.message().to_owned()
    }

    #[test]
    fn what_is_taken_is_given_back_whichever_ends_first() {
        is_given_back(false);
        is_given_back(true);
    }

    fn is_given_back(is_shared: bool) {
        let user = account(Holder::User, None, is_shared);
        let [one, other] =
            [(); 2].map(|()| account(Holder::Application, Some(Arc::clone(&user)), is_shared));
        let first = one.open(1).expect("the first");
        let second = other.open(2).expect("two");
        let error = text(one.open(3).expect_err("a third of the user"));
        assert!(error.starts_with("quotas.user.datapaths: 2 "), "{error}");
        let charge = first.charge(60).expect("it fits");
        let error = text(second.charge(41).expect_err("a byte too many"));
        assert!(error.starts_with("quotas.user.memory: "), "{error}");
        let _small = second.charge(40).expect("it fits");
        let error = text(first.charge(0).expect_err("a third call of the user"));
        assert!(error.starts_with("quotas.user.calls: 2 calls"), "{error}");
        // The datapath of a call that goes on is not free yet.
        drop(first);
        assert_eq!((one.datapaths.get(), one.memory.get()), (1, 60));
        let share = Arc::clone(&charge.of);
        charge.count_response(7);
        let now = |counts: DatapathCounts| [counts.in_flight, counts.memory];
        assert_eq!(now(share.counts()), [1, 60]);
        drop(charge);
        let counts = share.counts();
        assert_eq!(now(counts), [0, 0]);
        let so_far = [counts.calls, counts.request_bytes, counts.response_bytes];
        assert_eq!(so_far, [1, 60, 7]);
        drop(share);
        let of = |account: &Account| {
            [&account.calls, &account.datapaths, &account.memory].map(SharedCount::get)
        };
        assert_eq!(
            (of(&one), of(&other), of(&user)),
            ([0; 3], [1, 1, 40], [1, 1, 40])
        );
        assert_eq!((one.refused.get(), user.refused.get()), (0, 3));
    }
}
