//! The `starling` command.
//!
//! Each subcommand is a module with its arguments and a function that runs them. Results go to
//! standard output; progress and errors go to standard error.
//!
//! | module | subcommands | built |
//! |---|---|---|
//! | `serve`, `call`, `service`, `ctl`, `health`, `inspect`, `doctor` | what an operator needs | always |
//! | `lab` | `demo`, `bench`, `sim`: they need the benchmarks, tonic and the simulator | with the feature `lab`, a default one |
//! | `no_lab` | the same names, each an error that says how to get them | without it |

mod call;
mod ctl;
mod doctor;
mod error;
mod health;
mod inspect;
#[cfg(feature = "lab")]
mod lab;
#[cfg(not(feature = "lab"))]
#[path = "no_lab.rs"]
mod lab;
mod metadata;
mod output;
mod serve;
mod service;

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
`starling call`, `starling health` and `starling inspect` have more; see their help.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves an echo or a key-value store, for trials.
    Serve(serve::Arguments),
    /// Calls any method of any server with JSON, or lists the services and methods of a server.
    Call(call::Arguments),
    /// Runs the service through which the applications of this host call and are called.
    Service(service::Arguments),
    /// Manages a running service: its policies, live, and what passes them.
    Ctl(ctl::Arguments),
    /// Asks a server whether it, or one of its services, can be called now.
    Health(health::Arguments),
    /// Shows what a server's process does now: threads, sessions, channels, calls.
    Inspect(inspect::Arguments),
    /// Checks what each device can do on this host, and what it lacks.
    Doctor(doctor::Arguments),
    #[command(flatten)]
    Lab(lab::Command),
    /// Prints a completion script for a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

const COMPLETIONS_HELP: &str = "\
Examples:
  starling completions bash > ~/.local/share/bash-completion/completions/starling
  starling completions zsh > ~/.zfunc/_starling
  starling completions fish > ~/.config/fish/completions/starling.fish";

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Call(arguments) => call::run(&arguments),
        Command::Service(arguments) => service::run(&arguments),
        Command::Ctl(arguments) => ctl::run(&arguments),
        Command::Health(arguments) => health::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Lab(command) => lab::run(&command),
        Command::Completions { shell } => output::print(&completions(shell)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output, such as `head`, has ended.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", output::harmless(&error.to_string()));
            error.exit_code()
        }
    }
}

/// The command line without hidden subcommands, which completions would offer too.
fn visible() -> clap::Command {
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
    clap_complete::generate(shell, &mut visible(), "starling", &mut script);
    let mut script = String::from_utf8(script).expect("our command line is text");
    if shell == Shell::Fish {
        // The generator leaves positional values out, and fish offers files then.
        for subcommand in visible().get_subcommands() {
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
                    .expect("writing to a string cannot fail");
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
    fn completions_offer_the_subcommands_of_the_help() {
        let offered = visible();
        let names: Vec<_> = offered.get_subcommands().map(|c| c.get_name()).collect();
        let lab: &[&str] = match cfg!(feature = "lab") {
            true => &["demo", "bench", "sim"],
            false => &[],
        };
        let always = [
            "serve", "call", "service", "ctl", "health", "inspect", "doctor",
        ];
        assert_eq!(names, [&always, lab, &["completions"]].concat());
    }

    #[test]
    fn fish_offers_the_services_and_no_files() {
        let serve = "using_subcommand serve\" -f -a \"echo kv\"";
        assert!(completions(Shell::Fish).contains(serve));
    }
}
