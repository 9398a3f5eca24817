//! How long handlers take, and when requests arrive.

use crate::rng::Rng;

/// A distribution of service times, all with the same mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Always the mean.
    Fixed,
    /// Anything up to twice the mean.
    Uniform,
    /// Without memory.
    Exponential,
    /// Generalised extreme value with RPCValet's parameters (location 363, scale 100, shape 0.65:
    /// a mean of 600 cycles, and no variance that is finite).
    Extreme,
    /// One in a hundred takes ten times as long as the others.
    Bimodal,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Fixed,
        Self::Uniform,
        Self::Exponential,
        Self::Extreme,
        Self::Bimodal,
    ];

    /// Its name in cases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Uniform => "uniform",
            Self::Exponential => "exponential",
            Self::Extreme => "gev",
            Self::Bimodal => "bimodal",
        }
    }

    /// The time of one request, ns.
    fn draw(self, mean_ns: f64, rng: &mut Rng) -> u64 {
        let unit = unit(rng);
        let times_the_mean = match self {
            Self::Fixed => 1.0,
            Self::Uniform => 2.0 * unit,
            Self::Exponential => -unit.ln(),
            Self::Extreme => {
                let (location, scale, shape) = (363.0, 100.0, 0.65);
                // The gamma function of 1 - 0.65.
                let mean = location + scale * (2.546_147_2 - 1.0) / shape;
                (location + scale * ((-unit.ln()).powf(-shape) - 1.0) / shape) / mean
            }
            Self::Bimodal => {
                let short = 1.0 / (0.99 + 0.01 * 10.0);
                if unit <= 0.01 { 10.0 * short } else { short }
            }
        };
        (times_the_mean * mean_ns) as u64
    }
}

/// A request of the offered load.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its arrival time, after the beginning, ns.
    pub at_ns: u64,
    /// How long its handler takes, ns.
    pub service_ns: u64,
    /// The flow that it belongs to: a random number.
    pub flow: u64,
}

/// Poisson arrivals that offer `load` of the capacity of `workers`, with handlers that take
/// `mean_ns` on average. Another load gives the same requests in the same order, closer to or
/// further from one another.
pub fn arrivals(
    service: Service,
    mean_ns: f64,
    workers: usize,
    load: f64,
    seed: u64,
) -> impl Iterator<Item = Arrival> {
    let mut dice = Rng::new(seed);
    let (mut gaps, mut times, mut flows) = (dice.fork(), dice.fork(), dice.fork());
    let mean_gap_ns = mean_ns / (workers as f64 * load);
    let mut at_ns = 0.0;
    std::iter::repeat_with(move || {
        at_ns -= unit(&mut gaps).ln() * mean_gap_ns;
        Arrival {
            at_ns: at_ns as u64,
            service_ns: service.draw(mean_ns, &mut times),
            flow: flows.next_u64(),
        }
    })
}

/// A number above 0 and up to 1.
fn unit(rng: &mut Rng) -> f64 {
    ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN_NS: f64 = 10_000.0;

    #[test]
    fn every_distribution_has_the_mean() {
        for service in Service::ALL {
            let mut rng = Rng::new(1);
            let mut drawn: Vec<u64> = (0..1_000_000)
                .map(|_| service.draw(MEAN_NS, &mut rng))
                .collect();
            if service == Service::Extreme {
                // Its mean converges slowly, its median fast: 404.4 of 600.9 cycles.
                drawn.sort_unstable();
                let median = drawn[500_000] as f64 / MEAN_NS;
                assert!((median - 0.673).abs() < 0.005, "{median}");
                continue;
            }
            let mean = drawn.iter().sum::<u64>() as f64 / 1e6 / MEAN_NS;
            assert!((mean - 1.0).abs() < 0.005, "{service:?} {mean}");
        }
    }

    #[test]
    fn arrivals_come_at_the_rate_of_the_load() {
        let last = arrivals(Service::Fixed, MEAN_NS, 16, 0.5, 3).nth(200_000 - 1);
        let seconds = last.expect("the arrivals are endless").at_ns as f64 / 1e9;
        let asked = 200_000.0 * MEAN_NS / 1e9 / seconds / 16.0;
        assert!((asked - 0.5).abs() < 0.005, "{asked}");
    }
}
