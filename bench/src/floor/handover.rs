//! The floor of large transfers between two cores: one copy.
//!
//! ```text
//!  client  here it is ─────▶ copies it to memory of its own    server
//!          waits      ◀───── done
//! ```
//!
//! The buffer is handed over as it is each time: the client writes nothing into it, as a client of
//! Starling writes nothing into a message that it sends again. The server copies to the same memory
//! each time.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{BusyWait, Period, between_threads};
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::metric::{Metric, Sample};
use crate::pin::Cores;

/// Ends the server.
const STOP: u64 = u64::MAX;

/// The flag, alone in a pair of lines: odd values hand the buffer over, even ones hand it back.
#[repr(align(128))]
#[derive(Default)]
struct Flag(AtomicU64);

impl Flag {
    fn hand_over(&self, at: u64, wait: BusyWait) -> u64 {
        self.0.store(at + 1, Ordering::Release);
        while self.0.load(Ordering::Acquire) != at + 2 {
            wait.pause();
        }
        at + 2
    }

    fn serve(&self, buffer: &[u8], wait: BusyWait) {
        let mut own = vec![0_u8; buffer.len()];
        let mut expected = 1;
        loop {
            match self.0.load(Ordering::Acquire) {
                STOP => break,
                value if value == expected => {
                    // Without the black boxes the compiler removes copies that nothing reads.
                    black_box(&mut own[..]).copy_from_slice(black_box(buffer));
                    self.0.store(value + 1, Ordering::Release);
                    expected += 2;
                }
                _ => wait.pause(),
            }
        }
        assert!(expected == 1 || own == buffer, "the copy is there");
    }
}

fn with_flag<R>(
    cores: Cores,
    size: usize,
    client: impl FnOnce(&Flag, BusyWait) -> R,
) -> Result<R, BenchError> {
    let flag = Flag::default();
    let wait = BusyWait::on(cores);
    let buffer = vec![7_u8; size];
    between_threads(
        cores,
        || flag.serve(&buffer, wait),
        || {
            let result = client(&flag, wait);
            flag.0.store(STOP, Ordering::Release);
            result
        },
    )
}

/// Throughput of transfers of `size` bytes, one at a time.
pub fn throughput(context: &Context, size: usize) -> Result<Sample, BenchError> {
    with_flag(context.cores, size, |flag, wait| {
        let mut at = 0;
        let mut run = |period: Period| {
            let begin = at;
            // Even the shortest period has a result.
            while !period.is_over() || at == begin {
                at = flag.hand_over(at, wait);
            }
            period.rate_of((at - begin) / 2 * size as u64)
        };
        run(Period::warm_up(context));
        vec![(Metric::Throughput, run(Period::measured(context)))]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_comes_back_after_each_transfer_and_the_server_ends() {
        // Sharing a core, even on paper, makes both sides yield instead of spin.
        let cores = Cores::of_this_process().unwrap();
        let cores = Cores {
            server: cores.client,
            ..cores
        };
        let transfers = with_flag(cores, 10_000, |flag, wait| {
            let mut at = 0;
            for _ in 0..100 {
                at = flag.hand_over(at, wait);
            }
            at / 2
        });
        assert_eq!(transfers.unwrap(), 100);
    }
}
