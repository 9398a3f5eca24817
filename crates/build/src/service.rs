//! Stubs: for each service a descriptor, the server's trait, its server and its client. Type
//! parameters begin with underscores, which no name from a `.proto` file does.
//!
//! The runtime path (`::starling::stub` by default) must provide these items, and all of
//! `starling_message`:
//!
//! ```text
//! struct Request<'a, Q: Message>          message() -> Q::View<'a>, metadata, deadline
//! struct OwnedRequest<Q: Message>         'static, message() -> Q::View<'_>
//! struct NestedContext                    'static: how a nested handler makes its calls
//! struct Response<P: Message>             message() -> P::View<'_>
//! struct Status, CallOptions: Clone + Debug + Default
//!
//! trait Service: Sized + 'static {
//!     fn descriptor(&self) -> &'static ServiceDescriptor;
//!     // Hands each method to the registrar once, in the order of the descriptor.
//!     fn register<R: Registrar + ?Sized>(self, registrar: &mut R);
//! }
//! trait Registrar {
//!     // mode: Inline or Worker.
//!     fn unary<Q: Message, P: Message, F>(&mut self, &'static MethodDescriptor, Mode, handler: F)
//!     where F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status> + Send + Sync + 'static;
//!     fn nested<Q: Message, P: Message, F, Fut>(&mut self, &'static MethodDescriptor, handler: F)
//!     where F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
//!           Fut: Future<Output = Result<P, Status>> + Send + 'static;
//!     fn streaming<Q: Message, P: Message, F, Fut>(&mut self, &'static MethodDescriptor, handler: F)
//!     where F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Fut + Send + Sync + 'static,
//!           Fut: Future<Output = Result<(), Status>> + Send + 'static;
//!     fn worker_streaming<Q: Message, P: Message, F>(&mut self, &'static MethodDescriptor, handler: F)
//!     where F: Fn(NestedContext, StreamReceiver<Q>, StreamSender<P>) -> Result<(), Status>
//!           + Send + Sync + 'static;
//! }
//! trait Caller: Clone {
//!     type Call<P: Message>: Future<Output = Result<Response<P>, Status>>;
//!     fn unary<Q: Message, P: Message>(&self, &'static MethodDescriptor, &Q, &CallOptions,
//!         Option<&CallOptions>) -> Self::Call<P>;
//!     fn streams<Q: Message, P: Message>(&self, &'static MethodDescriptor, &CallOptions,
//!         Option<&CallOptions>) -> (StreamSender<Q>, StreamReceiver<P>);
//! }
//! struct StreamSender<M: Message>, StreamReceiver<M: Message>, StreamCall<Q: Message, P: Message>
//! fn send_only(StreamSender<Q>, &Q)
//! async fn receive_only(StreamReceiver<Q>, &NestedContext) -> Result<(OwnedRequest<Q>, impl Send), Status>
//! fn receive_only_wait(StreamReceiver<Q>, &NestedContext) -> Result<(OwnedRequest<Q>, impl Send), Status>
//! ```

use std::collections::{HashMap, HashSet};

use prost_reflect::{MethodDescriptor, ServiceDescriptor, Value};
use prost_types::method_options::IdempotencyLevel;
use starling_message::schema::Schema;
use starling_message::{Mode, method_id};

use crate::comments;
use crate::error::{Error, unsupported};
use crate::names::{Scope, UsedNames, camel, identifier, shouty, snake};
use crate::schema::{method_path, schema_of};
use crate::streaming;

/// Methods of a client that are not calls.
const RESERVED: [&str; 6] = ["new", "caller", "clone", "fmt", "from_arc", "with_options"];

/// A method, ready to be written.
pub(crate) struct Method {
    pub(crate) descriptor: MethodDescriptor,
    pub(crate) mode: Mode,
    pub(crate) doc: String,
    /// The method's name in Rust, which may not be an identifier yet.
    pub(crate) base: String,
    pub(crate) request: String,
    pub(crate) response: String,
}

