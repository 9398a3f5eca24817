//! `starling ctl`: manages a running service.
//!
//! | module | holds |
//! |---|---|
//! | `edit` | policies as they are written on a command line |
//! | `file`, `quotas` | policies in a file, and the settings of a service |
//! | `schema` | schemas from files and servers |
//! | `adapter` | the devices by which applications call |
//! | `plugin` | libraries with kinds of policies |
//! | `text`, `json` | listings to read, and for programs |
//! | `top` | what goes on, live |

mod adapter;
mod edit;
pub(crate) mod file;
mod json;
mod plugin;
mod quotas;
pub(crate) mod schema;
mod text;
mod top;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use starling::managed::{
    ListRequest, Listing, MetricsRequest, MoveRequest, OperatorClient, PolicyChange,
    control_address,
};
use starling::{CallOptions, Channel, Response, Status};
use starling_service::{POLICY_KINDS, PolicySpec};

use self::edit::{ScopeArguments, edited, new};
use self::top::TopArguments;
use crate::error::CliError;
use crate::output;

/// How long the service may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The service, by its name: NAME?users=UID if it is another user's.
    #[arg(
        long = "service",
        value_name = "NAME",
        default_value = "starling",
        env = "STARLING_SERVICE",
        global = true
    )]
    service: String,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "\
Calls of applications pass the policies of their service. All changes are live: no application notices,
no call fails, and calls that a policy holds go on when it is taken away. Only the user of the service,
and root, may manage it.

