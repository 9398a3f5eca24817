//! The client: one read at a time, in blocks that alternate between stamps and no stamps.

use std::sync::Arc;

use parking_lot::Mutex;
use starling::Message as _;
use starling_endpoint::{
    CallOptions, Completion, ContinuationId, Endpoint, EndpointConfig, MethodId, SessionId,
};

use super::server::{self, COLLECT, GET, value};
use super::stage::{Stages, client as place, cut};
use super::stamps::{Places, Stamping};
use super::{BLOCK, RECORDS, key};
use crate::benchmark::Context;
use crate::device::{Device, endpoint_with, failed};
use crate::error::BenchError;
use crate::floor::{BusyWait, Period};
use starling_sample_services::api::kv::{GetRequest, GetResponse};

const PLACES: Places = Places {
    sending: place::SENDING,
    sent: place::SENT,
    receiving: place::RECEIVING,
    received: place::RECEIVED,
    taken: place::TAKEN,
};

/// The first calls of a block, which do not count: caches are cold.
const COLD: usize = BLOCK / 8;

/// The most calls whose stages are kept.
const CALLS: usize = 200_000;

type Clock = Stamping<{ place::COUNT }>;

/// A client's endpoint and its session.
struct Reader<I: Device> {
    endpoint: Endpoint<I, Clock>,
    watch: Clock,
    session: SessionId,
    got: ContinuationId,
    /// The first error.
    failure: Arc<Mutex<Option<String>>>,
    options: CallOptions,
    number: usize,
    wait: BusyWait,
}

impl<I: Device> Reader<I> {
    fn connect(address: &str, wait: BusyWait, host: &str) -> Result<Self, BenchError> {
        let watch = Clock::new(PLACES);
        let mut endpoint =
            endpoint_with(I::client(host), watch.clone(), EndpointConfig::default())?;
        let failure = Arc::new(Mutex::new(None));
        let (first, clock) = (Arc::clone(&failure), watch.clone());
        let got = endpoint.register_continuation(move |_, done| {
            clock.stamp(place::ENTERED);
            let wrong = is_wrong(&done);
            clock.stamp(place::UNMARSHALLED);
            if let Some(wrong) = wrong {
                first.lock().get_or_insert(wrong);
            }
        });
        Ok(Self {
            session: endpoint
                .connect(&I::address_from_client(address))
                .map_err(failed)?,
            endpoint,
            watch,
            got,
            failure,
            options: CallOptions::default(),
            number: 0,
            wait,
        })
    }

    /// One read, from the application's call to its value.
    #[inline]
    fn get(&mut self) -> Result<(), BenchError> {
        self.number = (self.number + 1) % RECORDS;
        let key = key(self.number);
        self.watch.stamp_always(place::BEGUN);
        let mut request = GetRequest::default();
        request.set_key(&key);
        self.watch.stamp(place::MARSHALLED);
        self.watch.expect_sending();
        // A message of this size is in one piece.
        let (body, _) = request.parts();
        self.call(GET, body, self.got)?;
        self.watch.stamp_always(place::OVER);
        Ok(())
    }

    #[inline]
    fn call(
        &mut self,
        method: MethodId,
        body: &[u8],
        continuation: ContinuationId,
    ) -> Result<(), BenchError> {
        let before = self.endpoint.stats().completions;
        let build = |buffer: &mut Vec<u8>| buffer.extend_from_slice(body);
        let (options, tag) = (&self.options, self.number as u64);
        self.endpoint
            .call(self.session, method, options, build, continuation, tag)
            .map_err(failed)?;
        while self.endpoint.stats().completions == before {
            self.endpoint.poll().map_err(failed)?;
            self.wait.pause();
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        match self.failure.lock().take() {
            Some(wrong) => Err(failed(wrong)),
            None => Ok(()),
        }
    }
}

/// The error in an answer; its tag is the record's number.
fn is_wrong(done: &Completion<'_>) -> Option<String> {
    let response = match &done.result {
        Ok(response) => response,
        Err(status) => return Some(status.to_string()),
    };
    match GetResponse::parse(response.body()) {
        Ok(view) if view.found() && view.value() == value(done.tag as usize) => None,
        Ok(view) => Some(format!("record {} is {:?}", done.tag, view.value())),
        Err(error) => Some(error.to_string()),
    }
}

/// The measurements, in ticks. The time of a whole call includes one stamp.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Calls with stamps at their beginning and end only.
    pub(super) plain: Vec<u64>,
    /// Calls with stamps.
    pub(super) stamped: Vec<Stages>,
    /// Nanoseconds per tick.
    pub(super) ns_of_tick: f64,
}