pub(crate) fn generate(
    service: &ServiceDescriptor,
    scope: &Scope<'_>,
    descriptor_set: &str,
    used: &mut UsedNames,
    out: &mut String,
) -> Result<(), Error> {
    let name = camel(service.name());
    let constant = shouty(service.name()) + "_SERVICE";
    for item in [
        name.clone(),
        format!("{name}Server"),
        format!("{name}Client"),
        constant.clone(),
    ] {
        used.add(scope, service, item)?;
    }
    let methods = methods(service, scope)?;
    write_descriptor(service, &constant, &methods, scope, descriptor_set, out)?;
    write_trait(service, &name, &methods, scope, out);
    write_server(service, &name, &constant, &methods, scope, out);
    write_client(service, &name, &constant, &methods, scope, out);
    Ok(())
}

fn methods(service: &ServiceDescriptor, scope: &Scope<'_>) -> Result<Vec<Method>, Error> {
    let file = service.parent_file();
    let mut used: HashSet<String> = RESERVED.iter().map(|name| (*name).to_owned()).collect();
    let mut ids: HashMap<u32, String> = HashMap::new();
    let mut methods = Vec::new();
    for descriptor in service.methods() {
        for message in [descriptor.input(), descriptor.output()] {
            scope.check_code(&descriptor, &message.parent_file(), message.full_name())?;
        }
        let path = method_path(&descriptor);
        if let Some(other) = ids.insert(method_id(&path), path.clone()) {
            let problem = format!("its method id is that of {other}; rename one of them");
            return Err(unsupported(&descriptor, problem));
        }
        let mut base = snake(descriptor.name());
        if used.contains(&base) || used.contains(&format!("{base}_with")) {
            base.push_str("_call");
        }
        if !used.insert(base.clone()) || !used.insert(format!("{base}_with")) {
            let problem =
                format!("the method name `{base}` in Rust is already taken; rename this method");
            return Err(unsupported(&descriptor, problem));
        }
        let fallback = format!("Method `{path}`.");
        methods.push(Method {
            mode: mode_of(&descriptor)?,
            doc: comments::doc(&file, descriptor.path(), &fallback),
            base,
            request: scope.message(&descriptor.input(), ""),
            response: scope.message(&descriptor.output(), ""),
            descriptor,
        });
    }
    Ok(methods)
}

/// The option `(starling.mode)`. A method with streams is a nested one, unless it runs in a thread of its own.
fn mode_of(method: &MethodDescriptor) -> Result<Mode, Error> {
    let mode = option_of(method)?;
    let has_streams = method.is_client_streaming() || method.is_server_streaming();
    Ok(match mode {
        Mode::Inline if has_streams => Mode::Nested,
        mode => mode,
    })
}

fn option_of(method: &MethodDescriptor) -> Result<Mode, Error> {
    let Some(extension) = method.parent_pool().get_extension_by_name("starling.mode") else {
        return Ok(Mode::Inline);
    };
    match method.options().get_extension(&extension).as_ref() {
        Value::EnumNumber(0) => Ok(Mode::Inline),
        Value::EnumNumber(1) => Ok(Mode::Worker),
        Value::EnumNumber(2) => Ok(Mode::Nested),
        _ => {
            let problem = "unknown (starling.mode); it is INLINE, WORKER or NESTED";
            Err(unsupported(method, problem))
        }
    }
}

/// The option `idempotency_level`, which is protobuf's own.
fn is_idempotent(method: &MethodDescriptor) -> bool {
    let options = method.method_descriptor_proto().options.as_ref();
    options
        .is_some_and(|options| options.idempotency_level() != IdempotencyLevel::IdempotencyUnknown)
}

