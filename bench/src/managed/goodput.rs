//! How many bytes of large requests arrive in a second, and what each costs (mRPC, figure 5): many at once, each with a
//! small answer.

use std::sync::Arc;

use starling::Channel;
use starling_sample_services::api::bench::{EchoClient, Payload};

use super::{MANAGED, Path};
use crate::benchmark::{Benchmark, Context};
use crate::callers::{Callers, EchoStub, Flavor};
use crate::channel::by_callers;
use crate::device::failed;
use crate::error::BenchError;
use crate::floor::SMALL_BYTES;
use crate::metric::{Metric, Sample};

/// Requests of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Bytes of each.
    pub bytes: usize,
    /// At once.
    pub count: usize,
}

/// Those that the suite measures, also through proxies: never more than 64 MiB at once, which a service takes of one
/// application.
pub const REQUESTS: [Requests; 3] = [
    Requests {
        bytes: 8 << 10,
        count: 128,
    },
    Requests {
        bytes: 256 << 10,
        count: 32,
    },
    Requests {
        bytes: 8 << 20,
        count: 4,
    },
];

impl Requests {
    /// What is behind the number of services or proxies in the name of a case.
    pub fn case(self) -> String {
        match self.bytes >> 20 {
            0 => format!("requests={}KiB", self.bytes >> 10),
            mebibytes => format!("requests={mebibytes}MiB"),
        }
    }

    /// Tasks of one thread, one for each.
    pub fn callers(self) -> Callers {
        Callers::Tasks {
            flavor: Flavor::CurrentThread,
            count: self.count,
        }
    }

    /// The goodput, of the figures of calls with such requests.
    pub fn goodput(self, sample: &Sample) -> Sample {
        let of = |(metric, value): &(Metric, f64)| match metric {
            Metric::Rate => Some((Metric::Throughput, value * self.bytes as f64)),
            Metric::Cpu => Some((Metric::Cpu, *value)),
            _ => None,
        };
        sample.iter().filter_map(of).collect()
    }
}

pub(super) fn benchmarks() -> Vec<Benchmark> {
    let of = |services: usize| {
        REQUESTS.map(|requests| {
            let case = format!("services={services} {}", requests.case());
            Benchmark::new("udp", MANAGED, case, move |context| {
                measure(context, services, requests)
            })
        })
    };
    [1, 2].into_iter().flat_map(of).collect()
}

#[derive(Clone)]
struct SinkStub {
    client: EchoClient<Channel>,
    payload: Arc<Payload>,
}

impl EchoStub for SinkStub {
    fn wait(&mut self, _number: u64) -> Result<(), BenchError> {
        let answer = self.client.sink(&self.payload).wait().map_err(failed)?;
        check(answer.message().data())
    }

    async fn call(&mut self, _number: u64) -> Result<(), BenchError> {
        let answer = self.client.sink(&self.payload).await.map_err(failed)?;
        check(answer.message().data())
    }
}

fn check(answer: &[u8]) -> Result<(), BenchError> {
    match answer.len() {
        SMALL_BYTES => Ok(()),
        bytes => Err(BenchError::WrongEcho {
            scheme: "udp",
            system: MANAGED,
            what: format!("a request was answered with {bytes} bytes"),
        }),
    }
}

fn measure(context: &Context, services: usize, requests: Requests) -> Result<Sample, BenchError> {
    let path = Path::start(context, services)?;
    let stub = SinkStub {
        client: EchoClient::new(path.channel()?),
        payload: Arc::new(Payload::new().with_data(&vec![7; requests.bytes])),
    };
    let sample = by_callers(context, &path.processes(), requests.callers(), &stub)?;
    Ok(requests.goodput(&sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_the_rate_of_bytes() {
        let [small, _, large] = REQUESTS;
        assert_eq!(
            (small.case(), large.case()),
            ("requests=8KiB".into(), "requests=8MiB".into())
        );
        let sample = vec![(Metric::P50, 1.0), (Metric::Rate, 2.0), (Metric::Cpu, 3.0)];
        let goodput = vec![(Metric::Throughput, 16384.0), (Metric::Cpu, 3.0)];
        assert_eq!(small.goodput(&sample), goodput);
        let most = REQUESTS.map(|requests| requests.bytes * requests.count);
        assert!(most.iter().all(|bytes| *bytes <= 64 << 20));
    }
}
