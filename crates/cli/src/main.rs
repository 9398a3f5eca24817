//! The `starling` command.
//!
//! Each subcommand is a module with its arguments and a function that runs them. Results go to
//! standard output; progress and errors go to standard error.

mod bench;
mod call;
mod curves;
mod demo;
mod doctor;
mod error;
mod output;
mod role;
mod serve;
mod sim;

use std::fmt::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Starling: datacenter RPC in microseconds.
#[derive(Debug, Parser)]
#[command(name = "starling", version, after_help = EXIT_STATUS, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_STATUS: &str = "\
Exit status:
  0  everything was done, and every answer was right
  1  something failed; standard error says what
  2  the command line was wrong
`starling call` has more; see its help.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a key-value store over Starling and over gRPC, checks every answer, and compares.
    Demo(demo::Arguments),
    /// Serves an echo or a key-value store, to try things on.
    Serve(serve::Arguments),
    /// Calls any method of any server with JSON, or lists what there is.
    Call(call::Arguments),
    /// Measures Starling beside its floors and its peers.
    Bench(bench::Arguments),
    /// Checks what each plane would give on this host, and what it lacks.
    Doctor(doctor::Arguments),
    /// Runs the protocol in a simulated datacenter.
    Sim(sim::Arguments),
    /// Prints a completion script for a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// A process that another subcommand started: a server, or a load generator.
    #[command(hide = true)]
    Role(role::Arguments),
}

const COMPLETIONS_HELP: &str = "\
Examples:
  starling completions bash > ~/.local/share/bash-completion/completions/starling
  starling completions zsh > ~/.zfunc/_starling
  starling completions fish > ~/.config/fish/completions/starling.fish";

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Call(arguments) => call::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Completions { shell } => output::print(&completions(shell)),
        Command::Role(arguments) => role::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough of it.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            error.exit_code()
        }
    }
}

/// The command line without what is hidden: completions would offer that, too.
fn for_people() -> clap::Command {
    let all = Cli::command();
    let subcommands: Vec<_> = all
        .get_subcommands()
        .filter(|subcommand| !subcommand.is_hide_set())
        .cloned()
        .collect();
    clap::Command::new("starling")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(subcommands)
}

/// The completion script for a shell.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut for_people(), "starling", &mut script);
    let mut script = String::from_utf8(script).expect("our command line is text");
    if shell == Shell::Fish {
        // The generator leaves out what stands without an option, and fish offers files then.
        for subcommand in for_people().get_subcommands() {
            for argument in subcommand.get_positionals() {
                let values = argument.get_possible_values();
                let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
                if !values.is_empty() {
                    writeln!(
                        script,
                        "complete -c starling -n \"__fish_starling_using_subcommand {}\" -f -a \"{}\"",
                        subcommand.get_name(),
                        values.join(" ")
                    )
                    .expect("a string takes all");
                }
            }
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_offer_what_the_help_shows() {
        let offered = for_people();
        let names: Vec<_> = offered.get_subcommands().map(|c| c.get_name()).collect();
        assert_eq!(
            names,
            [
                "demo",
                "serve",
                "call",
                "bench",
                "doctor",
                "sim",
                "completions"
            ]
        );
    }

    #[test]
    fn fish_offers_the_services_and_no_files() {
        let serve = "using_subcommand serve\" -f -a \"echo kv\"";
        assert!(completions(Shell::Fish).contains(serve));
    }
}