fn write_descriptor(
    service: &ServiceDescriptor,
    constant: &str,
    methods: &[Method],
    scope: &Scope<'_>,
    descriptor_set: &str,
    out: &mut String,
) -> Result<(), Error> {
    let rt = scope.runtime;
    let schema = schema_of(service)?;
    let compact = schema.to_bytes();
    if let Err(error) = Schema::parse(&compact) {
        let problem = format!("peers would refuse its schema: {error}; split the service");
        return Err(unsupported(service, problem));
    }
    let mut table = String::new();
    for method in methods {
        let path = method_path(&method.descriptor);
        table.push_str(&format!(
            "{rt}::MethodDescriptor {{
                path: {path:?}, id: {:#010x}, mode: {rt}::Mode::{:?},
                request: &{}, response: &{}, client_streaming: {}, server_streaming: {}, idempotent: {},
            }},",
            method_id(&path),
            method.mode,
            scope.layout(&method.descriptor.input()),
            scope.layout(&method.descriptor.output()),
            method.descriptor.is_client_streaming(),
            method.descriptor.is_server_streaming(),
            is_idempotent(&method.descriptor),
        ));
    }
    out.push_str(&format!(
        "/// The descriptor of `{name}`, which peers agree on.
        pub static {constant}: {rt}::ServiceDescriptor = {rt}::ServiceDescriptor {{
            name: {name:?},
            methods: &[{table}],
            schema_hash: {:#018x},
            schema: b\"{}\",
            file_descriptor_set: include_bytes!({descriptor_set:?}),
        }};\n\n",
        schema.hash(),
        compact.escape_ascii(),
        name = service.full_name(),
    ));
    Ok(())
}

fn write_trait(
    service: &ServiceDescriptor,
    name: &str,
    methods: &[Method],
    scope: &Scope<'_>,
    out: &mut String,
) {
    let rt = scope.runtime;
    let fallback = format!("Service `{}`.", service.full_name());
    let doc = comments::doc(&service.parent_file(), service.path(), &fallback);
    let mut items = String::new();
    for method in methods {
        let Method {
            doc,
            request,
            response,
            ..
        } = method;
        let method_name = identifier(&method.base);
        items.push_str(doc);
        if streaming::has_streams(method) {
            items.push_str(&streaming::trait_method(method, scope));
            continue;
        }
        match method.mode {
            Mode::Inline | Mode::Worker => {
                let response = scope.message(&method.descriptor.output(), "Mut");
                items.push_str(&format!(
                    "fn {method_name}(&self, request: {rt}::Request<'_, {request}>, response: {response}<'_>)
                        -> ::core::result::Result<(), {rt}::Status>;\n"
                ));
            }
            Mode::Nested => items.push_str(&format!(
                "///
                /// The answer may come later: an implementation may be an `async fn`.
                fn {method_name}(self: ::std::sync::Arc<Self>, context: {rt}::NestedContext,
                    request: {rt}::OwnedRequest<{request}>)
                    -> impl ::core::future::Future<
                        Output = ::core::result::Result<{response}, {rt}::Status>> + ::core::marker::Send + 'static;\n"
            )),
        }
    }
    out.push_str(&format!(
        "{doc} pub trait {name}: ::core::marker::Send + ::core::marker::Sync + 'static {{ {items} }}\n\n"
    ));
}

/// The statements that hand each method to the registrar.
fn registrations(name: &str, constant: &str, methods: &[Method], scope: &Scope<'_>) -> String {
    let rt = scope.runtime;
    let mut registrations = String::new();
    for (index, method) in methods.iter().enumerate() {
        registrations.push_str("let service = ::std::sync::Arc::clone(&self.service);\n");
        if streaming::has_streams(method) {
            let statement = streaming::registration(name, constant, index, method, scope);
            registrations.push_str(&statement);
            continue;
        }
        let Method {
            descriptor,
            mode,
            base,
            request,
            response,
            ..
        } = method;
        let method = identifier(base);
        let response_mut = scope.message(&descriptor.output(), "Mut");
        registrations.push_str(&match mode {
            Mode::Inline | Mode::Worker => format!(
                "registrar.unary::<{request}, {response}, _>(
                    &{constant}.methods[{index}],
                    self.modes[{index}],
                    move |request: {rt}::Request<'_, {request}>, response: {response_mut}<'_>| {{
                        <__T as {name}>::{method}(&*service, request, response)
                    }},
                );\n"
            ),
            Mode::Nested => format!(
                "registrar.nested::<{request}, {response}, _, _>(
                    &{constant}.methods[{index}],
                    move |context, request| {{
                        <__T as {name}>::{method}(::std::sync::Arc::clone(&service), context, request)
                    }},
                );\n"
            ),
        });
    }
    registrations
}

