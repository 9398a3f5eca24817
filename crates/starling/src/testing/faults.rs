//! Faults that calls meet in a test, by an interceptor: what a caller does about them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use starling_endpoint::Status;

use crate::interceptor::{InterceptedCall, InterceptedResponse, Interceptor, Next};
use crate::method_options::covers;

/// One kind of fault, see [`Faults`]. It happens to each call of its methods, unless [`Fault::chance`],
/// [`Fault::skip`] or [`Fault::times`] say otherwise.
#[derive(Clone, Debug)]
pub struct Fault {
    kind: Kind,
    chance: f64,
    skip: u64,
    times: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Delay { least: Duration, most: Duration },
    Abort(Status),
    DropResponse,
    CutStream { after: usize },
}

impl Fault {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            chance: 1.0,
            skip: 0,
            times: u64::MAX,
        }
    }

    /// The call waits for this time before it goes on, by the clock of the channel or the server. With
    /// [`Duration::MAX`] it waits until its deadline, or until it is cancelled.
    pub fn delay(time: Duration) -> Self {
        Self::delay_between(time, time)
    }

    /// [`Fault::delay`] for a time from `least` to `most`, all equally probable.
    pub fn delay_between(least: Duration, most: Duration) -> Self {
        Self::of(Kind::Delay { least, most })
    }

    /// The call ends with this status, and does not run: `Fault::abort(Status::unavailable("a test"))`. Its
    /// [`Status::may_have_run`](crate::Status::may_have_run) is false, also of a stream and at a server.
    pub fn abort(status: Status) -> Self {
        Self::of(Kind::Abort(status))
    }

    /// The call runs, but its response is lost: it ends with UNAVAILABLE, and
    /// [`Status::may_have_run`](crate::Status::may_have_run) is true. Of a stream, the end is lost.
    pub fn drop_response() -> Self {
        Self::of(Kind::DropResponse)
    }

    /// A stream breaks with UNAVAILABLE when its server has sent so many messages; if that is at the server,
    /// those of them that have not left yet are lost, too. Single calls go on.
    pub fn cut_stream(after: usize) -> Self {
        Self::of(Kind::CutStream { after })
    }

    /// The same fault with this probability for each call, from 0 to 1.
    #[must_use]
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// The same fault, but not for the first `calls` calls.
    #[must_use]
    pub fn skip(self, calls: u64) -> Self {
        Self {
            skip: calls,
            ..self
        }
    }

    /// The same fault, at most so many times.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }
}

/// A fault of some methods.
struct Rule {
    name: String,
    fault: Fault,
    /// The sequence of its random numbers.
    seed: u64,
    /// Calls of its methods.
    calls: AtomicU64,
    happened: AtomicU64,
}

impl Rule {
    /// Whether the next call of its methods meets the fault. If so, a random number for it.
    fn strikes(&self) -> Option<u64> {
        let Fault {
            chance,
            skip,
            times,
            ..
        } = self.fault;
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let random = mix(self.seed.wrapping_add(number.wrapping_mul(GOLDEN)));
        if number < skip || unit(random) >= chance {
            return None;
        }
        let more = |happened| (happened < times).then_some(happened + 1);
        let counted = self
            .happened
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.is_ok().then(|| mix(random))
    }
}

/// SplitMix64's increment and output function (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, OOPSLA 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random number as one from 0 to below 1.
fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// An interceptor that gives calls faults, for tests of what their callers do then. Clones are one.
///
/// ```
/// # use starling_test_protos::hello::*;
/// # fn check(channel: starling::Channel) {
/// use std::time::Duration;
/// use starling::Status;
/// use starling::testing::{Fault, Faults};
///
/// let faults = Faults::with_seed(7)
///     .add("hello.Hello/Greet", Fault::abort(Status::unavailable("a test")).times(2))
///     .add("hello.Hello", Fault::delay(Duration::from_millis(20)).chance(0.1))
///     .add("", Fault::drop_response().chance(0.01));
/// let client = HelloClient::new(channel.intercept(faults.clone()));
/// # drop(client);
/// # }
/// ```
///
/// A name is that of a method (`hello.Hello/Greet`), of a service (`hello.Hello`), or empty: all calls. A call
/// meets all faults of its method that strike, in the order in which they were added; the first one that ends it
/// is the last. At a channel, faults are between the caller and the channel's retries: an interceptor sees a call once,
/// however often it is made. To see retries at work, put them at a server, before its handlers, where each client's
/// attempts meet them.
///
/// Which calls of a method meet a fault follows from the seed: the same numbers of them in each run, so that a
/// test that fails with a seed fails with it again, as far as its calls come in the same order.
#[derive(Clone)]
pub struct Faults {
    seed: u64,
    rules: Vec<Arc<Rule>>,
    is_stopped: Arc<AtomicBool>,
}

impl Faults {
    /// No faults yet. All chances follow from the seed.
    pub fn with_seed(seed: u64) -> Self {
        Self {
            seed,
            rules: Vec::new(),
            is_stopped: Arc::default(),
        }
    }

