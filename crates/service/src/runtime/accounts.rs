//! The accounts of a runtime's applications and their users.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use starling_endpoint::Status;
use starling_policy::Side;

use super::identity::Identity;
use super::routes::RouteId;
use super::{Application, Runtime};
use crate::account::{Account, DatapathShare, Exceeded, Owner};
use crate::link::Arrived;
use crate::quota::{Holder, Quotas, Resource};

/// What was refused so far because it was beyond a quota.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    pub(crate) calls: u64,
    pub(crate) datapaths: u64,
    pub(crate) memory: u64,
}

/// Accounts live as long as something is taken from them.
#[derive(Debug)]
pub(crate) struct Accounts {
    quotas: Quotas,
    /// Several runtimes take from them.
    is_shared: bool,
    applications: HashMap<(Side, Application), Weak<Account>>,
    users: HashMap<(Side, Option<u32>), Weak<Account>>,
    pub(crate) refused: Refused,
}

impl Accounts {
    pub(crate) fn new(quotas: Quotas, is_shared: bool) -> Self {
        Self {
            quotas,
            is_shared,
            applications: HashMap::new(),
            users: HashMap::new(),
            refused: Refused::default(),
        }
    }

    /// Takes a datapath of an application.
    pub(super) fn open(
        &mut self,
        application: Application,
        identity: &Identity,
    ) -> Result<Arc<DatapathShare>, Status> {
        let (side, user) = (identity.datapath.side, identity.user);
        let (quotas, is_shared) = (self.quotas, self.is_shared);
        let owner = |holder| Owner {
            holder,
            side,
            process: identity.process,
            user,
            program: identity.datapath.program.clone(),
        };
        let of_user = find(&mut self.users, (side, user), || {
            let owner = Owner {
                process: None,
                program: String::new(),
                ..owner(Holder::User)
            };
            Account::new(owner, quotas.user, None, is_shared)
        });
        let account = find(&mut self.applications, (side, application), || {
            Account::new(
                owner(Holder::Application),
                quotas.application,
                Some(of_user),
                is_shared,
            )
        });
        account
            .open(identity.datapath.id)
            .map_err(|exceeded| self.count(exceeded))
    }

    fn count(&mut self, exceeded: Exceeded) -> Status {
        let refused = &mut self.refused;
        match exceeded.resource {
            Resource::Calls => refused.calls += 1,
            Resource::Datapaths => refused.datapaths += 1,
            Resource::Memory => refused.memory += 1,
        }
        exceeded.into()
    }

    /// All of applications, then all of users.
    pub(crate) fn all(&self) -> Vec<Arc<Account>> {
        let applications = self.applications.values().filter_map(Weak::upgrade);
        let mut all: Vec<_> = applications.collect();
        all.sort_by_key(|account| (account.owner.process, account.owner.side as u8));
        let mut users: Vec<_> = self.users.values().filter_map(Weak::upgrade).collect();
        users.sort_by_key(|account| (account.owner.user, account.owner.side as u8));
        all.append(&mut users);
        all
    }
}

/// The account with this key, which is made if there is none.
fn find<K: Eq + Hash>(
    accounts: &mut HashMap<K, Weak<Account>>,
    key: K,
    make: impl FnOnce() -> Account,
) -> Arc<Account> {
    if let Some(account) = accounts.get(&key).and_then(Weak::upgrade) {
        return account;
    }
    accounts.retain(|_, account| account.strong_count() > 0);
    let account = Arc::new(make());
    accounts.insert(key, Arc::downgrade(&account));
    account
}

impl Runtime {
    /// Takes what a request needs that came for a route.
    pub(super) fn charge(&mut self, route: RouteId, arrived: &mut Arrived) -> Result<(), Status> {
        let Some(route) = self.routes.get(route) else {
            return Ok(());
        };
        let charge = route.share.charge(arrived.request.bytes());
        let count = |exceeded| self.shared.accounts.lock().count(exceeded);
        arrived.charge = Some(charge.map_err(count)?);
        Ok(())
    }
}
