//! Plug-ins of a service: libraries with kinds of policies.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};
use starling::managed::{ListRequest, PluginAddition, PluginView, PluginsView};

use super::Service;
use super::text::shown;
use crate::error::CliError;
use crate::output;

pub(super) const HELP: &str = "\
A plug-in is native code with the rights of the service. Its file has to be root's or the service's user's,
and nobody else's to write. The service runs a copy, until it ends. If two have a kind of the same name, new
engines are those of the one that was added last: `starling ctl upgrade` moves a policy to it, with its state.

Examples:
  starling ctl plugin add /usr/lib/starling/libquota_policies.so
  starling ctl plugin list
  starling ctl upgrade searches";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Loads libraries with kinds of policies. Prints the kinds.
    Add {
        /// The library, on the service's host.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Lists those that were added, with their kinds and settings to begin with.
    List {
        /// Prints a JSON array.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(service: &Service, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Add { files } => {
            for file in files {
                let file = std::path::absolute(file).map_err(|source| CliError::File {
                    path: file.clone(),
                    source,
                })?;
                let path = file.to_str().ok_or_else(|| {
                    CliError::Usage(format!("{}: the path is no UTF-8", file.display()))
                })?;
                let addition = PluginAddition::new().with_file(path);
                let added = service.0.add_plugin(&addition).wait()?;
                output::print(&lines(added.message()))?;
            }
            Ok(())
        }
        Command::List { json } => {
            let all = service.0.list_plugins(&ListRequest::new()).wait()?;
            output::print(&match json {
                true => format!("{}\n", objects(all.message())),
                false => lines(all.message()),
            })
        }
    }
}

fn lines(plugins: PluginsView<'_>) -> String {
    let mut text = String::new();
    for plugin in plugins.plugins().iter() {
        let (file, name, version) = (plugin.file(), plugin.name(), plugin.version());
        let _ = writeln!(text, "{} ({name} {version})", shown(file));
        for kind in plugin.kinds().iter() {
            let old = match kind.is_superseded() {
                true => " (a plug-in that was added later has it, too)",
                false => "",
            };
            let _ = writeln!(text, "  {}{old}\n    {}", kind.name(), kind.summary());
            let _ = writeln!(text, "    settings: {}", kind.example());
        }
    }
    text
}

fn objects(plugins: PluginsView<'_>) -> Value {
    let object = |plugin: PluginView<'_>| {
        let kinds = plugin.kinds().iter().map(|kind| {
            json!({
                "name": kind.name(),
                "summary": kind.summary(),
                "example": kind.example(),
                "state_version": kind.state_version(),
                "is_superseded": kind.is_superseded(),
            })
        });
        json!({
            "file": plugin.file(),
            "name": plugin.name(),
            "version": plugin.version(),
            "kinds": kinds.collect::<Vec<_>>(),
        })
    };
    Value::Array(plugins.plugins().iter().map(object).collect())
}
