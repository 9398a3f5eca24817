//! The program whose instructions `cargo xtask instructions` counts: small RPCs, with client and
//! server in one thread.
//!
//! ```text
//! instructions RPCS IN_FLIGHT on|off
//! ```
//!
//! Every run does the same: there is one thread, one ring in each direction, and a clock that each
//! reading advances by a fixed step. With a real clock, the slowness of an instruction counter would
//! look like congestion to congestion control. Two runs with different RPCS differ in the number of
//! RPCs and in nothing else, so the difference of their counts does not include the set-up.

use std::cell::Cell;
use std::error::Error;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use starling_endpoint::{
    CallOptions, Endpoint, EndpointConfig, Handler, Idle, MethodId, Secrets, SessionId,
};
use starling_io::Clock;
use starling_io_shm::{ShmConfig, ShmIo};
use starling_proto::Congestion;

const ECHO: MethodId = MethodId(1);
/// The body of each request and response.
const BODY: [u8; 32] = [7; 32];
/// The time by which each reading advances the clock.
const STEP_NS: u64 = 50;

/// A clock that each reading advances by [`STEP_NS`].
#[derive(Clone, Default)]
struct SteppingClock(Rc<Cell<u64>>);

impl Clock for SteppingClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + STEP_NS);
        self.0.get()
    }
}

struct Arguments {
    rpcs: u64,
    in_flight: u16,
    congestion: Congestion,
}

impl Arguments {
    fn parse() -> Option<Self> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [rpcs, in_flight, congestion] = arguments.as_slice() else {
            return None;
        };
        Some(Self {
            rpcs: rpcs.parse().ok()?,
            in_flight: in_flight.parse().ok()?,
            congestion: match congestion.as_str() {
                "on" => EndpointConfig::default().protocol.congestion,
                "off" => Congestion::Off,
                _ => return None,
            },
        })
    }

    fn config(&self) -> EndpointConfig {
        let mut config = EndpointConfig {
            idle: Idle::Spin,
            ..EndpointConfig::default()
        };
        config.protocol.slots = self.in_flight;
        config.protocol.credits = self.in_flight;
        config.protocol.congestion = self.congestion;
        config
    }
}

fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse() else {
        eprintln!("usage: instructions RPCS IN_FLIGHT on|off (congestion control)");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let clock = SteppingClock::default();
    let address = format!("shm://instructions-{}", std::process::id());
    let secrets = |key| Secrets {
        token_key: [key as u8; 16],
        cookie_key: [1; 16],
    };
    let io = ShmIo::bind(&address, ShmConfig::default())?;
    let mut server = Endpoint::new(io, clock.clone(), arguments.config(), secrets(1))?;
    let echo = Handler::inline(|_, request, mut reply| {
        reply.buffer().extend_from_slice(request.body());
        reply.ok();
    });
    server.register(ECHO, echo);

    let io = ShmIo::client(ShmConfig::default())?;
    let mut client = Endpoint::new(io, clock, arguments.config(), secrets(2))?;
    let session = client.connect(&address)?;
    let done = Arc::new(AtomicU64::new(0));
    let again = call_again(&mut client, session, &done);
    for _ in 0..arguments.in_flight {
        let options = CallOptions::default();
        client.call(
            session,
            ECHO,
            &options,
            |buffer| buffer.extend_from_slice(&BODY),
            again,
            0,
        )?;
    }
    while done.load(Ordering::Relaxed) < arguments.rpcs {
        server.poll()?;
        client.poll()?;
    }
    Ok(())
}

/// Registers a continuation that makes the next call when a call ends.
fn call_again(
    client: &mut Endpoint<ShmIo, SteppingClock>,
    session: SessionId,
    done: &Arc<AtomicU64>,
) -> starling_endpoint::ContinuationId {
    let done = Arc::clone(done);
    let itself = Arc::new(OnceLock::new());
    let again = Arc::clone(&itself);
    let id = client.register_continuation(move |context, completion| {
        let response = completion.result.expect("the server answers");
        assert_eq!(response.body().len(), BODY.len());
        done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let again = *again.get().expect("set before any call");
        context
            .call(
                session,
                ECHO,
                &CallOptions::default(),
                |buffer| buffer.extend_from_slice(&BODY),
                again,
                0,
            )
            .expect("the call that ended has freed a slot");
    });
    itself.set(id).expect("set once");
    id
}
