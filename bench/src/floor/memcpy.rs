//! Copying memory within one core: what a large transfer between cores cannot be compared with, but
//! everybody knows. Its floor is [`super::handover`].

use std::hint::black_box;

use super::Period;
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};

/// Throughput of copies of `size` bytes, from one buffer to another, by one thread.
pub fn throughput(context: &Context, size: usize) -> Result<Sample, BenchError> {
    let from = vec![7_u8; size];
    let mut to = vec![0_u8; size];
    let mut run = |period: Period| {
        let mut bytes = 0;
        // Even the shortest period has a result.
        while !period.is_over() || bytes == 0 {
            // Without the black boxes the compiler removes copies that nothing reads.
            black_box(&mut to[..]).copy_from_slice(black_box(&from));
            bytes += size_of_val(&from[..]) as u64;
        }
        period.rate_of(bytes)
    };
    run(Period::warm_up(context));
    let throughput = run(Period::measured(context));
    assert_eq!(from, to, "the copy is there");
    Ok(vec![(Metric::Throughput, throughput)])
}