fn write_server(
    service: &ServiceDescriptor,
    name: &str,
    constant: &str,
    methods: &[Method],
    scope: &Scope<'_>,
    out: &mut String,
) {
    let (rt, count) = (scope.runtime, methods.len());
    let registrations = registrations(name, constant, methods, scope);
    let modes: String = methods
        .iter()
        .map(|m| format!("{rt}::Mode::{:?},", m.mode))
        .collect();
    out.push_str(&format!(
        "/// Serves `{full}` with an implementation of [`{name}`].
        pub struct {name}Server<__T> {{
            service: ::std::sync::Arc<__T>,
            modes: [{rt}::Mode; {count}],
        }}

        impl<__T: {name}> {name}Server<__T> {{
            /// Serves with `service`; methods run where the `.proto` file says.
            pub fn new(service: __T) -> Self {{
                Self::from_arc(::std::sync::Arc::new(service))
            }}

            /// Like `new`, for a shared service.
            pub fn from_arc(service: ::std::sync::Arc<__T>) -> Self {{
                Self {{ service, modes: [{modes}] }}
            }}

            /// Runs the method of this name in the `.proto` file in worker threads.
            ///
            /// # Panics
            /// If there is no such method, its handler is nested, or it has streams.
            pub fn worker(self, method: &str) -> Self {{
                self.with_mode(method, {rt}::Mode::Worker)
            }}

            /// Runs the method of this name in the `.proto` file in the dispatch thread.
            ///
            /// # Panics
            /// If there is no such method, its handler is nested, or it has streams.
            pub fn inline(self, method: &str) -> Self {{
                self.with_mode(method, {rt}::Mode::Inline)
            }}

            fn with_mode(mut self, method: &str, mode: {rt}::Mode) -> Self {{
                let index = {rt}::method_index(&{constant}, method);
                self.modes[index] = mode;
                self
            }}
        }}

        impl<__T: {name}> {rt}::Service for {name}Server<__T> {{
            fn descriptor(&self) -> &'static {rt}::ServiceDescriptor {{ &{constant} }}

            fn register<__R: {rt}::Registrar + ?::core::marker::Sized>(self, registrar: &mut __R) {{
                let _ = &registrar;
                {registrations}
            }}
        }}\n\n",
        full = service.full_name(),
    ));
}

fn write_client(
    service: &ServiceDescriptor,
    name: &str,
    constant: &str,
    methods: &[Method],
    scope: &Scope<'_>,
    out: &mut String,
) {
    let rt = scope.runtime;
    let mut calls = String::new();
    for (index, method) in methods.iter().enumerate() {
        if streaming::has_streams(method) {
            calls.push_str(&streaming::client_methods(constant, index, method, scope));
            continue;
        }
        let Method {
            doc,
            base,
            request,
            response,
            ..
        } = method;
        let method = identifier(base);
        calls.push_str(&format!(
            "{doc} pub fn {method}(&self, request: &{request}) -> __C::Call<{response}> {{
                self.caller.unary::<{request}, {response}>(
                    &{constant}.methods[{index}], request, &self.options, ::core::option::Option::None)
            }}

            /// Like `{base}`, with options for this call, which come before the client's.
            pub fn {base}_with(&self, request: &{request}, options: &{rt}::CallOptions)
                -> __C::Call<{response}> {{
                self.caller.unary::<{request}, {response}>(
                    &{constant}.methods[{index}], request, &self.options,
                    ::core::option::Option::Some(options))
            }}\n"
        ));
    }
    out.push_str(&format!(
        "/// Calls `{full}`.
        #[derive(Clone, Debug)]
        pub struct {name}Client<__C> {{ caller: __C, options: {rt}::CallOptions }}

        impl<__C: {rt}::Caller> {name}Client<__C> {{
            /// The service's descriptor, as the server should know it.
            pub const DESCRIPTOR: &'static {rt}::ServiceDescriptor = &{constant};

            /// Calls through `caller`.
            pub fn new(caller: __C) -> Self {{
                Self {{ caller, options: ::core::default::Default::default() }}
            }}

            /// Sets the options of all calls, such as a timeout. What a call's own options set comes
            /// before these; metadata of both is sent.
            pub fn with_options(mut self, options: {rt}::CallOptions) -> Self {{
                self.options = options;
                self
            }}

            /// The caller it uses.
            pub fn caller(&self) -> &__C {{ &self.caller }}

            {calls}
        }}\n\n",
        full = service.full_name(),
    ));
}
