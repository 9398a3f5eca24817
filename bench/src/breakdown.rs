//! The time of a small read, stage by stage: table I of RAMCloud's report on low-latency Ethernet
//! (its section 5), for each device, as a suite.
//!
//! ```text
//!  client   marshal │ transport │ I/O                  I/O │ transport │ dispatch │ unmarshal │ return
//!                                  ╲ network    network ╱
//!  server                           I/O │ transport │ ... handler ... │ transport │ I/O
//! ```
//!
//! Both sides read a counter at the boundaries of the stages ([`starling_io::Mark`], and in the
//! application's own code); they share it, as they run on one host. The event loops are compiled
//! with these marks for the suite only: the clock that ships ignores marks. The client fetches the
//! server's stamps by another call after each block of reads.
//!
//! A stamp takes time too, some 10 ns. Every other block is measured without stamps; the difference
//! is the cost of all stamps of a call, and an equal part of it is subtracted from each stage. That
//! cost is a figure of its own. The sum of the stages has a row beside the round trip of calls
//! without stamps: it is less if a stage was shorter than its stamps seemed to be.
//!
//! The figures are the means over the middle half of the calls, by duration: means add up, medians
//! do not, and the middle half surrounds the median.
//!
//! | module | holds |
//! |---|---|
//! | [`stage`] | the stages, and how they follow from stamps |
//! | `stamps` | the clock that takes stamps |
//! | `client`, `server` | the two sides |

mod client;
mod server;
pub mod stage;
mod stamps;

use crate::benchmark::{Benchmark, Context};
use crate::device::Device;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::process::begin_server;

use client::Measured;
use stage::{Stage, Stages};

/// Bytes of a key, which is a read's request (30 as in RAMCloud).
const KEY_BYTES: usize = 30;

/// Bytes of a value, as in RAMCloud's table.
const VALUE_BYTES: usize = 100;

/// Records of the store: so few that they stay in the first cache, since the suite does not measure
/// the store. A stamp does not wait for loads, so a cache miss would count for a later stage.
const RECORDS: usize = 16;

/// Calls between two requests for the server's stamps.
const BLOCK: usize = 1000;

/// The key of a record.
fn key(number: usize) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    key[..8].copy_from_slice(&(number as u64).to_le_bytes());
    key
}

/// Starling over a device.
pub(crate) fn benchmark<I: Device>() -> Benchmark {
    Benchmark::new(I::SCHEME, "starling", "", measure::<I>)
}

/// Runs the process of this module's role. `None`: the role is another module's.
pub(crate) fn serve(role: &str, arguments: &[String]) -> Option<Result<(), BenchError>> {
    (role == server::ROLE)
        .then(|| begin_server(role, arguments).and_then(|rest| server::serve(&rest)))
}

fn measure<I: Device>(context: &Context) -> Result<Sample, BenchError> {
    Ok(sample(client::measure::<I>(context)?))
}

/// The figures of one repetition, in ns.
fn sample(measured: Measured) -> Sample {
    let Measured {
        mut plain,
        mut stamped,
        ns_of_tick,
    } = measured;
    let whole = |stages: &Stages| stages.iter().sum::<u64>();
    let stamped = middle_half(&mut stamped, whole);
    let plain = mean(middle_half(&mut plain, |ticks| *ticks), |ticks| *ticks);
    // The stamp at a call's end is taken in all blocks.
    let stamps: u8 = Stage::ALL.into_iter().map(Stage::stamps).sum();
    let cost = ((mean(stamped, whole) - plain) / f64::from(stamps - 1)).max(0.0);
    let stages = Stage::ALL.map(|stage| {
        let ticks = mean(stamped, |stages| stages[stage as usize]);
        (ticks - f64::from(stage.stamps()) * cost).max(0.0) * ns_of_tick
    });
    let each = Stage::ALL.into_iter().zip(stages);
    let mut sample: Sample = each.map(|(stage, ns)| (Metric::Stage(stage), ns)).collect();
    sample.push((Metric::StagesSum, stages.iter().sum()));
    sample.push((Metric::RoundTrip, (plain - cost).max(0.0) * ns_of_tick));
    sample.push((Metric::Stamps, f64::from(stamps) * cost * ns_of_tick));
    sample
}

/// The calls without the shortest quarter and the longest quarter.
fn middle_half<T>(calls: &mut [T], whole: impl Fn(&T) -> u64) -> &[T] {
    calls.sort_unstable_by_key(whole);
    let quarter = calls.len() / 4;
    &calls[quarter..calls.len() - quarter]
}

fn mean<T>(calls: &[T], ticks: impl Fn(&T) -> u64) -> f64 {
    calls.iter().map(ticks).sum::<u64>() as f64 / calls.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls of 18 stages that are equal except for the stamps, 10 ticks each.
    fn measured() -> Measured {
        let stages = Stage::ALL.map(|stage| 100 + 10 * u64::from(stage.stamps()));
        Measured {
            plain: vec![1810; 8],
            stamped: vec![stages; 8],
            ns_of_tick: 0.5,
        }
    }

    #[test]
    fn the_cost_of_stamps_is_subtracted_and_the_sum_is_the_round_trip() {
        for (metric, ns) in sample(measured()) {
            let expected = match metric {
                Metric::Stage(_) => 50.0,
                Metric::Stamps => 80.0,
                _ => 900.0,
            };
            assert_eq!(ns, expected, "{metric:?}");
        }
    }

    #[test]
    fn a_sum_that_differs_from_the_round_trip_shows() {
        let mut measured = measured();
        for stages in &mut measured.stamped {
            // One stage seems shorter than its stamp, another one longer by as much.
            stages[0] -= 108;
            stages[1] += 108;
        }
        let sample = sample(measured);
        assert!(sample.contains(&(Metric::StagesSum, 904.0)), "{sample:?}");
        assert!(sample.contains(&(Metric::RoundTrip, 900.0)), "{sample:?}");
    }

    #[test]
    fn a_stage_is_never_negative() {
        let mut measured = measured();
        measured.stamped = vec![[3; Stage::ALL.len()]; 2];
        measured.plain = vec![13; 2];
        for (_, ns) in sample(measured) {
            assert!(ns >= 0.0);
        }
    }

    #[test]
    fn the_middle_half_leaves_out_a_quarter_on_each_side() {
        let mut calls = [9, 1, 1000, 3, 5, 7, 2, 4];
        assert_eq!(middle_half(&mut calls, |ticks| *ticks), [3, 4, 5, 7]);
        assert_eq!(middle_half(&mut [8], |ticks| *ticks), [8]);
    }

    #[test]
    fn an_unknown_role_is_left_to_other_modules() {
        assert!(serve("somebody-else", &[]).is_none());
    }
}
