//! Quotas: how much one application, and all applications of one user, may have of the service at once.
//!
//! What applications have the service do, and what is done for them by others, count apart: their callers cannot use up
//! what they call with.

use crate::error::ServiceError;

/// How much one may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Calls that are not over: those that wait in the service, and those at servers.
    pub calls: usize,
    /// Datapaths: of side `client` one for each session of a channel, of side `server` one for each address.
    pub datapaths: usize,
    /// Bytes of the requests of these calls.
    pub memory: usize,
}

/// The quotas of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Of each application: a process. Default: 16,384 calls, 256 datapaths, 128 MiB, a quarter of what the endpoint
    /// of all applications takes by its defaults.
    pub application: Quota,
    /// Of all applications of one user together. Default: three times as much, so that others always find room.
    pub user: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            application: Quota {
                calls: 16_384,
                datapaths: 256,
                memory: 128 << 20,
            },
            user: Quota {
                calls: 3 * 16_384,
                datapaths: 3 * 256,
                memory: 3 * (128 << 20),
            },
        }
    }
}

impl Quotas {
    /// Whether applications can call at all.
    ///
    /// # Errors
    /// If a quota is zero: its setting.
    pub fn check(&self) -> Result<(), ServiceError> {
        let of = |quota: &Quota| [quota.calls, quota.datapaths, quota.memory];
        let values = [of(&self.application), of(&self.user)];
        let settings = Holder::ALL.map(|holder| Resource::ALL.map(|of| of.setting(holder)));
        let pairs = values.iter().flatten().zip(settings.iter().flatten());
        match pairs.into_iter().find(|(value, _)| **value == 0) {
            Some((_, setting)) => Err(ServiceError::ZeroQuota { setting }),
            None => Ok(()),
        }
    }
}

/// Who has a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Application,
    User,
}

impl Holder {
    const ALL: [Self; 2] = [Self::Application, Self::User];
}

/// What there is a quota of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Calls,
    Datapaths,
    Memory,
}

impl Resource {
    const ALL: [Self; 3] = [Self::Calls, Self::Datapaths, Self::Memory];

    /// As it is written in a service's file.
    pub(crate) fn setting(self, holder: Holder) -> &'static str {
        match (holder, self) {
            (Holder::Application, Self::Calls) => "quotas.calls",
            (Holder::Application, Self::Datapaths) => "quotas.datapaths",
            (Holder::Application, Self::Memory) => "quotas.memory",
            (Holder::User, Self::Calls) => "quotas.user.calls",
            (Holder::User, Self::Datapaths) => "quotas.user.datapaths",
            (Holder::User, Self::Memory) => "quotas.user.memory",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_of_zero_is_refused_by_its_setting() {
        assert!(Quotas::default().check().is_ok());
        let mut quotas = Quotas::default();
        quotas.user.memory = 0;
        let error = quotas.check().expect_err("nothing fits").to_string();
        assert!(error.starts_with("quotas.user.memory: "), "{error}");
        quotas.application.datapaths = 0;
        let error = quotas.check().expect_err("nothing fits").to_string();
        assert!(error.starts_with("quotas.datapaths: "), "{error}");
    }
}