Examples, with `starling service run` in another terminal:
  starling ctl kinds
  starling ctl attach searches rate-limit rate=10000 burst=100 --program frontend
  starling ctl attach chaos fault fail=0.01 code=UNAVAILABLE --method kv.Kv/Get
  starling ctl configure searches rate=20000
  starling ctl schema add hotel.proto
  starling ctl attach guests access-control \"deny=request.customerName == 'Mallory'\" \
    --method hotel.Reservation/Make
  starling ctl list
  starling ctl top
  starling ctl move 4711 --to 1
  starling ctl adapter upgrade udp congestion=timely
  starling ctl detach searches
  starling ctl apply -f policies.yaml --dry-run";

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the policies, what each has done, the datapaths of applications, and what they have beside their quotas.
    List {
        /// Prints one JSON object, with the keys policies, datapaths, runtimes, quotas, refused.
        #[arg(long)]
        json: bool,
    },
    /// Prints what policies have counted, in Prometheus' text format: see the kind metrics.
    Metrics,
    /// Shows what goes on, live: rates of policies, and of the datapaths of applications.
    #[command(after_help = top::HELP)]
    Top(TopArguments),
    /// Lists the kinds of policies that are built in, with settings to begin with. Asks no service.
    Kinds,
    /// Adds a policy, behind all others.
    Attach {
        /// Its name, to change it and take it away by.
        name: String,
        /// Its kind: see `starling ctl kinds`, `starling ctl plugin list`.
        kind: String,
        #[command(flatten)]
        edit: Edit,
    },
    /// Changes settings of a policy, or its scope. It goes on with its state.
    Configure {
        /// Its name.
        name: String,
        #[command(flatten)]
        edit: Edit,
    },
    /// Has a new engine take the place of a policy's, with its state.
    Upgrade {
        /// Its name.
        name: String,
        /// Only says what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Takes a policy away. Calls that it holds go on.
    Detach {
        /// Its name.
        name: String,
        /// Only says what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Has the policies of a file take the place of all: the whole file, or nothing on an error.
    #[command(after_help = APPLY_HELP)]
    Apply {
        /// The file, in YAML or JSON. `-` is standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Only says what would change.
        #[arg(long)]
        dry_run: bool,
    },
    /// Has an application go on in another runtime, with its calls: see `runtimes` of `starling service run`.
    Move {
        /// The application, by its process: see `starling ctl list`.
        process: u32,
        /// The number of the runtime, from 0 on.
        #[arg(long, value_name = "RUNTIME")]
        to: u32,
    },
    /// Methods that policies can look into.
    #[command(subcommand)]
    Schema(schema::Command),
    /// The devices by which applications call.
    #[command(subcommand, after_help = adapter::HELP)]
    Adapter(adapter::Command),
    /// Libraries with kinds of policies.
    #[command(subcommand, after_help = plugin::HELP)]
    Plugin(plugin::Command),
}

const APPLY_HELP: &str = "\
Calls pass the policies in the order of the file:

  policies:
    - name: searches
      kind: rate-limit
      for: {program: frontend, methods: [hotel.Search/Nearby]}
      settings: {rate: 10000, burst: 100, queue: 1000}
    - name: deadline
      kind: timeout
      for: {side: server}
      settings: {at_most: 1s}

`for` may have side (client: calls that applications make, the default; server: calls that come for
them), identity (of the service's file), program, process, user, server (the address) and methods.
Without it, all calls pass the policy. A policy of a plug-in may have on_failure (refuse, pass).
Policies that have not changed go on as they are.";

#[derive(Debug, Args)]
struct Edit {
    /// Settings: KEY=VALUE. The value is JSON, or a text.
    #[arg(value_name = "KEY=VALUE", value_parser = edit::parse_setting)]
    settings: Vec<(String, Value)>,
    #[command(flatten)]
    scope: ScopeArguments,
    /// What becomes of requests once the plug-in that decides about them has failed. Default: refuse.
    #[arg(long, value_enum)]
    on_failure: Option<edit::OnFailureName>,
    /// Only says what would change.
    #[arg(long)]
    dry_run: bool,
}

/// A service, as its operator calls it.
struct Service(OperatorClient<Channel>);

impl Service {
    fn new(name: &str) -> Result<Self, CliError> {
        let channel = Channel::builder(&control_address(name)?).direct().lazy()?;
        let options = CallOptions::with_timeout(TIMEOUT);
        Ok(Self(OperatorClient::new(channel).with_options(options)))
    }

    fn list(&self) -> Result<Response<Listing>, Status> {
        self.0.list(&ListRequest::new()).wait()
    }

    /// The policy with this name.
    fn policy(&self, name: &str) -> Result<PolicySpec, CliError> {
        let listing = self.list()?;
        for policy in listing.message().policies().iter() {
            let spec = PolicySpec::parse(policy.policy());
            let spec = spec.map_err(|error| CliError::Usage(format!("the service's: {error}")))?;
            if spec.name == name {
                return Ok(spec);
            }
        }
        Err(CliError::Usage(format!(
            "no policy is named {name:?}: `starling ctl list` shows all"
        )))
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let service = || Service::new(&arguments.service);
    let change =
        |what: &str, dry_run: &bool| PolicyChange::new().with_what(what).with_dry_run(*dry_run);
    let (response, dry_run) = match &arguments.command {
        Command::List { json } => {
            let listing = service()?.list()?;
            return output::print(&match json {
                true => format!("{}\n", json::listing(listing.message())),
                false => text::listing(listing.message()),
            });
        }
        Command::Move { process, to } => {
            let request = MoveRequest::new().with_process(*process).with_runtime(*to);
            let moved = service()?.0.move_application(&request).wait()?;
            return output::print(&text::moved(moved.message().datapaths(), *to));
        }
        Command::Schema(command) => return schema::run(&service()?, command),
        Command::Adapter(command) => return adapter::run(&service()?, command),
        Command::Plugin(command) => return plugin::run(&service()?, command),
        Command::Metrics => {
            let response = service()?.0.metrics(&MetricsRequest::new()).wait()?;
            return output::print(response.message().text());
        }
        Command::Top(top) => return top::run(&service()?, &arguments.service, top),
        Command::Kinds => return output::print(&text::kinds(POLICY_KINDS)),
        Command::Attach { name, kind, edit } => {
            let spec = new(name, kind, edit)?;
            let change = change(&spec.to_json(), &edit.dry_run);
            (service()?.0.attach(&change).wait()?, edit.dry_run)
        }
        Command::Configure { name, edit } => {
            let service = service()?;
            let spec = edited(service.policy(name)?, edit)?;
            let change = change(&spec.to_json(), &edit.dry_run);
            (service.0.configure(&change).wait()?, edit.dry_run)
        }
        Command::Upgrade { name, dry_run } => {
            let response = service()?.0.upgrade(&change(name, dry_run)).wait()?;
            (response, *dry_run)
        }
        Command::Detach { name, dry_run } => {
            let response = service()?.0.detach(&change(name, dry_run)).wait()?;
            (response, *dry_run)
        }
        Command::Apply { file, dry_run } => {
            let policies = file::read_policies(file)?;
            let response = service()?.0.apply(&change(&policies, dry_run)).wait()?;
            (response, *dry_run)
        }
    };
    let changes: Vec<&str> = response.message().changes().iter().collect();
    output::print(&text::changes(&changes, dry_run))
}
