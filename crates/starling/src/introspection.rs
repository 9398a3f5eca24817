//! What a process does now, for `starling inspect` and tools like it: `starling.introspection.Introspection`,
//! which every server has unless it is switched off
//! ([`ServerBuilder::introspection`](crate::ServerBuilder::introspection)).
//!
//! It is for operators, as gRPC's channelz is. Whoever can call the server can ask, unless an interceptor
//! refuses. Nothing of it shows what messages or metadata hold; it does show the addresses of clients and
//! servers, and over `shm` the processes and users of clients.
//!
//! A look costs each thread of the process some microseconds, and each answer is bounded.

#[rustfmt::skip]
mod generated;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use starling_endpoint::Status;

use crate::budgets::BudgetUnit;
use crate::channel_state::ChannelState;
use crate::message::{OwnedRequest, Request};
use crate::metrics::{self, Side};
use crate::nested::NestedContext;
use crate::threads::{
    self, Asked, ClientSessionRow, PATIENCE, ServerSessionRow, ThreadReport, Wanted,
};

pub use generated::*;

/// Threads of one answer, at most.
const MAX_THREADS: usize = 256;
/// Channels of one answer, at most.
const MAX_CHANNELS: usize = 1024;
/// Sessions of each kind in one answer, at most.
const MAX_ROWS: usize = 256;
/// Series of calls in one answer, at most: they are summed in the dispatch thread.
const MAX_SERIES: usize = 64;

/// The service of a server.
pub(crate) fn introspection_server() -> IntrospectionServer<impl Introspection> {
    IntrospectionServer::new(Inspector)
}

struct Inspector;

impl Introspection for Inspector {
    async fn get_process(
        self: Arc<Self>,
        cx: NestedContext,
        _: OwnedRequest<GetProcessRequest>,
    ) -> Result<Process, Status> {
        let mut process = Process::new();
        process.set_pid(std::process::id());
        process.set_version(env!("CARGO_PKG_VERSION"));
        process.set_uptime_ms(threads::uptime().as_millis() as u64);
        process.set_has_metrics(metrics::is_enabled());
        let mut asked = threads::ask(None, &Wanted::default());
        asked.truncate(MAX_THREADS);
        for (asked, report) in answers(&cx, asked).await {
            put_thread(&asked, report, process.threads_mut().push_default());
        }
        let mut channels = process.channels_mut();
        for channel in threads::channels(MAX_CHANNELS) {
            let mut row = channels.push_default();
            row.set_address(&channel.address);
            row.set_state(name_of(channel.state));
            row.set_calls_outstanding(channel.calls_outstanding as u64);
            row.set_capacity(channel.capacity as u64);
        }
        Ok(process)
    }

    async fn list_sessions(
        self: Arc<Self>,
        cx: NestedContext,
        request: OwnedRequest<ListSessionsRequest>,
    ) -> Result<ListSessionsResponse, Status> {
        let (thread, wanted) = {
            let request = request.message();
            let wanted = Wanted {
                client_from: request.client_from() as usize,
                server_from: request.server_from() as usize,
                most: MAX_ROWS,
            };
            (request.thread(), wanted)
        };
        drop(request);
        let asked = threads::ask(Some(thread), &wanted);
        let Some((_, report)) = answers(&cx, asked).await.pop() else {
            return Err(Status::not_found(format!(
                "the process has no thread {thread} that runs an endpoint; GetProcess lists those that it has"
            )));
        };
        let report = report.ok_or_else(|| {
            Status::unavailable(format!(
                "thread {thread} does not answer: a handler holds it up, or nobody runs its endpoint"
            ))
        })?;
        let mut response = ListSessionsResponse::new();
        for row in &report.client_rows {
            put_client_session(row, response.client_sessions_mut().push_default());
        }
        for row in &report.server_rows {
            put_server_session(row, response.server_sessions_mut().push_default());
        }
        if let Some(next) = report.client_next {
            response.set_client_next(next as u32);
        }
        if let Some(next) = report.server_next {
            response.set_server_next(next as u32);
        }
        Ok(response)
    }

    fn list_calls(
        &self,
        request: Request<'_, ListCallsRequest>,
        mut response: ListCallsResponseMut<'_>,
    ) -> Result<(), Status> {
        let from = request.message().from() as usize;
        // One more than there is room for, to know whether there are more.
        let mut series = metrics::page(from, MAX_SERIES + 1);
        if series.len() > MAX_SERIES {
            series.truncate(MAX_SERIES);
            response.set_next((from + MAX_SERIES) as u32);
        }
        for series in &series {
            put_series(series, response.series_mut().push_default());
        }
        Ok(())
    }
}

/// The reports of threads, or nothing of those that do not answer in time.
async fn answers(cx: &NestedContext, asked: Vec<Asked>) -> Vec<(Asked, Option<ThreadReport>)> {
    let mut reports: Vec<Option<Option<ThreadReport>>> = asked.iter().map(|_| None).collect();
    let mut late = pin!(cx.sleep(PATIENCE));
    poll_fn(|cx| {
        for (asked, report) in asked.iter().zip(&mut reports) {
            if report.is_none()
                && let Poll::Ready(answer) = asked.answer.poll(cx)
            {
                *report = Some(answer);
            }
        }
        match reports.iter().all(Option::is_some) {
            true => Poll::Ready(()),
            false => late.as_mut().poll(cx),
        }
    })
    .await;
    asked
        .into_iter()
        .zip(reports.into_iter().map(Option::flatten))
        .collect()
}