/// Makes reads and takes their stages.
pub(super) fn measure<I: Device>(context: &Context) -> Result<Measured, BenchError> {
    let wait = BusyWait::on(context.cores);
    let arguments = [I::SCHEME, wait.name(), context.network.server()];
    let server = context.launcher.start(server::ROLE, &arguments)?;
    let mut reader = Reader::<I>::connect(server.address(), wait, context.network.client())?;
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let (told, failure) = (Arc::clone(&bytes), Arc::clone(&reader.failure));
    let collected = reader
        .endpoint
        .register_continuation(move |_, done| match &done.result {
            Ok(response) => told.lock().extend_from_slice(response.body()),
            Err(status) => {
                failure.lock().get_or_insert(status.to_string());
            }
        });
    let mut measured = Measured {
        ns_of_tick: reader.watch.ns_of_tick(),
        ..Measured::default()
    };
    let mut ours = Vec::with_capacity(BLOCK);
    let warm_up = Period::warm_up(context);
    let mut period = None;
    loop {
        for stamped in [false, true] {
            reader.watch.take_stamps(stamped);
            reader.call(COLLECT, &[u8::from(stamped)], collected)?;
            ours.clear();
            for _ in 0..BLOCK {
                reader.get()?;
                ours.push(reader.watch.stamps());
            }
            bytes.lock().clear();
            reader.call(COLLECT, &[0], collected)?;
            reader.check()?;
            if period.is_some() {
                measured.add(stamped, &ours, &bytes.lock())?;
            }
        }
        match &period {
            None if warm_up.is_over() => period = Some(Period::measured(context)),
            Some(period) if period.is_over() || measured.stamped.len() >= CALLS => {
                return Ok(measured);
            }
            _ => {}
        }
    }
}

impl Measured {
    /// Adds a block; `bytes` are the server's stamps of it.
    fn add(
        &mut self,
        stamped: bool,
        ours: &[[u64; place::COUNT]],
        bytes: &[u8],
    ) -> Result<(), BenchError> {
        let whole = |row: &[u64; place::COUNT]| row[place::OVER].wrapping_sub(row[place::BEGUN]);
        let ours = &ours[COLD..];
        if !stamped {
            self.plain.extend(ours.iter().map(whole));
            return Ok(());
        }
        let theirs = parse(bytes).filter(|theirs| theirs.len() == BLOCK);
        let theirs =
            theirs.ok_or_else(|| failed("the server's stamps do not belong to the calls"))?;
        for (ours, theirs) in ours.iter().zip(&theirs[COLD..]) {
            let stages = cut(ours, theirs)
                .ok_or_else(|| failed("the time stamp counters of the two cores disagree"))?;
            self.stamped.push(stages);
        }
        Ok(())
    }
}

/// The rows of a server's stamps. `None`: the bytes are not whole rows.
fn parse(bytes: &[u8]) -> Option<Vec<server::Row>> {
    let (stamps, rest) = bytes.as_chunks::<8>();
    let stamps: Vec<u64> = stamps.iter().map(|b| u64::from_le_bytes(*b)).collect();
    let (rows, left) = stamps.as_chunks();
    (rest.is_empty() && left.is_empty()).then(|| rows.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_rows_are_parsed() {
        let row: server::Row = std::array::from_fn(|n| n as u64 + 7);
        let bytes: Vec<u8> = [row, row]
            .iter()
            .flatten()
            .flat_map(|s| s.to_le_bytes())
            .collect();
        assert_eq!(parse(&bytes), Some(vec![row, row]));
        assert_eq!(parse(&bytes[1..]), None);
        assert_eq!(parse(&bytes[8..]), None);
        assert_eq!(parse(&[]), Some(vec![]));
    }
}
