//! A handler that takes long, so `proto/primes.proto` has it run in worker threads:
//! `cargo run --example worker`.

use starling::{Channel, NestedContext, OwnedRequest, Request, Server, Status};
use std::sync::Arc;

starling::include_proto!("primes");

struct Counter;

impl Primes for Counter {
    fn count_in(&self, request: Request<'_, Range>, mut count: CountMut<'_>) -> Result<(), Status> {
        let range = request.message();
        if range.to() > 1_000_000 {
            return Err(Status::out_of_range("numbers up to a million"));
        }
        let has_divisor = |n: u64| {
            (2..)
                .take_while(|d| d * d <= n)
                .any(|d| n.is_multiple_of(d))
        };
        let numbers = range.from().max(2)..range.to();
        count.set_primes(numbers.filter(|&n| !has_divisor(n)).count() as u64);
        Ok(())
    }

    async fn count_with_others(
        self: Arc<Self>,
        _cx: NestedContext,
        _request: OwnedRequest<Range>,
    ) -> Result<Count, Status> {
        Err(Status::unimplemented("see the example `nested`"))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .bind(&format!("shm://worker-example-{}", std::process::id()))?
        .add_service(PrimesServer::new(Counter))
        .workers(2)
        .build()?
        .spawn()?;

    let client = PrimesClient::new(Channel::lazy(server.address())?);
    let mut range = Range::new();
    range.set_to(20_000);
    let first = client.count_in(&range);
    range.set_from(20_000);
    range.set_to(40_000);
    let second = client.count_in(&range); // Two workers run both calls now.
    println!("{} primes below 20000", first.wait()?.message().primes());
    println!(
        "{} primes from 20000 to 40000",
        second.wait()?.message().primes()
    );

    range.set_to(u64::MAX);
    match client.count_in(&range).wait() {
        Ok(_) => println!("that was quick"),
        Err(status) => println!("{status}"),
    }
    Ok(())
}
