//! `starling inspect`: what a server's process does now, by `starling.introspection.Introspection`, which every
//! Starling server has unless it is switched off.

mod json;
mod text;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use starling::introspection::{
    GetProcessRequest, IntrospectionClient, ListCallsRequest, ListCallsResponse,
    ListSessionsRequest, ListSessionsResponse, Process,
};
use starling::{CallOptions, Channel, Code, Response, Status};

use crate::call::parse_duration;
use crate::error::CliError;
use crate::metadata::Metadata;
use crate::output;

/// Sessions of one thread, or series of calls, that are shown at most.
const MAX_ROWS: usize = 10_000;

/// Clears a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The server: udp://HOST:PORT, tcp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT.
    address: String,
    /// Lists each session, with its credits and its congestion window.
    #[arg(long)]
    sessions: bool,
    /// Looks again and again, and shows calls a second.
    #[arg(long)]
    watch: bool,
    /// How long to wait between two looks of --watch.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// Prints one JSON object for each look.
    #[arg(long)]
    json: bool,
    /// How long one look may take.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    metadata: Metadata,
}

const HELP: &str = "\
Shows what the process of a server does: its threads with their sessions, streams and workers, its
channels, and the calls of each method, if the process measures them (`starling::metrics::enable`, or
`starling serve --metrics`). Nothing of it shows what messages hold.

  threads    WAITING are requests outside their handlers: deferred, nested, in workers. WORKERS are the
             jobs with each worker, + those that wait for one. A thread that does not answer within half a
             second is held up by a handler, or nobody runs its endpoint
  channels   CALLS are those that are not over, of those that may be
  calls      since the process began; p50 and p99 are of calls that ended with OK, rounded up by at most a
             quarter
  sessions   WINDOW and RATE are what the congestion control allows now, - if nothing is congested

Exit status:
  0     everything was shown
  2     the address or another argument was wrong
  64+N  a call ended with status N of gRPC's: 76 UNIMPLEMENTED (the server is closed to introspection, or
        older), 78 UNAVAILABLE (it cannot be reached, or has ended); standard error says CODE: message

Examples, with `starling serve kv --metrics 127.0.0.1:9464` in another terminal:
  starling inspect udp://127.0.0.1:9000
  starling inspect udp://127.0.0.1:9000 --sessions
  starling inspect udp://127.0.0.1:9000 --watch --interval 500ms
  starling inspect udp://127.0.0.1:9000 --json | jq '.threads[].protocol_counts'";

/// One look at a process.
struct Look {
    at: Instant,
    process: Response<Process>,
    calls: Vec<Response<ListCallsResponse>>,
    /// By the number of their thread.
    sessions: Vec<(u64, Vec<Response<ListSessionsResponse>>)>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let channel = Channel::lazy(&arguments.address)?;
    let client = IntrospectionClient::new(channel).with_options(arguments.metadata.options()?);
    let clears = arguments.watch && !arguments.json && std::io::stdout().is_terminal();
    let mut before = None;
    loop {
        let look = look(arguments, &client).map_err(explained)?;
        let shown = match arguments.json {
            true => format!("{}\n", json::of(&look)),
            false => text::of(&look, before.as_ref()),
        };
        let prefix = if clears { CLEAR } else { "" };
        output::print(&format!("{prefix}{shown}"))?;
        if !arguments.watch {
            return Ok(());
        }
        if !arguments.json && !clears {
            output::print("\n")?;
        }
        before = Some(look);
        std::thread::sleep(arguments.interval);
    }
}

/// A server without introspection is told from one that cannot be reached.
fn explained(status: Status) -> Status {
    match status.code() {
        Code::Unimplemented => Status::unimplemented(format!(
            "the server is closed to introspection (ServerBuilder::introspection), or older than it: {}",
            status.message()
        )),
        _ => status,
    }
}

fn look(arguments: &Arguments, client: &IntrospectionClient<Channel>) -> Result<Look, Status> {
    let until = Instant::now() + arguments.timeout;
    let options = || CallOptions::with_timeout(until.saturating_duration_since(Instant::now()));
    let process = client
        .get_process_with(&GetProcessRequest::new(), &options())
        .wait()?;
    let at = Instant::now();
    let mut calls = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next.filter(|from| (*from as usize) < MAX_ROWS) {
        let request = ListCallsRequest::new().with_from(from);
        let page = client.list_calls_with(&request, &options()).wait()?;
        next = page.message().next_opt();
        calls.push(page);
    }
    let mut sessions = Vec::new();
    for thread in process.message().threads().iter() {
        if arguments.sessions && thread.answered() {
            let pages = list_sessions(client, thread.number(), &options)?;
            sessions.push((thread.number(), pages));
        }
    }
    Ok(Look {
        at,
        process,
        calls,
        sessions,
    })
}

/// All sessions of a thread, as far as it answers.
fn list_sessions(
    client: &IntrospectionClient<Channel>,
    thread: u64,
    options: &impl Fn() -> CallOptions,
) -> Result<Vec<Response<ListSessionsResponse>>, Status> {
    let mut pages = Vec::new();
    let mut rows = 0;
    let mut request = ListSessionsRequest::new().with_thread(thread);
    loop {
        let page = match client.list_sessions_with(&request, &options()).wait() {
            Ok(page) => page,
            // It has ended, or a handler holds it up since it was listed.
            Err(status) if matches!(status.code(), Code::NotFound | Code::Unavailable) => {
                return Ok(pages);
            }
            Err(status) => return Err(status),
        };
        let (clients, servers) = {
            let page = page.message();
            rows += page.client_sessions().len() + page.server_sessions().len();
            (page.client_next_opt(), page.server_next_opt())
        };
        pages.push(page);
        if (clients, servers) == (None, None) || rows >= MAX_ROWS {
            return Ok(pages);
        }
        // A table that is at its end has none beyond this.
        request.set_client_from(clients.unwrap_or(u32::MAX));
        request.set_server_from(servers.unwrap_or(u32::MAX));
    }
}
