//! `starling service`: the managed plane's service, one for each host.

mod notify;
mod unit;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use starling::Idle;
use starling_service::{Service, ServiceConfig};

use self::unit::UnitArguments;
use crate::ctl::file::ServiceFile;
use crate::error::CliError;
use crate::output;

/// How often to check whether the service has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the service, until SIGINT (Ctrl-C) or SIGTERM.
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Prints a unit of systemd that runs this program as the service, hardened.
    #[command(after_help = UNIT_HELP)]
    Unit(UnitArguments),
}

const UNIT_HELP: &str = "\
Examples, as root:
  useradd --system --no-create-home starling
  starling service unit > /etc/systemd/system/starling.service
  systemctl enable --now starling

Applications trust the service by its user: STARLING_SERVICE=starling?users=UID, with the number that
`id -u starling` prints. So does `starling ctl`, run as root.";

#[derive(Debug, Args)]
struct RunArguments {
    /// Settings and policies, in YAML or JSON. What the command line says counts more.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The name of the service: 1 to 60 letters, digits, dots, dashes and underscores. Default: starling.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Takes applications of all users, and not only of this one and root.
    #[arg(long)]
    any_user: bool,
    /// How its threads wait for work.
    #[arg(long, value_enum, default_value_t = IdleName::Adaptive)]
    idle: IdleName,
}

const RUN_HELP: &str = "\
Applications of this host call and are called through the service, with no change to them: set
STARLING_SERVICE to its name, and start them. Their channels reach the addresses that they always had, and
their servers are reached at those. Without the variable they do all that themselves.

The service prints a line `service NAME` when applications can use it, and a line `metrics URL` behind it
if it shows metrics. It tells systemd then, if that has started it (`starling service unit`). If it ends,
the calls that pass it end with UNAVAILABLE. Applications find it again when it is back.

The file of --config may have any of these:

  name: starling
  any_user: false
  quotas:            # of an application, and of all of a user together; `starling ctl list` shows what they have
    {calls: 16384, datapaths: 256, memory: 128MiB, user: {calls: 49152, datapaths: 768, memory: 384MiB}}
  runtimes: 1        # threads that drive the datapaths of applications, at most: as many as the load needs
  cores: []          # where they run, the n-th on the n-th: all of them on all cores if there is none
  dedicated: {}      # IDENTITY: NUMBER, a runtime from 0 on that only applications of an identity are in
  identities: {}     # NAME: {user: UID, program: NAME, exe: /PATH}, for `identity` in scopes of policies
  plugins: []        # libraries with kinds of policies, by paths from the root: `starling ctl plugin --help`
  policies: []       # as `starling ctl apply` takes them
  schemas: []        # .proto files of methods that policies look into
  metrics: 127.0.0.1:9100       # shows what policies count at http://127.0.0.1:9100/metrics
  otlp: http://127.0.0.1:4318   # a collector of spans: OTLP over HTTP

Examples:
  starling service run
  STARLING_SERVICE=starling starling serve kv --address udp://0.0.0.0:9000
  STARLING_SERVICE=starling starling call udp://10.0.0.7:9000";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdleName {
    /// Never sleep: the lowest latency, for a whole core.
    Spin,
    /// Spin for 20 to 200 us, by what spins have brought lately, then sleep.
    Adaptive,
    /// Sleep at once.
    Block,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    match &arguments.command {
        Command::Run(arguments) => serve(arguments),
        Command::Unit(arguments) => unit::print(arguments),
    }
}

fn serve(run: &RunArguments) -> Result<(), CliError> {
    let mut config = ServiceConfig::default();
    let file = run.config.as_deref().map(ServiceFile::read).transpose()?;
    let file = file.unwrap_or_default();
    if let Some(path) = &run.config {
        config.policies = file.policies(path)?;
        config.schemas = file.schemas(path)?;
        config.identities = file.identities(path)?;
    }
    config.plugins.clone_from(&file.plugins);
    if let Some(name) = run.name.as_ref().or(file.name.as_ref()) {
        config.name.clone_from(name);
    }
    config.quotas = file.quotas.quotas();
    config.any_user = run.any_user || file.any_user == Some(true);
    config.metrics.clone_from(&file.metrics);
    config.otlp.clone_from(&file.otlp);
    config.runtimes = file.runtimes.unwrap_or(config.runtimes);
    config.cores.clone_from(&file.cores);
    config.dedicated = file.dedicated.into_iter().collect();
    let name = config.name.clone();
    config.endpoint.idle = match run.idle {
        IdleName::Spin => Idle::Spin,
        IdleName::Adaptive => Idle::default(),
        IdleName::Block => Idle::Block,
    };
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals = signals.map_err(|source| CliError::System {
        attempt: "listening to signals",
        source,
    })?;
    let service = Service::start(config)?;
    let page = service.metrics_address();
    let page = page.map_or(String::new(), |at| format!("metrics http://{at}/metrics\n"));
    output::print(&format!("service {name}\n{page}"))?;
    notify::tell("READY=1");
    while service.is_running() {
        if signals.pending().next().is_some() {
            notify::tell("STOPPING=1");
            return Ok(());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Ok(service.wait()?)
}
