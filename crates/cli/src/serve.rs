//! `starling serve`: a server to try things on.

use std::io;
use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use starling::{Idle, Server, ThreadStats};
use starling_sample_services::{echo, kv};

use crate::error::CliError;
use crate::output;

/// How long a server that was told to end may take to finish its calls.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to look whether a dispatch thread has failed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Where to listen unless told otherwise.
const ADDRESS: &str = "udp://127.0.0.1:9000";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// What to serve.
    service: Service,
    /// Where to listen; may be repeated. Port 0 is any free port.
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS)]
    address: Vec<String>,
    /// Runs the methods that can take long (Scan and MultiGet; Sink) in so many worker threads for
    /// each address, rather than in the dispatch thread.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Has the network interface hand plain requests to the workers by itself (`xdp://` only; at
    /// most 63 workers). Plain is what has neither timeout nor metadata and fits one packet: none of
    /// what `starling call` sends.
    #[arg(long, requires = "workers")]
    steered: bool,
    /// What the dispatch threads do when there is nothing to do.
    #[arg(long, value_enum, default_value_t = IdleName::Adaptive)]
    idle: IdleName,
    /// Records of 16-byte keys and 64-byte values that the key-value store holds at the start.
    /// Has to fit in memory.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    records: u64,
}

const HELP: &str = "\
Prints a line `listening on ADDRESS` for each address, of AF_XDP with the mode behind it (`(driver
mode)`), and serves until SIGINT (Ctrl-C) or SIGTERM. Then it refuses new calls and finishes those
that it has, for at most 5 seconds. A second signal ends it at once.

At the end, and at SIGUSR1, it prints for each dispatch thread what its endpoint and its device have
done and dropped: all counts that are not zero, by the names that the documents of
`starling::Stats` and `starling::DeviceReport` explain.

A server at udp://0.0.0.0 or udp://[::] answers from the address that this host's routes pick for
the client. Clients that use another address of this host, such as a second one of an interface,
cannot connect: for them, give each address an --address of its own instead.

An address on a network interface, xdp://IFNAME/HOST:PORT, takes the interface's first queue, or
the one that ?queue=N behind it names; each can have one server or client. `?mode=MODE` asks for
zero-copy, driver or generic mode in place of the best that works; `?frames=N` has N frames (a power
of two, 64 to 32768) rather than 4096 wait to be received. Join them by &, in quotes.

Examples:
  starling serve kv
  starling serve kv --address udp://0.0.0.0:9000 --address shm://kv --records 1000000
  starling serve echo --address shm://echo --idle spin
  starling serve kv --address xdp://eth0/0.0.0.0:9000 --workers 4 --steered
  starling serve kv --address 'xdp://eth0/0.0.0.0:9000?queue=1&mode=driver'
  starling serve kv --address 'xdp://eth0/0.0.0.0:9000?frames=1024'      # locks less memory
  starling call udp://127.0.0.1:9000                # in another terminal: what it serves";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Service {
    /// bench.Echo: answers with what it gets.
    Echo,
    /// kv.Kv: an ordered key-value store in memory.
    Kv,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdleName {
    /// Never sleep: the lowest latency, for a whole core.
    Spin,
    /// Spin for 50 us, then sleep.
    Adaptive,
    /// Sleep at once.
    Block,
}

impl From<IdleName> for Idle {
    fn from(name: IdleName) -> Self {
        match name {
            IdleName::Spin => Self::Spin,
            IdleName::Adaptive => Self::default(),
            IdleName::Block => Self::Block,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let server = prepare(arguments)?;
    // Filling the store takes long if it is to hold much: until it is done, a signal ends the
    // process as it ends any other.
    let wishes = on_signals()?;
    let mut server = server.spawn()?;
    let mut lines: Vec<_> = server
        .stats()
        .iter()
        .map(|stats| format!("listening on {}\n", name_of(stats)))
        .collect();
    // The threads of one address.
    lines.dedup();
    output::print(&lines.concat())?;
    while server.is_serving() {
        match wishes.recv_timeout(LOOK_EVERY) {
            Ok(Wish::Counts) => {
                if let Err(error) = output::print(&counts(&server.stats())) {
                    // Nobody may be listening any more, here or there. To serve does not need that.
                    let _ = writeln!(std::io::stderr(), "cannot say what was served: {error}");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Wish::End) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if server.is_serving() {
        eprintln!("finishing calls; a second signal ends this at once");
    }
    let finished = server.finish(DRAIN_TIMEOUT);
    let printed = output::print(&counts(&server.stats()));
    match finished? {
        true => printed,
        false => Err(CliError::NotDrained),
    }
}

/// The address of a thread, and the mode that its device works in.
fn name_of(stats: &ThreadStats) -> String {
    match stats.device.mode {
        Some(mode) => format!("{} ({mode} mode)", stats.address),
        None => stats.address.clone(),
    }
}

/// What threads have done and dropped.
fn counts(threads: &[ThreadStats]) -> String {
    let list = |counts: &[(&str, u64)]| {
        let some = counts.iter().filter(|(_, count)| *count > 0);
        let some: Vec<_> = some
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        match some.is_empty() {
            true => "nothing".to_owned(),
            false => some.join(", "),
        }
    };
    let block = |stats: &ThreadStats| {
        format!(
            "{}\n  endpoint: {}\n  device: {}\n",
            name_of(stats),
            list(&stats.endpoint.counts()),
            list(&stats.device.counts)
        )
    };
    threads.iter().map(block).collect()
}

/// The server with its addresses and its store, not yet serving.
fn prepare(arguments: &Arguments) -> Result<Server, CliError> {
    let mut builder = Server::builder().idle(arguments.idle.into());
    // Addresses first: one that is taken is an error before the store is filled.
    for address in &arguments.address {
        builder = builder.bind(address)?;
    }
    let (workers, in_workers) = match arguments.workers {
        Some(count) => (usize::from(count), true),
        None => (1, false),
    };
    builder = builder.workers(workers);
    if arguments.steered {
        builder = builder.steered();
    }
    builder = match (arguments.service, in_workers) {
        (Service::Echo, false) => builder.add_service(echo::server()),
        (Service::Echo, true) => builder.add_service(echo::server().worker("Sink")),
        (Service::Kv, false) => builder.add_service(kv::server(arguments.records)),
        (Service::Kv, true) => {
            let server = kv::server(arguments.records);
            builder.add_service(server.worker("Scan").worker("MultiGet"))
        }
    };
    Ok(builder.build()?)
}

/// What a signal asks for.
enum Wish {
    Counts,
    End,
}

/// Gets what signals ask for. The second one that is to end the process does.
fn on_signals() -> Result<mpsc::Receiver<Wish>, CliError> {
    let system = |attempt| move |source: io::Error| CliError::System { attempt, source };
    let signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]);
    let mut signals = signals.map_err(system("listening to signals"))?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut is_ending = false;
            for signal in signals.forever() {
                let wish = match signal {
                    SIGUSR1 => Wish::Counts,
                    _ if is_ending => std::process::exit(1),
                    _ => Wish::End,
                };
                is_ending |= matches!(wish, Wish::End);
                // Nobody listens any more when the server is already on its way out.
                let _ = sender.send(wish);
            }
        })
        .map_err(system("starting a thread"))?;
    Ok(receiver)
}
