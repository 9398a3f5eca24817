//! A handler that makes calls of its own and answers when they have ended. Its thread serves other
//! calls meanwhile: `cargo run --example nested`.

use starling::{Channel, NestedContext, OwnedRequest, Request, Server, ServerHandle, Status};
use std::sync::Arc;

starling::include_proto!("primes");

/// Counts primes, or has other servers count parts of the range if there are any.
struct Counter {
    others: Vec<String>,
}

impl Primes for Counter {
    fn count_in(&self, request: Request<'_, Range>, mut count: CountMut<'_>) -> Result<(), Status> {
        let range = request.message();
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
        cx: NestedContext,
        request: OwnedRequest<Range>,
    ) -> Result<Count, Status> {
        let (from, to) = (request.message().from(), request.message().to());
        let share = (to - from) / self.others.len() as u64;
        let mut calls = Vec::new();
        for (index, other) in (0..).zip(&self.others) {
            let channel = cx.channel(other)?;
            let mut part = Range::new();
            part.set_from(from + index * share);
            part.set_to(from + (index + 1) * share);
            calls.push(PrimesClient::new(channel).count_in(&part));
        }
        let mut count = Count::new();
        for call in calls {
            count.set_primes(count.primes() + call.await?.message().primes());
        }
        Ok(count)
    }
}

fn serve(name: &str, others: Vec<String>) -> Result<ServerHandle, starling::Error> {
    Server::builder()
        .bind(&format!(
            "shm://nested-example-{name}-{}",
            std::process::id()
        ))?
        .add_service(PrimesServer::new(Counter { others }))
        .build()?
        .spawn()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (a, b) = (serve("a", vec![])?, serve("b", vec![])?);
    let others = vec![a.address().to_owned(), b.address().to_owned()];
    let front = serve("front", others)?;

    let client = PrimesClient::new(Channel::lazy(front.address())?);
    let mut range = Range::new();
    range.set_to(10_000);
    let count = client.count_with_others(&range).wait()?;
    println!(
        "{} primes below 10000, counted by two others",
        count.message().primes()
    );
    Ok(())
}
