//! Requests that policies look into: by the schema of the server that gets them, which the runtime asks it for.
//!
//! ```text
//!  first request of a method ─▶ waits ─▶ Bind to the server ─▶ its schema ─▶ policies read it and those that follow
//! ```
//!
//! So a policy sees values as the server understands them, whatever the application says. A route asks once for each
//! method and session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use starling::Message;
use starling::reflection::{BindRequest, BindResponse};
use starling_compress::Algorithm;
use starling_endpoint::{CallError, CallOptions, Code, Encoding, MethodId, Status, unsent_message};
use starling_io::Clock;
use starling_message::protobuf::{self, DecodeLimits};
use starling_message::{Arena, validate};
use starling_policy::{PolicyMessage, PolicyMethod};

use super::Runtime;
use super::routes::RouteId;
use crate::forwarded::{CallResult, ForwardedRequest};
use crate::link::{Arrived, Ended};

/// Set in the tags of the service's own calls. Those of forwarded ones are places in a table.
pub(super) const OWN_CALL: u64 = 1 << 63;
/// Bits of the numbers of one runtime's own calls.
pub(super) const QUESTIONS_OF_ONE: u32 = 48;
/// How long a server may take to describe a method.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// After a failure, calls of the method fail at once for so long.
const PAUSE_NS: u64 = 1_000_000_000;
/// The longest request that policies look into, in bytes of memory.
const MAX_READ: usize = 4 << 20;
/// What one byte of protobuf may become, when it is read.
const DECODE_FACTOR: usize = 64;
/// Memory beyond it is not kept.
const MAX_KEPT: usize = 64 << 10;
/// Requests whose reading is more work than that of so many bytes are read while no engine is locked.
pub(super) const READ_WHILE_LOCKED: usize = 4 << 10;
/// So many bytes of requests that have waited for a schema are read each round.
const BYTES_READ: usize = 256 << 10;

/// Whether a call that is over was one of the service's own.
#[inline]
pub(super) fn is_own(ended: &Ended) -> bool {
    ended.tag & OWN_CALL != 0
}

/// What a route knows of a method of its server.
#[derive(Debug)]
pub(super) enum Known {
    /// The server is asked, by the call with this tag.
    Asked(u64),
    Is(Arc<PolicyMethod>),
    /// Requests cannot be looked into, and are refused.
    Fails {
        until_ns: u64,
        status: Status,
    },
}

/// What a route knows of its server's methods, in this session.
pub(super) type KnownMethods = HashMap<MethodId, Known, RandomState>;

/// A request that waits for a schema.
#[derive(Debug)]
pub(super) struct Reading {
    since_ns: u64,
    pub(super) arrived: Arrived,
}

/// The schemas that servers are asked for.
#[derive(Debug, Default)]
pub(super) struct Asking {
    calls: HashMap<u64, Question>,
    next: u64,
    /// Routes whose waiting requests are to be looked at.
    ready: VecDeque<RouteId>,
}

#[derive(Debug)]
struct Question {
    route: RouteId,
    method: MethodId,
    path: String,
}

impl Asking {
    /// Those of the service's runtime with this number, whose questions no other one has.
    pub(super) fn new(own: usize) -> Self {
        Self {
            next: (own as u64) << QUESTIONS_OF_ONE,
            ..Self::default()
        }
    }

    /// The requests of a route that wait are to be looked at.
    pub(super) fn look_at(&mut self, route: RouteId) {
        self.ready.push_back(route);
    }

    /// The answers would come too late.
    pub(super) fn forget(&mut self, known: &KnownMethods) {
        for known in known.values() {
            if let Known::Asked(tag) = known {
                self.calls.remove(tag);
            }
        }
    }
}

/// Memory for messages that are not read in place.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    unpacked: Vec<u8>,
    decoded: Vec<u8>,
}

impl Scratch {
    pub(super) fn trim(&mut self) {
        for bytes in [&mut self.unpacked, &mut self.decoded] {
            if bytes.capacity() > MAX_KEPT {
                *bytes = Vec::new();
            }
        }
    }
}

/// How it stands with a schema that is not there.
pub(super) enum Wanted {
    /// Requests wait for it.
    Later,
    Never(Status),
    /// The server shuts down: they are to be made elsewhere.
    Leaves,
}

