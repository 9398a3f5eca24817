//! The stubs of methods whose requests or responses are streams.

use std::fmt::Write;

use starling_message::Mode;

use crate::names::{Scope, identifier};
use crate::service::Method;

/// Which messages of a method are streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    Requests,
    Responses,
    Both,
}

fn streams_of(method: &Method) -> Option<Streams> {
    let descriptor = &method.descriptor;
    match (
        descriptor.is_client_streaming(),
        descriptor.is_server_streaming(),
    ) {
        (false, false) => None,
        (true, false) => Some(Streams::Requests),
        (false, true) => Some(Streams::Responses),
        (true, true) => Some(Streams::Both),
    }
}

/// Whether a method has streams.
pub(crate) fn has_streams(method: &Method) -> bool {
    streams_of(method).is_some()
}

/// The method of the server's trait.
pub(crate) fn trait_method(method: &Method, scope: &Scope<'_>) -> String {
    let (rt, name) = (scope.runtime, identifier(&method.base));
    let Method {
        request, response, ..
    } = method;
    let requests = format!("requests: {rt}::StreamReceiver<{request}>");
    let responses = format!("responses: {rt}::StreamSender<{response}>");
    let (arguments, output) = match streams_of(method) {
        Some(Streams::Requests) => (requests, response.as_str()),
        Some(Streams::Both) => (format!("{requests}, {responses}"), "()"),
        Some(Streams::Responses) | None => {
            let request = format!("request: {rt}::OwnedRequest<{request}>");
            (format!("{request}, {responses}"), "()")
        }
    };
    if method.mode == Mode::Worker {
        return format!(
            "///
            /// It runs in a thread of its own, and may block. The stream of responses ends when it returns.
            fn {name}(&self, context: {rt}::NestedContext, {arguments})
                -> ::core::result::Result<{output}, {rt}::Status>;\n"
        );
    }
    format!(
        "///
        /// An implementation may be an `async fn`. The stream of responses ends when it returns.
        fn {name}(self: ::std::sync::Arc<Self>, context: {rt}::NestedContext, {arguments})
            -> impl ::core::future::Future<
                Output = ::core::result::Result<{output}, {rt}::Status>> + ::core::marker::Send + 'static;\n"
    )
}

/// The statement that hands the method to the registrar.
pub(crate) fn registration(
    service: &str,
    constant: &str,
    index: usize,
    method: &Method,
    scope: &Scope<'_>,
) -> String {
    let (rt, name) = (scope.runtime, identifier(&method.base));
    let Method {
        request, response, ..
    } = method;
    let call = format!("<__T as {service}>::{name}");
    if method.mode == Mode::Worker {
        return worker_registration(&call, constant, index, method, rt);
    }
    let run = match streams_of(method) {
        Some(Streams::Requests) => format!(
            "async move {{
                let mut responses = responses;
                let response = {call}(service, context, requests).await?;
                responses.send(&response).await
            }}"
        ),
        // The handler's own future: one around it would be twice as large.
        Some(Streams::Both) => format!("{call}(service, context, requests, responses)"),
        Some(Streams::Responses) | None => format!(
            "async move {{
                let (request, _held) = {rt}::receive_only(requests, &context).await?;
                {call}(service, context, request, responses).await
            }}"
        ),
    };
    format!(
        "registrar.streaming::<{request}, {response}, _, _>(
            &{constant}.methods[{index}],
            move |context, requests, responses| {{
                let service = ::std::sync::Arc::clone(&service);
                {run}
            }},
        );\n"
    )
}

/// The statement for a handler that blocks.
fn worker_registration(
    call: &str,
    constant: &str,
    index: usize,
    method: &Method,
    rt: &str,
) -> String {
    let Method {
        request, response, ..
    } = method;
    let run = match streams_of(method) {
        Some(Streams::Requests) => format!(
            "let mut responses = responses;
            let response = {call}(&*service, context, requests)?;
            responses.send_wait(&response)"
        ),
        Some(Streams::Both) => format!("{call}(&*service, context, requests, responses)"),
        Some(Streams::Responses) | None => format!(
            "let (request, _held) = {rt}::receive_only_wait(requests, &context)?;
            {call}(&*service, context, request, responses)"
        ),
    };
    format!(
        "registrar.worker_streaming::<{request}, {response}, _>(
            &{constant}.methods[{index}],
            move |context, requests, responses| {{ {run} }},
        );\n"
    )
}

/// The methods of the client.
pub(crate) fn client_methods(
    constant: &str,
    index: usize,
    method: &Method,
    scope: &Scope<'_>,
) -> String {
    let (rt, name) = (scope.runtime, identifier(&method.base));
    let Method {
        doc,
        base,
        request,
        response,
        ..
    } = method;
    let none = "::core::option::Option::None".to_owned();
    let own = "::core::option::Option::Some(options)".to_owned();
    let (arguments, output, finish) = match streams_of(method) {
        Some(Streams::Requests) => (
            String::new(),
            format!("{rt}::StreamCall<{request}, {response}>"),
            format!("{rt}::StreamCall::new(requests, responses)"),
        ),
        Some(Streams::Both) => (
            String::new(),
            format!("({rt}::StreamSender<{request}>, {rt}::StreamReceiver<{response}>)"),
            "(requests, responses)".to_owned(),
        ),
        Some(Streams::Responses) | None => (
            format!(", request: &{request}"),
            format!("{rt}::StreamReceiver<{response}>"),
            format!("{rt}::send_only(requests, request); responses"),
        ),
    };
    let body = |own: &str| {
        format!(
            "let (requests, responses) = self.caller.streams::<{request}, {response}>(
                &{constant}.methods[{index}], &self.options, {own});
            {finish}"
        )
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "{doc} pub fn {name}(&self{arguments}) -> {output} {{ {} }}

        /// Like `{base}`, with options for this call, which come before the client's.
        pub fn {base}_with(&self{arguments}, options: &{rt}::CallOptions) -> {output} {{ {} }}\n",
        body(&none),
        body(&own),
    );
    out
}
