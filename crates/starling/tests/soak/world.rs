//! What the callers of a round share: one channel for each scheme, and the count of what became of
//! their calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use starling::{CallOptions, Channel, ChannelCall, Code, Response, Status};
use starling_test_protos::test::{Payload, TestClient};

use crate::common::{Gate, payload};
use crate::random::Random;
use crate::watchdog::{LONGEST_MS, Watchdog, fail, say};

pub(crate) const SCHEMES: [&str; 4] = ["udp", "shm", "mem", "tcp"];

/// Channels that were replaced are kept until this many are.
const REPLACED: usize = 4;

/// What became of the calls of all rounds.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) rounds: AtomicU64,
    made: AtomicU64,
    answered: AtomicU64,
    expired: AtomicU64,
    unavailable: AtomicU64,
    dropped: AtomicU64,
    echoes_made: AtomicU64,
    echoes_answered: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        write!(
            f,
            "{} rounds, {} calls: {} answered, {} expired, {} unavailable, {} dropped; \
             longest wait {} ms",
            of(&self.rounds),
            of(&self.made),
            of(&self.answered),
            of(&self.expired),
            of(&self.unavailable),
            of(&self.dropped),
            of(&LONGEST_MS)
        )
    }
}

impl Tally {
    /// Each call has ended once, and no request ran twice. `runs`: of echoes, by all servers.
    pub(crate) fn check(&self, runs: u64) -> Result<(), String> {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ends = [
            &self.answered,
            &self.expired,
            &self.unavailable,
            &self.dropped,
        ];
        let ended: u64 = ends.map(of).iter().sum();
        if ended != of(&self.made) {
            return Err(format!("{ended} ends: {self}"));
        }
        let (made, answered) = (of(&self.echoes_made), of(&self.echoes_answered));
        match (answered..=made).contains(&runs) {
            true => Ok(()),
            false => Err(format!("{runs} runs of {made} echoes, {answered} answered")),
        }
    }
}