impl Runtime {
    /// Asks a route's server for its schema of a method, by its path: unless it is asked, or was in vain just now.
    pub(super) fn ask_for_schema(
        &mut self,
        id: RouteId,
        method: MethodId,
        path: Option<String>,
    ) -> Wanted {
        let route = self.routes.get(id);
        match route.and_then(|route| route.known.get(&method)) {
            Some(Known::Asked(_)) => return Wanted::Later,
            Some(Known::Fails { until_ns, status }) if self.clock.now_ns() < *until_ns => {
                return Wanted::Never(status.clone());
            }
            _ => {}
        }
        let nameless =
            || Status::internal("a policy looks into a method that its scope does not name");
        let asked = path.ok_or_else(nameless);
        match asked {
            Ok(path) => self.ask(id, method, path).unwrap_or_else(Wanted::Never),
            Err(status) => Wanted::Never(status),
        }
    }

    fn ask(&mut self, id: RouteId, method: MethodId, path: String) -> Result<Wanted, Status> {
        let gone = || Status::unavailable("the service no longer reaches the server");
        let route = self.routes.get(id).ok_or_else(gone)?;
        let session = route.session().ok_or_else(gone)?;
        let link = route.link;
        let bind = BindRequest::new().with_path(&path).with_this_method(true);
        let body = bind.to_protobuf();
        let body = body.map_err(|error| Status::internal(error.to_string()))?;
        let options = CallOptions {
            encoding: Encoding::Protobuf,
            timeout: Some(ANSWER_TIME),
            ..CallOptions::default()
        };
        let request = ForwardedRequest::new(self.bind, options, body);
        self.asking.next += 1;
        let tag = OWN_CALL | self.asking.next;
        let entry = self.links.awake(link).ok_or_else(gone)?;
        match entry.link.call(session, request, tag) {
            Ok(_) => {}
            Err(CallError::Draining) => return Ok(Wanted::Leaves),
            Err(error) => return Err(self.not_made(id, error)),
        }
        let question = Question {
            route: id,
            method,
            path,
        };
        self.asking.calls.insert(tag, question);
        if let Some(route) = self.routes.get_mut(id) {
            route.known.insert(method, Known::Asked(tag));
        }
        Ok(Wanted::Later)
    }

    /// A call of the service's own is over: takes in what it brought.
    pub(super) fn handle_own(&mut self, ended: Ended) {
        if Self::is_of_trial(&ended) {
            return self.handle_answer(ended);
        }
        let Some(question) = self.asking.calls.remove(&ended.tag) else {
            return;
        };
        let Question {
            route: id,
            method,
            path,
        } = question;
        // The server shuts down: whoever asks again hears of it.
        let mut result = ended.result;
        let is_unsent = (result.as_mut().err()).is_some_and(|it| unsent_message(it).is_some());
        let described = self.described(&path, result);
        let until_ns = self.clock.now_ns() + PAUSE_NS;
        let Some(route) = self.routes.get_mut(id) else {
            return;
        };
        match described {
            Ok(schema) => route.known.insert(method, Known::Is(schema)),
            Err(_) if is_unsent => route.known.remove(&method),
            Err(status) => route
                .known
                .insert(method, Known::Fails { until_ns, status }),
        };
        self.asking.ready.push_back(id);
    }

    pub(super) fn wait_to_be_read(&mut self, id: RouteId, arrived: Arrived) {
        if let Some(route) = self.routes.get_mut(id) {
            let since_ns = self.clock.now_ns();
            route.reading.push(Reading { since_ns, arrived });
        }
    }

    /// All requests that wait for a schema are asked again whether they have to.
    pub(super) fn look_at_waiting(&mut self) {
        let waiting = self.routes.waiting_for_schemas();
        self.asking.ready.extend(waiting);
    }

    /// Has requests go on that have waited for a schema, a bounded number of bytes each round. Returns whether there
    /// were any.
    pub(super) fn release_read(&mut self) -> bool {
        if self.asking.ready.is_empty() {
            return false;
        }
        self.policies.look_at(&self.clock);
        let (mut bytes, mut any) = (0, false);
        while bytes < BYTES_READ
            && let Some(id) = self.asking.ready.pop_front()
        {
            let Some(route) = self.routes.get_mut(id) else {
                continue;
            };
            let mut waiting = std::mem::take(&mut route.reading).into_iter();
            while bytes < BYTES_READ
                && let Some(Reading { since_ns, arrived }) = waiting.next()
            {
                any = true;
                bytes += work_of(&arrived);
                self.go_on(id, since_ns, arrived, None);
            }
            if waiting.len() > 0
                && let Some(route) = self.routes.get_mut(id)
            {
                // Behind them stand those that have to wait for another schema.
                let again = std::mem::take(&mut route.reading);
                route.reading = waiting.chain(again).collect();
                self.asking.ready.push_back(id);
            }
        }
        any
    }

