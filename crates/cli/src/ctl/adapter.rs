//! The devices by which applications call.

use std::fmt::Write;

use clap::Subcommand;
use serde_json::{Map, Value, json};
use starling::managed::{AdapterUpgrade, AdapterView, AdaptersView, ListRequest};

use super::text::{number, row, shown, table};
use super::{Service, edit};
use crate::error::CliError;
use crate::output;

pub(super) const HELP: &str = "\
An adapter is the device, with its session protocol, by which the service calls servers for an application.
A new one takes its place under load: new calls go by it as soon as its session with the same server is open,
calls and streams that run end where they are. What the service listens at for applications stays as it is.

Settings: congestion (off, timely, dctcp) and credits of all; ecn of udp and xdp; max_datagram of udp and tcp;
gso, gro, rx_buffer_bytes and tx_buffer_bytes of udp. Those that are not given stay, null takes one back.

Examples:
  starling ctl adapter list
  starling ctl adapter upgrade udp gso=false max_datagram=1400
  starling ctl adapter upgrade udp congestion=timely --process 4711
  starling ctl adapter upgrade tcp";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Lists them, with what was set.
    List {
        /// Prints a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Has new ones take the place of those of a kind, under load.
    Upgrade {
        /// udp, tcp, shm or xdp.
        kind: String,
        /// Settings: KEY=VALUE. The value is JSON, or a text.
        #[arg(value_name = "KEY=VALUE", value_parser = edit::parse_setting)]
        settings: Vec<(String, Value)>,
        /// Only those of this application. Else those of all, also of applications that come later.
        #[arg(long, value_name = "PID")]
        process: Option<u32>,
    },
}

pub(super) fn run(service: &Service, command: &Command) -> Result<(), CliError> {
    match command {
        Command::List { json } => {
            let all = service.0.list_adapters(&ListRequest::new()).wait()?;
            output::print(&match json {
                true => format!("{}\n", objects(all.message())),
                false => lines(all.message()),
            })
        }
        Command::Upgrade {
            kind,
            settings,
            process,
        } => {
            let mut upgrade = AdapterUpgrade::new().with_kind(kind);
            if !settings.is_empty() {
                let settings: Map<String, Value> = settings.iter().cloned().collect();
                upgrade.set_settings(&Value::Object(settings).to_string());
            }
            if let Some(process) = process {
                upgrade.set_process(*process);
            }
            let upgraded = service.0.upgrade_adapters(&upgrade).wait()?;
            let upgraded = upgraded.message();
            output::print(&done(upgraded.adapters(), upgraded.datapaths()))?;
            let stayed = upgraded.stayed();
            if stayed.is_empty() {
                return Ok(());
            }
            let mut text = "these datapaths stay as they are, and lose nothing:".to_owned();
            for line in stayed.iter() {
                let _ = write!(text, "\n  {}", shown(line));
            }
            Err(CliError::Stayed(text))
        }
    }
}

fn done(adapters: u32, datapaths: u32) -> String {
    let of = |number: u32, name: &str| match number {
        0 => format!("no {name}s"),
        1 => format!("one {name}"),
        _ => format!("{number} {name}s"),
    };
    let (adapters, datapaths) = (of(adapters, "adapter"), of(datapaths, "datapath"));
    format!("upgraded {adapters}, with {datapaths}\n")
}

fn lines(adapters: AdaptersView<'_>) -> String {
    let mut rows = vec![row(&[
        "KIND",
        "PROCESS",
        "RUNTIME",
        "ADDRESS",
        "DATAPATHS",
        "CALLS",
        "STATE",
        "SETTINGS",
    ])];
    rows.extend(adapters.adapters().iter().map(|of| {
        vec![
            of.kind().to_owned(),
            number(of.process_opt()),
            of.runtime().to_string(),
            of.address().to_owned(),
            of.datapaths().to_string(),
            of.in_flight().to_string(),
            state(of).to_owned(),
            of.settings().to_owned(),
        ]
    }));
    match rows.len() {
        1 => "no adapters\n".to_owned(),
        _ => table(&rows),
    }
}

fn state(of: AdapterView<'_>) -> &'static str {
    match of.is_replaced() {
        true => "replaced",
        false => "in use",
    }
}

fn objects(adapters: AdaptersView<'_>) -> Value {
    let object = |of: AdapterView<'_>| {
        let settings: Value = serde_json::from_str(of.settings()).unwrap_or_default();
        json!({
            "kind": of.kind(),
            "process": of.process_opt(),
            "runtime": of.runtime(),
            "address": of.address(),
            "settings": settings,
            "datapaths": of.datapaths(),
            "in_flight": of.in_flight(),
            "is_replaced": of.is_replaced(),
        })
    };
    Value::Array(adapters.adapters().iter().map(object).collect())
}

#[cfg(test)]
mod tests {
    use super::done;

    #[test]
    fn an_operator_reads_what_was_upgraded() {
        assert_eq!(done(0, 0), "upgraded no adapters, with no datapaths\n");
        assert_eq!(done(1, 1), "upgraded one adapter, with one datapath\n");
        assert_eq!(done(2, 3), "upgraded 2 adapters, with 3 datapaths\n");
    }
}