    /// The same with one fault more.
    ///
    /// # Panics
    /// If its chance is not from 0 to 1, or its longest delay is shorter than its shortest.
    #[must_use]
    pub fn add(mut self, name: &str, fault: Fault) -> Self {
        let chance = fault.chance;
        assert!(
            (0.0..=1.0).contains(&chance),
            "a chance of {chance} is not from 0 to 1"
        );
        if let Kind::Delay { least, most } = fault.kind {
            assert!(least <= most, "no delay is from {least:?} to {most:?}");
        }
        self.rules.push(Arc::new(Rule {
            name: name.trim_start_matches('/').to_owned(),
            fault,
            seed: mix(self.seed.wrapping_add(self.rules.len() as u64)),
            calls: AtomicU64::new(0),
            happened: AtomicU64::new(0),
        }));
        self
    }

    /// No call meets a fault from now on, until [`Faults::go_on`].
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Calls meet faults again. Those that came meanwhile do not count.
    pub fn go_on(&self) {
        self.is_stopped.store(false, Ordering::SeqCst);
    }

    /// How many faults have struck so far.
    pub fn happened(&self) -> u64 {
        let happened = |rule: &Arc<Rule>| rule.happened.load(Ordering::SeqCst);
        self.rules.iter().map(happened).sum()
    }
}

impl Interceptor for Faults {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let mut is_response_lost = false;
        for rule in &self.rules {
            if self.is_stopped.load(Ordering::SeqCst) || !covers(&rule.name, call.path()) {
                continue;
            }
            if matches!(rule.fault.kind, Kind::CutStream { .. }) && !call.is_stream() {
                continue;
            }
            let Some(random) = rule.strikes() else {
                continue;
            };
            match &rule.fault.kind {
                Kind::Delay { least, most } => {
                    let more = most.saturating_sub(*least).mul_f64(unit(random));
                    call.sleep(least.saturating_add(more)).await;
                }
                // For interceptors around this one, which may make the call again.
                Kind::Abort(status) => return Err(status.clone().with_not_run()),
                Kind::DropResponse => is_response_lost = true,
                Kind::CutStream { after } => cut_stream(&mut call, *after)?,
            }
        }
        let response = next.run(call).await?;
        match is_response_lost {
            true => {
                Err(Status::unavailable("a fault of the test: the response is lost").with_run())
            }
            false => Ok(response),
        }
    }
}

fn cut_stream(call: &mut InterceptedCall, after: usize) -> Result<(), Status> {
    let seen = AtomicUsize::new(0);
    call.on_responses(move |_| match seen.fetch_add(1, Ordering::Relaxed) {
        seen if seen < after => Ok(()),
        seen => Err(Status::unavailable(format!(
            "a fault of the test: the stream is cut after {seen} messages"
        ))),
    })
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(|rule| (&rule.name, &rule.fault));
        f.debug_struct("Faults")
            .field("seed", &self.seed)
            .field("faults", &rules.collect::<Vec<_>>())
            .field("happened", &self.happened())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(seed: u64, fault: Fault) -> Vec<usize> {
        let faults = Faults::with_seed(seed).add("", fault);
        let strikes = (0..10_000).filter(|_| faults.rules[0].strikes().is_some());
        strikes.collect()
    }

    fn lost() -> Fault {
        Fault::drop_response()
    }

    #[test]
    fn a_seed_strikes_the_same_calls_each_time_and_another_one_others() {
        let rare = struck(1, lost().chance(0.1));
        assert_eq!(rare, struck(1, lost().chance(0.1)));
        assert_ne!(rare, struck(2, lost().chance(0.1)));
        // Five standard deviations.
        assert!((850..1150).contains(&rare.len()), "{} of 1000", rare.len());
    }

    #[test]
    fn two_faults_of_one_seed_strike_independently() {
        let faults = Faults::with_seed(3)
            .add("", lost().chance(0.5))
            .add("", lost().chance(0.5));
        let both = (0..10_000).filter(|_| {
            let [one, two] = [0, 1].map(|rule: usize| faults.rules[rule].strikes().is_some());
            one && two
        });
        let both = both.count();
        assert!((2280..2720).contains(&both), "{both} of 2500");
    }

    #[test]
    fn faults_skip_end_and_never_or_always_strike() {
        assert_eq!(struck(1, lost().skip(3).times(2)), [3, 4]);
        assert_eq!(struck(1, lost().chance(0.0)).len(), 0);
        assert_eq!(struck(1, lost()).len(), 10_000);
        assert_eq!(struck(1, lost().chance(0.5).times(7)).len(), 7);
    }

    #[test]
    #[should_panic(expected = "not from 0 to 1")]
    fn a_chance_beyond_1_is_refused() {
        let _ = Faults::with_seed(1).add("", lost().chance(10.0));
    }

    #[test]
    #[should_panic(expected = "no delay is from 2s to 1s")]
    fn a_delay_that_ends_before_it_begins_is_refused() {
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        let _ = Faults::with_seed(1).add("", Fault::delay_between(two, one));
    }
}
