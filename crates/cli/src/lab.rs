//! The subcommands that measure and simulate. They need the benchmarks, tonic and the simulator, so
//! the command has them only with the feature `lab`.

mod bench;
mod curves;
mod demo;
mod role;
mod sim;
mod svg;

use clap::Subcommand;

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a key-value store over Starling and over gRPC, checks every answer, and compares the two.
    Demo(demo::Arguments),
    /// Measures Starling beside floors and baselines.
    Bench(bench::Arguments),
    /// Runs the protocol in a simulated datacenter.
    Sim(sim::Arguments),
    /// A process that another subcommand started: a server, or a load generator.
    #[command(hide = true)]
    Role(role::Arguments),
}

pub(crate) fn run(command: &Command) -> Result<(), CliError> {
    match command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
        Command::Role(arguments) => role::run(arguments),
    }
}
