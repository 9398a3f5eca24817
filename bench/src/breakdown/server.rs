//! The server: reads of small records, and the stamps of the last ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use starling::Message;
use starling::stub::{Arena, Reader, validate};
use starling_endpoint::{Endpoint, Handler, MethodId, Status};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use super::stage::server as place;
use super::stamps::{Places, Stamping};
use super::{BLOCK, KEY_BYTES, RECORDS, VALUE_BYTES, key};
use crate::device::{Device, endpoint_with, failed};
use crate::error::BenchError;
use crate::floor::BusyWait;
use crate::process::announce;
use starling_sample_services::api::kv::{GetRequest, GetResponse};

/// Role of the server; its arguments are the scheme, [`BusyWait::name`], and the host.
pub(super) const ROLE: &str = "breakdown-server";

/// Reads a record.
pub(super) const GET: MethodId = MethodId(1);

/// Answers with the stamps of the reads since the last such call, and forgets them. The request is
/// one byte: 1 if stamps are taken from now on, 0 if not.
pub(super) const COLLECT: MethodId = MethodId(2);

/// The stamps of one call.
pub(super) type Row = [u64; place::COUNT];

type Clock = Stamping<{ place::COUNT }>;

const PLACES: Places = Places {
    sending: place::SENDING,
    sent: place::SENT,
    receiving: place::RECEIVING,
    received: place::RECEIVED,
    taken: place::TAKEN,
};

/// The value of a record.
pub(super) fn value(number: usize) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    value[..8].copy_from_slice(&(number as u64).to_le_bytes());
    value
}

/// The server.
pub(super) fn serve(arguments: &[String]) -> Result<(), BenchError> {
    let bad = || BenchError::BadRoleArguments {
        role: ROLE.into(),
        why: "expected a scheme, `spin` or `yield`, and a host".into(),
    };
    let [scheme, wait, host] = arguments else {
        return Err(bad());
    };
    let wait = BusyWait::from_name(wait).ok_or_else(bad)?;
    match scheme.as_str() {
        UdpIo::SCHEME => serve_on::<UdpIo>(wait, host),
        ShmIo::SCHEME => serve_on::<ShmIo>(wait, host),
        XdpIo::SCHEME => serve_on::<XdpIo>(wait, host),
        _ => Err(bad()),
    }
}

fn serve_on<I: Device>(wait: BusyWait, host: &str) -> Result<(), BenchError> {
    let clock = Clock::new(PLACES);
    let mut endpoint = endpoint_with(I::server(host), clock.clone(), Default::default())?;
    register(&mut endpoint, clock.clone());
    let rows = Arc::new(Mutex::new(Vec::<Row>::with_capacity(BLOCK)));
    let (collected, stamping) = (Arc::clone(&rows), clock.clone());
    endpoint.register(
        COLLECT,
        Handler::inline(move |_, request, mut reply| {
            stamping.take_stamps(request.body() == [1]);
            for stamp in collected.lock().drain(..).flatten() {
                reply.buffer().extend_from_slice(&stamp.to_le_bytes());
            }
            reply.ok();
        }),
    );
    announce(&endpoint.local_address())?;
    loop {
        endpoint.poll().map_err(failed)?;
        if clock.take_sent() {
            let mut rows = rows.lock();
            if rows.len() < BLOCK {
                rows.push(clock.stamps());
            }
        }
        wait.pause();
    }
}

/// Registers the read.
fn register<I: Device>(endpoint: &mut Endpoint<I, Clock>, watch: Clock) {
    let records: HashMap<[u8; KEY_BYTES], [u8; VALUE_BYTES]> = (0..RECORDS)
        .map(|number| (key(number), value(number)))
        .collect();
    endpoint.register(
        GET,
        Handler::inline(move |_, request, mut reply| {
            watch.stamp(place::ENTERED);
            // The same steps as in generated servers.
            if let Err(error) = validate(GetRequest::LAYOUT, request.body()) {
                return reply.status(Status::invalid_argument(error.to_string()));
            }
            let wanted = GetRequest::view_of(Reader::root(request.body())).key();
            watch.stamp(place::UNMARSHALLED);
            let value = records.get(wanted);
            watch.stamp(place::HANDLED);
            let buffer = std::mem::take(reply.buffer());
            let mut arena = Arena::begin(buffer, GetResponse::LAYOUT);
            if let Some(value) = value {
                let mut response = GetResponse::mut_of(arena.root());
                response.set_found(true);
                response.set_value(value);
            }
            // A message of this size is in one piece.
            (*reply.buffer(), _) = arena.into_parts();
            reply.ok();
            watch.stamp(place::MARSHALLED);
            watch.expect_sending();
        }),
    );
}
