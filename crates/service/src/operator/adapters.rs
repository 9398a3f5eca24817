//! The adapters of applications, for the operator: which there are, and others in their place.

use std::sync::Arc;

use starling::Status;
use starling::managed::{AdaptersMut, AdaptersUpgradedMut};

use super::Operations;
use crate::adapter::AdapterSettings;
use crate::device::DeviceKind;
use crate::runtime::{AdapterReport, Application, Command, Replacement, Upgraded};

impl Operations {
    /// Those of all runtimes, with the number of each.
    pub(super) fn fill_adapters(&self, mut response: AdaptersMut<'_>) -> Result<(), Status> {
        let reports = self.ask_all(|reply| Command::Adapters { reply })?;
        for (runtime, mut report) in reports.into_iter().enumerate() {
            report.sort_by(|one, other| {
                let key = |of: &AdapterReport| (process_of(of), of.kind.scheme(), of.link);
                key(one).cmp(&key(other))
            });
            for of in report {
                let mut adapters = response.adapters_mut();
                let mut adapter = adapters.push_default();
                adapter.set_kind(of.kind.scheme());
                if let Some(process) = process_of(&of) {
                    adapter.set_process(process);
                }
                adapter.set_runtime(runtime as u32);
                adapter.set_address(&of.local_address);
                adapter.set_settings(&of.settings.to_json());
                adapter.set_datapaths(of.datapaths as u32);
                adapter.set_in_flight(of.in_flight as u64);
                adapter.set_is_replaced(of.is_replaced);
            }
        }
        Ok(())
    }

    /// Has new adapters take the place of those of a kind, of all applications or of one.
    pub(super) fn upgrade_adapters_of(
        &self,
        kind: &str,
        process: Option<u32>,
        changes: &str,
        mut response: AdaptersUpgradedMut<'_>,
    ) -> Result<(), Status> {
        let Some(kind) = DeviceKind::named(kind) else {
            let text = format!("no adapters are of the kind {kind:?}: write udp, tcp, shm or xdp");
            return Err(Status::invalid_argument(text));
        };
        let scheme = kind.scheme();
        let _unmoved = self.shared.changing.lock();
        let before = self.shared.adapter_settings(scheme);
        let of_all = Arc::new(before.changed(scheme, changes)?);
        if process.is_none() {
            // Also those have it that come meanwhile.
            self.shared.set_adapter_settings(scheme, of_all);
        }
        let revert = || {
            if process.is_none() {
                self.shared
                    .set_adapter_settings(scheme, Arc::clone(&before));
            }
        };
        let lists = self.replacements(kind, process, changes);
        let lists = lists.inspect_err(|_| revert())?;
        // The runtimes replace them, also if this does not hear of it.
        let upgraded = self.replace_adapters(lists)?;
        if upgraded.adapters == 0 && !upgraded.stayed.is_empty() {
            revert();
        }
        response.set_adapters(upgraded.adapters as u32);
        response.set_datapaths(upgraded.datapaths as u32);
        for stayed in &upgraded.stayed {
            response.stayed_mut().push(stayed);
        }
        Ok(())
    }

    /// What is to take the places of adapters, for each runtime.
    fn replacements(
        &self,
        kind: DeviceKind,
        process: Option<u32>,
        changes: &str,
    ) -> Result<Vec<Vec<Replacement>>, Status> {
        let reports = self.ask_all(|reply| Command::Adapters { reply })?;
        let is_meant = |of: &AdapterReport| {
            let is_of_application = process.is_none() || process_of(of) == process;
            !of.is_replaced && of.kind.scheme() == kind.scheme() && is_of_application
        };
        // All are open before one of them has a place.
        let replacement = |of: AdapterReport| self.replacement(of, changes);
        let lists = reports.into_iter().map(|report| {
            let meant = report.into_iter().filter(is_meant);
            meant.map(replacement).collect::<Result<Vec<_>, _>>()
        });
        let lists = lists.collect::<Result<Vec<_>, Status>>()?;
        if let Some(process) = process.filter(|_| lists.iter().all(Vec::is_empty)) {
            let text = format!("process {process} calls by no {} adapter", kind.scheme());
            return Err(Status::not_found(text));
        }
        Ok(lists)
    }

    fn replace_adapters(&self, lists: Vec<Vec<Replacement>>) -> Result<Upgraded, Status> {
        let mut lists = lists.into_iter();
        let upgraded = self.ask_all(|reply| Command::ReplaceAdapters {
            list: lists.next().unwrap_or_default(),
            reply,
        });
        let upgraded = upgraded.map_err(|status| {
            let text = format!(
                "{}; adapters are replaced when it goes on",
                status.message()
            );
            Status::new(status.code(), text)
        })?;
        let mut sum = Upgraded::default();
        for mut of in upgraded {
            sum.adapters += of.adapters;
            sum.datapaths += of.datapaths;
            sum.stayed.append(&mut of.stayed);
        }
        Ok(sum)
    }

    /// A link that is as an adapter, but for changes of its settings. It is opened here: runtimes have no time for it.
    fn replacement(&self, of: AdapterReport, changes: &str) -> Result<Replacement, Status> {
        let settings: AdapterSettings = of.settings.changed(of.kind.scheme(), changes)?;
        let (clock, config) = (&self.shared.clock, &self.shared.config);
        let link = of.kind.client(&of.address, clock, config, &settings);
        let link = link.map_err(|error| {
            Status::failed_precondition(format!("{}: {error}; nothing has changed", of.address))
        })?;
        Ok(Replacement {
            application: of.application,
            old: of.link,
            address: of.address,
            link,
            settings: Arc::new(settings),
        })
    }
}

fn process_of(of: &AdapterReport) -> Option<u32> {
    match of.application {
        Application::Process(process) => Some(process),
        Application::Peer(..) => None,
    }
}