    /// The method, as the server has described it.
    fn described(&self, path: &str, result: CallResult) -> Result<Arc<PolicyMethod>, Status> {
        let failed = |code: Code, problem: &str| {
            let text = format!(
                "{path}: a policy of this service looks into requests, and the server cannot be asked for its \
                 schema: {problem}; the call did not run"
            );
            Status::new(code, text)
        };
        let response = result.map_err(|status| {
            let code = match status.code() {
                Code::Unimplemented => Code::Unimplemented,
                Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied => {
                    Code::FailedPrecondition
                }
                // It is busy, or gone.
                _ => Code::Unavailable,
            };
            failed(code, status.message())
        })?;
        let wrong = |problem: String| failed(Code::FailedPrecondition, &problem);
        let response = BindResponse::from_protobuf(response.body(), 1 << 20);
        let response = response.map_err(|error| wrong(error.to_string()))?;
        let schema = self.shared.schemas.describe(path, response.schema());
        let schema = schema.map_err(wrong)?;
        match schema.is_streaming() {
            false => Ok(schema),
            true => Err(failed(
                Code::FailedPrecondition,
                "it is a streaming method, whose items policies cannot read",
            )),
        }
    }
}

/// The bytes that it takes to read a request, roughly.
pub(super) fn work_of(arrived: &Arrived) -> usize {
    let options = &arrived.request.options;
    let body = arrived.request.body().len();
    let len = options.coding.compressed.map_or(body, |it| it.len as usize);
    match options.encoding {
        Encoding::Native => len,
        Encoding::Protobuf => 8 * len,
    }
}

/// A request as a message that a policy may read.
///
/// # Errors
/// The status that refuses it: it is no such message, or too large.
pub(super) fn open<'a>(
    schema: &'a PolicyMethod,
    options: &CallOptions,
    body: &'a [u8],
    scratch: &'a mut Scratch,
) -> Result<PolicyMessage<'a>, Status> {
    let path = schema.path();
    let too_large = |len: usize| {
        Status::resource_exhausted(format!(
            "the request of {path} has {len} bytes, and a policy of this service looks into {MAX_READ} at most; the \
             call did not run"
        ))
    };
    let Scratch { unpacked, decoded } = scratch;
    let body = match options.coding.compressed {
        None => body,
        Some(compressed) => {
            let len = compressed.len as usize;
            if len > MAX_READ {
                return Err(too_large(len));
            }
            let number = compressed.algorithm;
            let algorithm = Algorithm::from_number(number).filter(|it| it.is_available());
            let Some(algorithm) = algorithm else {
                return Err(Status::unimplemented(format!(
                    "the request of {path} is compressed by algorithm {number}, which this service does not have, and \
                     a policy looks into it; the call did not run"
                )));
            };
            unpacked.clear();
            let done = starling_compress::decompress(algorithm, body, len, unpacked);
            done.map_err(|error| schema.malformed(&error))?;
            unpacked
        }
    };
    if body.len() > MAX_READ {
        return Err(too_large(body.len()));
    }
    let layout = schema.request();
    match options.encoding {
        // Whoever reads it checks what it reads.
        Encoding::Native if body.len() <= READ_WHILE_LOCKED => {
            Ok(PolicyMessage::unchecked(schema, body))
        }
        Encoding::Native => {
            validate(layout, body).map_err(|error| schema.malformed(&error))?;
            Ok(PolicyMessage::valid(schema, body))
        }
        Encoding::Protobuf => {
            decoded.clear();
            let mut arena = Arena::begin(std::mem::take(decoded), layout);
            let limits = DecodeLimits {
                factor: DECODE_FACTOR,
                ..DecodeLimits::from(MAX_READ)
            };
            let done = protobuf::decode(layout, body, &mut arena, limits);
            // The memory is used again, whatever it holds.
            *decoded = arena.into_parts().0;
            done.map_err(|error| schema.malformed(&error))?;
            Ok(PolicyMessage::valid(schema, decoded))
        }
    }
}
