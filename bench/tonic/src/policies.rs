//! The suite `policies` over tonic between two Envoys: an access control by a customer's name in the first one.
//!
//! ```text
//!               ┌─▶ Envoy with the access control ─┐
//!  callers ─────┤            in turns              ├─▶ Envoy ─▶ server of hotel.Reservation
//!               └─▶ Envoy without ─────────────────┘
//! ```
//!
//! Nothing else differs between the turns. The requests are those of Starling's benchmark: one of 100 has a customer
//! who is refused, and only the others count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use starling_bench::callers::{EchoStub, Flavor, tasks};
use starling_bench::policies::{HOTEL, IN_FLIGHT, ONE_OF, customer, in_turns};
use starling_bench::process::RoleProcess;
use starling_bench::{BenchError, Benchmark, Context, Sample};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};

use crate::api::hotel::reservation_client::ReservationClient;
use crate::api::hotel::reservation_server::{Reservation, ReservationServer};
use crate::api::hotel::{ReservationRequest, ReservationResult};
use crate::channel::usual_runtime;
use crate::managed::proxy::{Kind, Policy};
use crate::managed::start_proxy;
use crate::{SYSTEM, connect, failed, serve_on_loopback_in};

/// Role of the server.
pub(crate) const ROLE: &str = "tonic-hotel";

/// A call takes some 10 ms when so many are made at once.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn benchmarks() -> Vec<Benchmark> {
    // Nobody waits for a proxy that is not there.
    let program = Kind::Envoy.find();
    program
        .iter()
        .map(|it| through(&it.to_string_lossy()))
        .collect()
}

fn through(program: &str) -> Benchmark {
    let program = program.to_owned();
    let case = format!("proxies=2 {}", Policy::AccessControl.name());
    Benchmark::new("grpc", SYSTEM, case, move |context| {
        measure(context, &program)
    })
}

struct Hotel;

#[tonic::async_trait]
impl Reservation for Hotel {
    async fn make(
        &self,
        request: Request<ReservationRequest>,
    ) -> Result<Response<ReservationResult>, Status> {
        let hotel_id = request.into_inner().hotel_id;
        Ok(Response::new(ReservationResult { hotel_id }))
    }
}

pub(crate) fn serve() -> Result<(), BenchError> {
    serve_on_loopback_in(&usual_runtime()?, |incoming| {
        Server::builder()
            .add_service(ReservationServer::new(Hotel))
            .serve_with_incoming(incoming)
    })
}

fn measure(context: &Context, program: &str) -> Result<Sample, BenchError> {
    let server = context.launcher.start(ROLE, &[])?;
    let proxy = |policy, upstream| start_proxy(context, (Kind::Envoy, program), policy, upstream);
    let near_server = proxy(Policy::None, &server)?;
    let plain = proxy(Policy::None, &near_server)?;
    let strict = proxy(Policy::AccessControl, &near_server)?;
    let runtime = Flavor::CurrentThread.runtime()?;
    let guest = |proxy: &RoleProcess, refuses| {
        Ok::<_, BenchError>(GuestStub {
            client: ReservationClient::new(runtime.block_on(connect(proxy.address()))?),
            refuses,
            passed: Arc::default(),
        })
    };
    let guests = [guest(&plain, false)?, guest(&strict, true)?];
    let rate_in_turn = |with: bool| {
        let guest = &guests[usize::from(with)];
        let run = tasks(&runtime, IN_FLIGHT, TURN, guest)?;
        let passed = guest.passed.swap(0, Ordering::Relaxed) as f64;
        Ok(passed / run.elapsed.as_secs_f64())
    };
    in_turns(context.seconds, rate_in_turn)
}

#[derive(Clone)]
struct GuestStub {
    client: ReservationClient<Channel>,
    /// Its way has the access control.
    refuses: bool,
    /// Calls that count.
    passed: Arc<AtomicU64>,
}

impl EchoStub for GuestStub {
    fn wait(&mut self, _: u64) -> Result<(), BenchError> {
        unreachable!("only tasks are measured")
    }

    async fn call(&mut self, number: u64) -> Result<(), BenchError> {
        let may = !number.is_multiple_of(ONE_OF);
        let request = ReservationRequest {
            customer_name: customer(may).into(),
            hotel_id: vec![HOTEL.into()],
            in_date: "2015-04-09".into(),
            out_date: "2015-04-10".into(),
            room_number: 1,
        };
        let answer = self.client.make(request).await.map(Response::into_inner);
        check(answer, !may && self.refuses)?;
        self.passed.fetch_add(u64::from(may), Ordering::Relaxed);
        Ok(())
    }
}

/// An error unless the hotel is confirmed, or the call refused if it must be.
fn check(answer: Result<ReservationResult, Status>, is_refused: bool) -> Result<(), BenchError> {
    let wrong = |what: &str| BenchError::WrongEcho {
        scheme: "grpc",
        system: SYSTEM,
        what: what.into(),
    };
    match answer {
        Ok(_) if is_refused => Err(wrong("a customer who is to be refused has passed")),
        Ok(answer) if answer.hotel_id == [HOTEL] => Ok(()),
        Ok(_) => Err(wrong("another hotel was confirmed")),
        Err(status) if is_refused && status.code() == Code::PermissionDenied => Ok(()),
        Err(status) => Err(failed(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_benchmark_has_the_name_of_its_row() {
        let name = through("an-envoy").to_string();
        assert_eq!(name, "tonic/grpc proxies=2 access-control");
    }

    #[test]
    fn only_who_is_to_be_refused_may_be_refused() {
        let confirmed = |hotel: &str| {
            Ok(ReservationResult {
                hotel_id: vec![hotel.into()],
            })
        };
        let refused = || Err(Status::permission_denied("no"));
        assert!(check(confirmed(HOTEL), false).is_ok());
        assert!(check(refused(), true).is_ok());
        assert!(check(confirmed("astoria"), false).is_err());
        assert!(check(confirmed(HOTEL), true).is_err());
        assert!(check(refused(), false).is_err());
        assert!(check(Err(Status::unavailable("gone")), true).is_err());
    }
}