fn name_of(state: ChannelState) -> &'static str {
    match state {
        ChannelState::Idle => "IDLE",
        ChannelState::Connecting => "CONNECTING",
        ChannelState::Ready => "READY",
        ChannelState::TransientFailure => "TRANSIENT_FAILURE",
    }
}

fn put_thread(asked: &Asked, report: Option<ThreadReport>, mut row: ThreadMut<'_>) {
    row.set_number(asked.number);
    row.set_role(asked.role.name());
    let Some(report) = report else {
        return;
    };
    row.set_answered(true);
    row.set_address(&report.stats.address);
    row.set_device_mode(report.stats.device.mode.unwrap_or_default());
    row.set_calls_outstanding(report.calls_outstanding as u64);
    row.set_requests_pending(report.requests_pending as u64);
    row.set_streams(report.streams as u64);
    row.set_reassembling_bytes(report.reassembling_bytes as u64);
    row.set_retained_bytes(report.retained_bytes as u64);
    row.set_client_sessions(report.client_sessions as u64);
    row.set_server_sessions(report.server_sessions as u64);
    if let Some(workers) = &report.workers {
        let mut own = row.workers_mut();
        own.set_in_flight(workers.in_flight as u64);
        own.set_waiting(workers.waiting as u64);
        own.set_claimed(workers.claimed as u64);
        let with_each = workers.with_each.iter();
        own.with_each_mut()
            .extend(with_each.map(|jobs| *jobs as u32));
    }
    let mut budgets = row.budgets_mut();
    for (budget, held) in &report.budgets {
        let mut own = budgets.push_default();
        own.set_what(budget.what);
        own.set_unit(match budget.unit {
            BudgetUnit::Bytes => "bytes",
            BudgetUnit::Items => "items",
        });
        if let Some(held) = held {
            own.set_held(*held);
        }
        own.set_one_peer(budget.one_peer);
        own.set_all_peers(budget.all_peers);
        own.set_setting(budget.setting);
    }
    let mut connections = row.connections_mut();
    for (address, state) in &report.connections {
        let mut connection = connections.push_default();
        connection.set_address(address);
        connection.set_state(name_of(*state));
    }
    let put = |(name, value): &(&str, u64), mut count: CountMut<'_>| {
        count.set_name(name);
        count.set_value(*value);
    };
    let is_some = |(_, value): &&(&'static str, u64)| *value > 0;
    for count in report.stats.endpoint.counts().iter().filter(is_some) {
        put(count, row.endpoint_counts_mut().push_default());
    }
    for count in report.stats.protocol.counts().iter().filter(is_some) {
        put(count, row.protocol_counts_mut().push_default());
    }
    for count in report.stats.device.counts.iter().filter(is_some) {
        put(count, row.device_counts_mut().push_default());
    }
}

fn put_client_session(row: &ClientSessionRow, mut out: ClientSessionMut<'_>) {
    let session = &row.session;
    out.set_id(session.id.to_wire());
    out.set_address(&row.address);
    out.set_state(session.state);
    out.set_slots(session.slots as u32);
    out.set_busy_slots(session.busy_slots as u32);
    out.set_queued(session.queued as u32);
    out.set_credits(session.credits.into());
    out.set_credits_in_use(session.credits_in_use.into());
    if let Some(window) = session.window {
        out.set_window(window.into());
    }
    if let Some(rate_bps) = session.rate_bps {
        out.set_rate_bps(rate_bps);
    }
    out.set_rtt_ns(session.rtt_ns);
    if let Some(first) = session.first {
        out.set_first(first.to_wire());
    }
    out.set_suspected(session.is_suspected);
}

fn put_server_session(row: &ServerSessionRow, mut out: ServerSessionMut<'_>) {
    let session = &row.session;
    out.set_id(session.id.to_wire());
    out.set_peer(row.peer.address());
    if let Some(process) = row.peer.process() {
        if let Some(pid) = process.pid {
            out.set_pid(pid);
        }
        if let Some(uid) = process.uid {
            out.set_uid(uid);
        }
    }
    out.set_slots(session.slots as u32);
    out.set_executing(session.executing as u32);
    out.set_receiving(session.receiving as u32);
    out.set_credits(session.credits.into());
    out.set_credits_wanted(session.credits_wanted.into());
    out.set_idle_ns(session.idle_ns);
}

fn put_series(series: &metrics::CallSeries, mut out: CallSeriesMut<'_>) {
    let (key, totals) = (&series.key, &series.totals);
    out.set_side(match key.side {
        Side::Client => "client",
        Side::Server => "server",
    });
    out.set_address(&key.address);
    out.set_method(&key.method);
    let mut codes = out.codes_mut();
    for (code, durations) in totals.durations() {
        let mut count = codes.push_default();
        count.set_name(code.name());
        count.set_value(durations.count());
    }
    out.set_in_flight(totals.in_flight());
    let durations = totals.duration(starling_endpoint::Code::Ok);
    if let (Some(p50), Some(p99)) = (durations.quantile_ns(0.5), durations.quantile_ns(0.99)) {
        out.set_p50_ns(p50);
        out.set_p99_ns(p99);
    }
    out.set_request_bytes(totals.requests.sum());
    out.set_response_bytes(totals.responses.sum());
    out.set_messages_received(totals.messages_received);
    out.set_messages_sent(totals.messages_sent);
}
