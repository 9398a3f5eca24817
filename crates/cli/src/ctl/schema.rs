//! Schemas for a service: from `.proto` files, or from servers that describe themselves.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;
use starling::managed::{KnownMethods, ListRequest, SchemaAddition};
use starling::{CallOptions, Channel, Response, block_on};
use starling_dynamic::DynamicClient;
use starling_message::schema::Schema;

use super::{Service, TIMEOUT};
use crate::error::CliError;
use crate::output;

/// Services that the library itself offers: no policy is for them.
const OWN: [&str; 3] = [
    "starling.reflection.Reflection",
    "starling.introspection.Introspection",
    "grpc.health.v1.Health",
];

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Makes methods known to the service, in place of those of the same paths. Prints them.
    Add {
        /// A .proto file, or the address of a server that describes itself.
        #[arg(value_name = "FILE|ADDRESS", required = true)]
        from: Vec<String>,
        /// Where files are searched that a .proto file imports. Default: its own directory.
        #[arg(short = 'I', long = "include", value_name = "DIRECTORY")]
        includes: Vec<PathBuf>,
    },
    /// Lists the methods that were added.
    List {
        /// Prints a JSON array of paths.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(service: &Service, command: &Command) -> Result<(), CliError> {
    match command {
        Command::Add { from, includes } => {
            let mut schemas = Vec::new();
            for from in from {
                schemas.extend(match from.contains("://") {
                    true => of_server(from)?,
                    false => of_file(Path::new(from), includes)?,
                });
            }
            // All can be read, before anything changes.
            for schema in schemas {
                let addition = SchemaAddition::new().with_schema(&schema.to_bytes());
                output::print(&lines(&service.0.add_schema(&addition).wait()?))?;
            }
            Ok(())
        }
        Command::List { json } => {
            let known = service.0.list_schemas(&ListRequest::new()).wait()?;
            output::print(&match json {
                true => {
                    let methods = known.message().methods().iter().collect::<Vec<_>>();
                    format!("{}\n", json!(methods))
                }
                false => lines(&known),
            })
        }
    }
}

fn lines(known: &Response<KnownMethods>) -> String {
    let methods = known.message().methods().iter();
    let lines = methods.map(|path| format!("{}\n", path.trim_start_matches('/')));
    lines.collect()
}

/// The schemas of the services in a `.proto` file.
pub(crate) fn of_file(path: &Path, includes: &[PathBuf]) -> Result<Vec<Schema>, CliError> {
    let own = [path.parent().unwrap_or(Path::new("")).to_owned()];
    let includes = if includes.is_empty() { &own } else { includes };
    let schemas = starling_build::schemas(&[path], includes);
    let schemas = schemas.map_err(|error| CliError::Usage(error.to_string()))?;
    match schemas.is_empty() {
        false => Ok(schemas),
        true => Err(CliError::Usage(format!(
            "{}: there is no service in it",
            path.display()
        ))),
    }
}

/// The schemas of the services of a server.
fn of_server(address: &str) -> Result<Vec<Schema>, CliError> {
    let options = CallOptions::with_timeout(TIMEOUT);
    let client = DynamicClient::new(Channel::lazy(address)?).with_options(options);
    let names = block_on(client.services())?;
    let names = names.iter().filter(|name| !OWN.contains(&name.as_str()));
    let mut schemas = Vec::new();
    for name in names {
        let service = block_on(client.service(name))?;
        let schema = starling_build::schema_of(&service);
        schemas.push(schema.map_err(|error| CliError::Usage(format!("{address}: {error}")))?);
    }
    Ok(schemas)
}
