//! `starling serve`: a server with a sample service, for trials.

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

/// How long a server may take to finish its calls after it was told to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to check whether a dispatch thread has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The default of `--address`.
const ADDRESS: &str = "udp://127.0.0.1:9000";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The service.
    service: Service,
    /// The address to listen at; may be repeated. Port 0 is any free port.
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS)]
    address: Vec<String>,
    /// Runs the methods that can take long (Scan and MultiGet; Sink) in COUNT worker threads for each
    /// address, rather than in the dispatch thread.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Lets the XDP program steer plain requests to the workers (`xdp://` only; at most 63 workers). A
    /// plain request has neither timeout nor metadata and fits one packet; `starling call` sends none.
    #[arg(long, requires = "workers")]
    steered: bool,
    /// The idle policy of the dispatch threads.
    #[arg(long, value_enum, default_value_t = IdleName::Adaptive)]
    idle: IdleName,
    /// Measures calls, and shows the metrics of the process at http://HOST:PORT/metrics, for Prometheus.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// The number of records that the key-value store holds at the start, with 16-byte keys and 64-byte
    /// values. They must fit in memory.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    records: u64,
}

const HELP: &str = "\
The server prints a line `listening on ADDRESS` for each address, with the XDP mode behind an address
of AF_XDP (`(driver mode)`), and one `metrics at URL` if there is --metrics. It serves until SIGINT
(Ctrl-C) or SIGTERM. Then it refuses new calls and finishes those that it has, for at most 5 seconds.
A second signal ends it at once.

At its end, and at SIGUSR1, the server prints the counts of the endpoint, the session protocol and the
device of each dispatch thread, if they are not zero. The documentation of `starling::Stats`,
`starling::ProtocolStats` and `starling::DeviceReport` explains their names.

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
  starling serve kv --metrics 127.0.0.1:9464      # then: curl http://127.0.0.1:9464/metrics
  starling serve echo --address shm://echo --idle spin
  starling serve kv --address xdp://eth0/0.0.0.0:9000 --workers 4 --steered
  starling serve kv --address 'xdp://eth0/0.0.0.0:9000?queue=1&mode=driver'
  starling serve kv --address 'xdp://eth0/0.0.0.0:9000?frames=1024'      # locks less memory
  starling call udp://127.0.0.1:9000                # in another terminal: lists its services";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Service {
    /// bench.Echo: answers with the request's bytes.
    Echo,
    /// kv.Kv: an ordered key-value store in memory.
    Kv,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdleName {
    /// Never sleep: the lowest latency, for a whole core.
    Spin,
    /// Spin for 20 to 200 us, by what spins have brought lately, then sleep.
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
    // First: servers that are made from now on are measured.
    let page = (arguments.metrics.as_deref())
        .map(starling::metrics::serve)
        .transpose()?;
    let server = prepare(arguments)?;
    // Loading many records takes long. Until it is done, a signal ends the process in the usual way.
    let requests = on_signals()?;
    let mut server = server.spawn()?;
    let threads = server.stats();
    // Threads of one address share a line. Those behind a managed service have addresses of their own.
    let name = |address: &String| {
        let thread = threads.iter().find(|stats| stats.address == *address);
        thread.map_or_else(|| address.clone(), name_of)
    };
    let addresses = server.addresses().iter().map(name);
    let mut lines: Vec<_> = addresses
        .map(|name| format!("listening on {name}\n"))
        .collect();
    if let Some(page) = &page {
        lines.push(format!("metrics at http://{}/metrics\n", page.address()));
    }
    output::print(&lines.concat())?;
    while server.is_serving() {
        match requests.recv_timeout(CHECK_INTERVAL) {
            Ok(SignalRequest::Counts) => {
                if let Err(error) = output::print(&counts(&server.stats())) {
                    // The readers of both outputs may be gone; the server goes on without them.
                    let _ = writeln!(std::io::stderr(), "cannot print the counts: {error}");
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(SignalRequest::End) | Err(RecvTimeoutError::Disconnected) => break,
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

/// The address of a thread, and the mode of its device.
fn name_of(stats: &ThreadStats) -> String {
    match stats.device.mode {
        Some(mode) => format!("{} ({mode} mode)", stats.address),
        None => stats.address.clone(),
    }
}

/// The counts of threads, as text.
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
            "{}\n  endpoint: {}\n  protocol: {}\n  device: {}\n",
            name_of(stats),
            list(&stats.endpoint.counts()),
            list(&stats.protocol.counts()),
            list(&stats.device.counts)
        )
    };
    threads.iter().map(block).collect()
}

/// The server with its addresses and its store, not yet serving.
fn prepare(arguments: &Arguments) -> Result<Server, CliError> {
    let mut builder = Server::builder().idle(arguments.idle.into());
    // Addresses first: one that is in use is an error before the store is loaded.
    for address in &arguments.address {
        if address.starts_with("mem://") {
            let text = format!("{address}: no client of this process will come; use shm://NAME");
            return Err(CliError::Usage(text));
        }
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

/// The meaning of a signal.
enum SignalRequest {
    Counts,
    End,
}

/// Receives signals. The second one that asks for the end ends the process at once.
fn on_signals() -> Result<mpsc::Receiver<SignalRequest>, CliError> {
    let system = |attempt| move |source: io::Error| CliError::System { attempt, source };
    let signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]);
    let mut signals = signals.map_err(system("listening to signals"))?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut is_ending = false;
            for signal in signals.forever() {
                let request = match signal {
                    SIGUSR1 => SignalRequest::Counts,
                    _ if is_ending => std::process::exit(1),
                    _ => SignalRequest::End,
                };
                is_ending |= matches!(request, SignalRequest::End);
                // Nothing receives it once the server is ending.
                let _ = sender.send(request);
            }
        })
        .map_err(system("starting a thread"))?;
    Ok(receiver)
}
