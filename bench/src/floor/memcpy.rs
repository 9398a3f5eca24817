//! The floor of large transfers through memory: copying them once.

use std::hint::black_box;

use super::Period;
use crate::contest::{Context, Sample};
use crate::error::BenchError;
use crate::row::Metric;

/// Throughput of copies of `size` bytes, from one buffer to another, by one thread.
pub fn throughput(context: &Context, size: usize) -> Result<Sample, BenchError> {
    let from = vec![7_u8; size];
    let mut to = vec![0_u8; size];
    let mut run = |period: Period| {
        let mut bytes = 0;
        // However short the period, something has to come of it.
        while !period.over() || bytes == 0 {
            // Without the black boxes the compiler sees that nobody reads the copy.
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
