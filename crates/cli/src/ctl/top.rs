//! `starling ctl top`: what goes on in a service, live.
//!
//! | module | holds |
//! |---|---|
//! | `rates` | two listings, and what happened between them |
//! | `screen` | the terminal: keys, and a screen of its own |

mod rates;
mod screen;

use std::io::{IsTerminal, stdin, stdout};
use std::time::Duration;

use clap::Args;
use starling_policy::parse_duration;

use self::rates::{Rates, Sample};
use self::screen::Screen;
use super::Service;
use crate::error::CliError;
use crate::output;

/// The shortest interval.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    /// Between two looks: a number and a unit, like 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Looks twice, prints what happened between, and ends. It needs no terminal.
    #[arg(long)]
    once: bool,
    /// Prints a JSON object on a line for each interval.
    #[arg(long)]
    json: bool,
}

pub(super) const HELP: &str = "\
Shows for each policy how many calls a second it lets pass, delays and refuses, and how many it holds; for each
datapath its calls a second, those in flight, the bytes of their requests that the service holds, and bytes a
second of requests and responses. The busiest datapaths come first. q ends it.";

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text).filter(|interval| *interval >= MIN_INTERVAL);
    interval.ok_or_else(|| "write a number and a unit from 50ms on, like 500ms or 2s".to_owned())
}

pub(super) fn run(service: &Service, name: &str, arguments: &TopArguments) -> Result<(), CliError> {
    let is_live = !arguments.once && !arguments.json;
    if is_live && !(stdin().is_terminal() && stdout().is_terminal()) {
        return Err(CliError::Usage(
            "standard input and output are no terminal: use --once or --json".to_owned(),
        ));
    }
    let mut before = Sample::of(service.list()?.message());
    if is_live {
        return show(service, name, arguments.interval, before);
    }
    loop {
        std::thread::sleep(arguments.interval);
        let now = Sample::of(service.list()?.message());
        let rates = Rates::between(&before, &now);
        output::print(&match arguments.json {
            true => format!("{}\n", rates.json()),
            false => rates.text(),
        })?;
        if arguments.once {
            return Ok(());
        }
        before = now;
    }
}

/// Shows rates until a key ends it.
fn show(
    service: &Service,
    name: &str,
    interval: Duration,
    mut before: Sample,
) -> Result<(), CliError> {
    let mut screen = Screen::open()?;
    screen.draw(&format!(
        "service {name}: the first look takes {interval:?}; q ends it\n"
    ))?;
    while !screen.is_left_within(interval)? {
        let now = Sample::of(service.list()?.message());
        let rates = Rates::between(&before, &now);
        screen.draw(&format!(
            "service {name}, every {interval:?}; q ends it\n\n{}",
            rates.text()
        ))?;
        before = now;
    }
    Ok(())
}