/// What a round's callers share.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) addresses: Vec<String>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) ended: AtomicBool,
    /// `None`: the next caller makes one.
    channels: Vec<RwLock<Option<Channel>>>,
    replaced: Mutex<Vec<Channel>>,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        watchdog: &Arc<Watchdog>,
        tally: &Arc<Tally>,
        addresses: &[String],
        gate: &Arc<Gate>,
    ) -> Self {
        Self {
            seed,
            watchdog: Arc::clone(watchdog),
            tally: Arc::clone(tally),
            addresses: addresses.to_vec(),
            gate: Arc::clone(gate),
            ended: AtomicBool::new(false),
            channels: SCHEMES.map(|_| RwLock::new(None)).into(),
            replaced: Mutex::default(),
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The channel that all share now.
    pub(crate) fn channel(&self, scheme: usize) -> Channel {
        if let Some(channel) = &*self.channels[scheme].read().expect("no panic") {
            return channel.clone();
        }
        let channel = Channel::lazy(&self.addresses[scheme]).expect("a channel");
        let mut shared = self.channels[scheme].write().expect("no panic");
        shared.get_or_insert(channel).clone()
    }

    /// The channels that there are now.
    pub(crate) fn channels(&self) -> Vec<Channel> {
        let channels = self.channels.iter();
        channels
            .filter_map(|channel| channel.read().expect("no panic").clone())
            .collect()
    }

    /// Replaces a channel by another one of the same endpoint. Its calls go on.
    pub(crate) fn renew_channel(&self, random: &mut Random) {
        let scheme = random.below(SCHEMES.len() as u64) as usize;
        let builder = Channel::builder(&self.addresses[scheme]);
        let channel = builder.capacity(random.one_of(&[3, 64, 4096])).lazy();
        let channel = channel.expect("a channel");
        let before = self.channels[scheme]
            .write()
            .expect("no panic")
            .replace(channel);
        let mut replaced = self.replaced.lock().expect("no panic");
        replaced.extend(before);
        let excess = replaced.len().saturating_sub(REPLACED);
        let oldest: Vec<Channel> = replaced.drain(..excess).collect();
        // Without the lock: it may be the last reference to an endpoint.
        drop(replaced);
        drop(oldest);
    }

    /// Drops all channels: an endpoint ends with the last of its calls, and the next caller makes
    /// another one.
    pub(crate) fn drop_channels(&self) {
        let take = |channel: &RwLock<Option<Channel>>| channel.write().expect("no panic").take();
        let last: Vec<_> = self.channels.iter().map(take).collect();
        let replaced = std::mem::take(&mut *self.replaced.lock().expect("no panic"));
        drop((last, replaced));
    }

    /// A call of any kind through the channel of any scheme.
    pub(crate) fn call(&self, random: &mut Random) -> Call {
        let scheme = random.below(SCHEMES.len() as u64) as usize;
        self.call_through(self.channel(scheme), scheme, random)
    }

    pub(crate) fn call_through(
        &self,
        channel: Channel,
        scheme: usize,
        random: &mut Random,
    ) -> Call {
        let mut client = TestClient::new(channel);
        let number = random.next();
        let request = payload(&number.to_le_bytes());
        let is_timed = random.percent(5);
        if is_timed {
            let timeout = Duration::from_micros(100) + random.micros(20_000);
            client = client.with_options(CallOptions::with_timeout(timeout));
        }
        add(&self.tally.made);
        let kind = random.below(100);
        let future = match kind {
            0..75 => client.echo(&request),
            75..85 => client.work(&request),
            _ => client.wait(&request),
        };
        let is_echo = kind < 75;
        if is_echo {
            add(&self.tally.echoes_made);
        }
        Call {
            future,
            scheme,
            end: End {
                number,
                is_timed,
                is_echo,
                has_ended: false,
                tally: Arc::clone(&self.tally),
                seed: self.seed,
            },
        }
    }

    /// Opens and closes the gate that some calls wait for, until the round ends.
    pub(crate) fn swing_gate(&self, mut random: Random) {
        while !self.has_ended() {
            let open = random.percent(60);
            self.gate.open.store(open, Ordering::SeqCst);
            std::thread::sleep(random.micros(15_000));
        }
        self.gate.open.store(true, Ordering::SeqCst);
    }

    /// Waits until no call is outstanding, although nobody drives any more.
    pub(crate) fn settle(self) {
        let replaced = self.replaced.into_inner().expect("no panic");
        let last = self.channels.into_iter();
        let last = last.filter_map(|channel| channel.into_inner().expect("no panic"));
        let begun = Instant::now();
        for channel in last.chain(replaced) {
            while channel.calls_outstanding() > 0 {
                if begun.elapsed() > Duration::from_secs(20) {
                    let left = channel.calls_outstanding();
                    fail(self.seed, &format!("{left} calls are left of {channel:?}"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// A call that checks its answer.
pub(crate) struct Call {
    future: ChannelCall<Payload>,
    pub(crate) scheme: usize,
    end: End,
}

/// Sees that a call ends once.
struct End {
    number: u64,
    is_timed: bool,
    is_echo: bool,
    has_ended: bool,
    tally: Arc<Tally>,
    seed: u64,
}

impl Future for Call {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let result = ready!(Pin::new(&mut self.future).poll(cx));
        self.end.take(result);
        Poll::Ready(())
    }
}

impl End {
    fn take(&mut self, result: Result<Response<Payload>, Status>) {
        if std::mem::replace(&mut self.has_ended, true) {
            fail(self.seed, "a call ended twice");
        }
        match result {
            Ok(response) if response.message().bytes() == self.number.to_le_bytes() => {
                add(&self.tally.answered);
                if self.is_echo {
                    add(&self.tally.echoes_answered);
                }
            }
            Ok(_) => fail(self.seed, "a call got the answer of another one"),
            Err(status) => self.take_status(&status),
        }
    }

    fn take_status(&self, status: &Status) {
        match status.code() {
            // Admission control refuses what it could not answer in time.
            Code::DeadlineExceeded | Code::ResourceExhausted if self.is_timed => {
                add(&self.tally.expired);
            }
            // A server without a processor for seconds is dead to its clients.
            Code::Unavailable if !status.message().contains("endpoint has ended") => {
                if self.tally.unavailable.fetch_add(1, Ordering::Relaxed) == 0 {
                    say(&format!("the first call that is unavailable: {status}"));
                }
            }
            _ => fail(self.seed, &format!("a call ended with {status}")),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.has_ended {
            add(&self.tally.dropped);
        }
    }
}
