//! The latency of calls between threads drawn at random on an ideal network. Each transfer has at
//! once its max-min fair rate (Bertsekas and Gallager, "Data Networks", section 6.5.2), no packet
//! is queued, marked or lost, and threads cost nothing.
//!
//! No transport that shares links fairly has a shorter tail latency: its only delays come from calls that
//! meet.

use hdrhistogram::Histogram;

use super::capture::times;
use crate::rng::Rng;

/// Every thread has a link of its own in either direction, and one call outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ideal {
    pub(super) threads: usize,
    /// Bytes of a request, and of a response.
    pub(super) bytes: f64,
    /// Rate of each link, bytes per ns.
    pub(super) rate: f64,
    /// Delay of a call beyond its bytes on the links, ns: half of it before the response.
    pub(super) delay_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Request and response are sent from one thread to another.
    Transfer { from: usize, to: usize, left: f64 },
    /// Nothing is sent until this time.
    Delay { until_ns: f64 },
}

#[derive(Clone, Copy, Debug)]
struct Call {
    begun_ns: f64,
    server: usize,
    answered: bool,
    phase: Phase,
}

impl Ideal {
    /// Latencies of the calls that end between `from_ns` and `until_ns`.
    pub(super) fn latencies(&self, rng: &mut Rng, from_ns: f64, until_ns: f64) -> Histogram<u64> {
        let mut latencies = times();
        let mut now_ns = 0.0;
        let mut calls: Vec<Call> = (0..self.threads)
            .map(|client| self.call(client, rng, now_ns))
            .collect();
        while now_ns < until_ns {
            let rates = self.rates(&calls);
            let ends_ns = |(call, rate): (&Call, &f64)| match call.phase {
                Phase::Transfer { left, .. } => now_ns + left / rate,
                Phase::Delay { until_ns } => until_ns,
            };
            let ends = calls.iter().zip(&rates).map(ends_ns);
            let next_ns = ends.fold(f64::INFINITY, f64::min);
            for (client, rate) in rates.into_iter().enumerate() {
                let call = &mut calls[client];
                let over = match &mut call.phase {
                    Phase::Transfer { left, .. } => {
                        *left -= rate * (next_ns - now_ns);
                        *left < 1e-6
                    }
                    Phase::Delay { until_ns } => *until_ns <= next_ns,
                };
                if over {
                    self.proceed(client, call, rng, next_ns, |latency_ns| {
                        if next_ns >= from_ns {
                            latencies.saturating_record(latency_ns as u64);
                        }
                    });
                }
            }
            now_ns = next_ns;
        }
        latencies
    }

    fn call(&self, client: usize, rng: &mut Rng, now_ns: f64) -> Call {
        let step = 1 + rng.below(self.threads as u64 - 1) as usize;
        let server = (client + step) % self.threads;
        Call {
            begun_ns: now_ns,
            server,
            answered: false,
            phase: self.transfer(client, server),
        }
    }

    fn transfer(&self, from: usize, to: usize) -> Phase {
        let left = self.bytes;
        Phase::Transfer { from, to, left }
    }

    /// A phase of a call is over.
    fn proceed(
        &self,
        client: usize,
        call: &mut Call,
        rng: &mut Rng,
        now_ns: f64,
        ended: impl FnOnce(f64),
    ) {
        match call.phase {
            Phase::Transfer { from, .. } => {
                call.answered = from != client;
                let until_ns = now_ns + self.delay_ns / 2.0;
                call.phase = Phase::Delay { until_ns };
            }
            Phase::Delay { .. } if call.answered => {
                ended(now_ns - call.begun_ns);
                *call = self.call(client, rng, now_ns);
            }
            Phase::Delay { .. } => call.phase = self.transfer(call.server, client),
        }
    }

    /// The max-min fair rate of each call's transfer, zero for one that sends nothing now: the
    /// link that gives its transfers least is shared equally by them, then the next of the rest.
    fn rates(&self, calls: &[Call]) -> Vec<f64> {
        let mut rates = vec![0.0; calls.len()];
        // Links up are those of the threads, links down follow.
        let mut links = vec![(self.rate, 0u32); 2 * self.threads];
        let mut open: Vec<(usize, [usize; 2])> = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            if let Phase::Transfer { from, to, .. } = call.phase {
                open.push((index, [from, self.threads + to]));
            }
        }
        for link in open.iter().flat_map(|(_, links)| links) {
            links[*link].1 += 1;
        }
        while !open.is_empty() {
            let used = links.iter().enumerate().filter(|(_, link)| link.1 > 0);
            let shares = used.map(|(index, link)| (index, link.0 / f64::from(link.1)));
            let tightest = shares.min_by(|a, b| a.1.total_cmp(&b.1));
            let (tightest, share) = tightest.expect("every transfer uses two");
            open.retain(|&(index, ends)| {
                if !ends.contains(&tightest) {
                    return true;
                }
                rates[index] = share;
                for link in ends {
                    links[link].0 -= share;
                    links[link].1 -= 1;
                }
                false
            });
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDEAL: Ideal = Ideal {
        threads: 4,
        bytes: 1000.0,
        rate: 2.0,
        delay_ns: 100.0,
    };

    fn calls(transfers: &[(usize, usize)]) -> Vec<Call> {
        let call = |&(from, to): &(usize, usize)| Call {
            begun_ns: 0.0,
            server: to,
            answered: false,
            phase: IDEAL.transfer(from, to),
        };
        transfers.iter().map(call).collect()
    }

    #[test]
    fn rates_are_fair_and_fill_what_others_leave() {
        assert_eq!(IDEAL.rates(&calls(&[(0, 1), (2, 3)])), [2.0, 2.0]);
        assert_eq!(IDEAL.rates(&calls(&[(0, 1), (2, 1)])), [1.0, 1.0]);
        // Three share the link to 3; the one from 0 to 1 has the rest of 0's link.
        let rates = IDEAL.rates(&calls(&[(0, 3), (1, 3), (2, 3), (0, 1)]));
        let third = 2.0 / 3.0;
        let fair = [third, third, third, 2.0 - third];
        assert!(
            rates.iter().zip(fair).all(|(a, b)| (a - b).abs() < 1e-9),
            "{rates:?}"
        );
    }

    #[test]
    fn two_threads_are_never_in_each_others_way_longer_than_both_take() {
        let two = Ideal {
            threads: 2,
            ..IDEAL
        };
        let mut rng = Rng::new(1);
        let latencies = two.latencies(&mut rng, 0.0, 1e6);
        // Requests cross, responses cross: 500 ns each way and the delay.
        assert!(latencies.min() >= 1090 && latencies.max() <= 1110);
        assert!(latencies.len() > 1000);
    }
}
