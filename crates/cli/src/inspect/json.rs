//! A look at a process as JSON. The keys are the names of the fields in `introspection.proto`.

use serde_json::{Map, Value, json};
use starling::introspection::{
    CallSeriesView, ClientSessionView, CountView, ServerSessionView, ThreadView,
};

use super::Look;

pub(super) fn of(look: &Look) -> Value {
    let process = look.process.message();
    let channels = process.channels().iter().map(|channel| {
        json!({
            "address": channel.address(),
            "state": channel.state(),
            "calls_outstanding": channel.calls_outstanding(),
            "capacity": channel.capacity(),
        })
    });
    let calls = (look.calls.iter()).flat_map(|page| page.message().series().iter().map(series));
    json!({
        "pid": process.pid(),
        "version": process.version(),
        "uptime_ms": process.uptime_ms(),
        "has_metrics": process.has_metrics(),
        "threads": process.threads().iter().map(|it| thread(look, &it)).collect::<Vec<_>>(),
        "channels": channels.collect::<Vec<_>>(),
        "calls": calls.collect::<Vec<_>>(),
    })
}

fn counts<'a>(counts: impl Iterator<Item = CountView<'a>>) -> Value {
    let counts = counts.map(|count| (count.name().to_owned(), json!(count.value())));
    Value::Object(counts.collect::<Map<_, _>>())
}

fn thread(look: &Look, thread: &ThreadView<'_>) -> Value {
    let mut value = json!({
        "number": thread.number(),
        "role": thread.role(),
        "answered": thread.answered(),
    });
    let object = value.as_object_mut().expect("just made");
    if !thread.answered() {
        return value;
    }
    let budgets = thread.budgets();
    let budgets = budgets.iter().map(|it| {
        json!({
            "what": it.what(),
            "unit": it.unit(),
            "held": it.held_opt(),
            "one_peer": it.one_peer(),
            "all_peers": it.all_peers(),
            "setting": it.setting(),
        })
    });
    let connections = thread.connections().iter();
    let connections = connections.map(|it| json!({"address": it.address(), "state": it.state()}));
    let rest = json!({
        "address": thread.address(),
        "device_mode": thread.device_mode(),
        "calls_outstanding": thread.calls_outstanding(),
        "requests_pending": thread.requests_pending(),
        "streams": thread.streams(),
        "reassembling_bytes": thread.reassembling_bytes(),
        "retained_bytes": thread.retained_bytes(),
        "client_sessions": thread.client_sessions(),
        "server_sessions": thread.server_sessions(),
        "budgets": budgets.collect::<Vec<_>>(),
        "connections": connections.collect::<Vec<_>>(),
        "endpoint_counts": counts(thread.endpoint_counts().iter()),
        "protocol_counts": counts(thread.protocol_counts().iter()),
        "device_counts": counts(thread.device_counts().iter()),
    });
    object.extend(rest.as_object().cloned().unwrap_or_default());
    if thread.has_workers() {
        let workers = thread.workers();
        let with_each: Vec<u32> = workers.with_each().iter().collect();
        let workers = json!({
            "in_flight": workers.in_flight(),
            "waiting": workers.waiting(),
            "with_each": with_each,
            "claimed": workers.claimed(),
        });
        object.insert("workers".into(), workers);
    }
    if let Some((_, pages)) = (look.sessions.iter()).find(|(own, _)| *own == thread.number()) {
        let clients = pages
            .iter()
            .flat_map(|page| page.message().client_sessions().iter());
        let clients: Vec<_> = clients.map(client_session).collect();
        let servers = pages
            .iter()
            .flat_map(|page| page.message().server_sessions().iter());
        let servers: Vec<_> = servers.map(server_session).collect();
        object.insert("client_session_list".into(), clients.into());
        object.insert("server_session_list".into(), servers.into());
    }
    value
}

fn client_session(session: ClientSessionView<'_>) -> Value {
    json!({
        "id": session.id(),
        "address": session.address(),
        "state": session.state(),
        "slots": session.slots(),
        "busy_slots": session.busy_slots(),
        "queued": session.queued(),
        "credits": session.credits(),
        "credits_in_use": session.credits_in_use(),
        "window": session.window_opt(),
        "rate_bps": session.rate_bps_opt(),
        "rtt_ns": session.rtt_ns(),
        "first": session.first_opt(),
        "suspected": session.suspected(),
    })
}

fn server_session(session: ServerSessionView<'_>) -> Value {
    json!({
        "id": session.id(),
        "peer": session.peer(),
        "pid": session.pid_opt(),
        "uid": session.uid_opt(),
        "slots": session.slots(),
        "executing": session.executing(),
        "receiving": session.receiving(),
        "credits": session.credits(),
        "credits_wanted": session.credits_wanted(),
        "idle_ns": session.idle_ns(),
    })
}

fn series(series: CallSeriesView<'_>) -> Value {
    json!({
        "side": series.side(),
        "address": series.address(),
        "method": series.method(),
        "codes": counts(series.codes().iter()),
        "in_flight": series.in_flight(),
        "p50_ns": series.p50_ns_opt(),
        "p99_ns": series.p99_ns_opt(),
        "request_bytes": series.request_bytes(),
        "response_bytes": series.response_bytes(),
        "messages_received": series.messages_received(),
        "messages_sent": series.messages_sent(),
    })
}
