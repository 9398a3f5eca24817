//! Generated stubs with a minimal runtime: calls reach the right handler, in the right mode.

mod kv {
    include!("golden/services/kv.rs");
}

#[allow(unreachable_pub)]
mod names {
    include!("golden/names/packages.rs");
}

#[allow(unreachable_pub)]
mod stub {
    use std::collections::HashMap;
    use std::future::Future;
    use std::pin::Pin;
    use std::rc::Rc;

    pub use starling_message::*;

    #[derive(Debug, PartialEq)]
    pub struct Status(pub &'static str);

    #[derive(Clone, Debug, Default)]
    pub struct CallOptions {
        pub fail: bool,
    }

    pub struct Request<'a, Q: Message>(pub Q::View<'a>);

    impl<'a, Q: Message> Request<'a, Q> {
        pub fn message(&self) -> Q::View<'a> {
            self.0
        }
    }

    pub struct OwnedRequest<Q: Message>(pub Q);
    pub struct NestedContext;

    #[derive(Debug)]
    pub struct Response<P: Message>(pub P);

    pub trait Service: Sized + 'static {
        fn descriptor(&self) -> &'static ServiceDescriptor;
        fn register<R: Registrar + ?Sized>(self, registrar: &mut R);
    }

    pub trait Registrar {
        fn unary<Q: Message, P: Message, F>(
            &mut self,
            method: &'static MethodDescriptor,
            mode: Mode,
            handler: F,
        ) where
            F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status>
                + Send
                + Sync
                + 'static;

        fn nested<Q: Message, P: Message, F, Fut>(
            &mut self,
            method: &'static MethodDescriptor,
            handler: F,
        ) where
            F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<P, Status>> + Send + 'static;
    }

    pub trait Caller: Clone {
        type Call<P: Message>: Future<Output = Result<Response<P>, Status>>;
        fn unary<Q: Message, P: Message>(
            &self,
            method: &'static MethodDescriptor,
            request: &Q,
            options: &CallOptions,
            own: Option<&CallOptions>,
        ) -> Self::Call<P>;
    }

    type Answer = Pin<Box<dyn Future<Output = Result<Vec<u8>, Status>>>>;
    type Handler = Box<dyn Fn(&[u8]) -> Answer>;

    /// Server and channel in one.
    #[derive(Default)]
    pub struct Table {
        handlers: HashMap<u32, Handler>,
        pub modes: Vec<(&'static str, Mode)>,
    }

    impl Registrar for Table {
        fn unary<Q: Message, P: Message, F>(
            &mut self,
            method: &'static MethodDescriptor,
            mode: Mode,
            handler: F,
        ) where
            F: for<'a, 'b> Fn(Request<'a, Q>, P::Mut<'b>) -> Result<(), Status>
                + Send
                + Sync
                + 'static,
        {
            self.modes.push((method.path, mode));
            let run = move |request: &[u8]| {
                let mut arena = Arena::begin(Vec::new(), P::LAYOUT);
                let request = Request(Q::parse(request).unwrap());
                let done = handler(request, P::mut_of(arena.root()));
                let answer = done.map(|()| arena.into_parts().0);
                Box::pin(async { answer }) as Answer
            };
            self.handlers.insert(method.id, Box::new(run));
        }

        fn nested<Q: Message, P: Message, F, Fut>(
            &mut self,
            method: &'static MethodDescriptor,
            handler: F,
        ) where
            F: Fn(NestedContext, OwnedRequest<Q>) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<P, Status>> + Send + 'static,
        {
            self.modes.push((method.path, method.mode));
            let run = move |request: &[u8]| {
                let request = Arena::adopt(request.to_vec(), 0, Q::LAYOUT).unwrap();
                let answer = handler(NestedContext, OwnedRequest(Q::from_arena(request)));
                Box::pin(async { answer.await.map(|p| p.into_arena().into_parts().0) }) as Answer
            };
            self.handlers.insert(method.id, Box::new(run));
        }
    }

    impl Caller for Rc<Table> {
        type Call<P: Message> = Pin<Box<dyn Future<Output = Result<Response<P>, Status>>>>;
        fn unary<Q: Message, P: Message>(
            &self,
            method: &'static MethodDescriptor,
            request: &Q,
            options: &CallOptions,
            own: Option<&CallOptions>,
        ) -> Self::Call<P> {
            if options.fail || own.is_some_and(|own| own.fail) {
                return Box::pin(async { Err(Status("told to fail")) });
            }
            let answer = self.handlers[&method.id](request.parts().0);
            Box::pin(async {
                let arena = Arena::adopt(answer.await?, 0, P::LAYOUT).unwrap();
                Ok(Response(P::from_arena(arena)))
            })
        }
    }
}

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use kv::{
    GetRequest, GetResponse, GetResponseMut, KV_SERVICE, Kv, KvClient, KvServer, ScanRequest,
    ScanResponseMut,
};
use stub::{CallOptions, Mode, NestedContext, OwnedRequest, Request, Service, Status, Table};

struct Store;

impl Kv for Store {
    fn get(
        &self,
        request: Request<'_, GetRequest>,
        mut response: GetResponseMut<'_>,
    ) -> Result<(), Status> {
        match request.message().key() {
            b"broken" => Err(Status("broken")),
            key => {
                response.set_found(true);
                response.set_value(key);
                Ok(())
            }
        }
    }

    fn scan(
        &self,
        request: Request<'_, ScanRequest>,
        mut response: ScanResponseMut<'_>,
    ) -> Result<(), Status> {
        let mut items = response.items_mut();
        for index in 0..request.message().limit() {
            let mut item = items.push_default();
            item.set_key(request.message().from());
            item.set_value(&[index as u8]);
        }
        Ok(())
    }

    async fn relay(
        self: Arc<Self>,
        _: NestedContext,
        request: OwnedRequest<GetRequest>,
    ) -> Result<GetResponse, Status> {
        std::future::ready(()).await;
        let mut response = GetResponse::new();
        response.set_value(&[b"relayed ", request.0.key()].concat());
        Ok(response)
    }
}

/// The result of a future that is ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("not ready at once"),
    }
}

fn client(server: KvServer<Store>) -> KvClient<Rc<Table>> {
    let mut table = Table::default();
    server.register(&mut table);
    KvClient::new(Rc::new(table))
}

#[test]
fn calls_reach_their_handlers() {
    let client = client(KvServer::new(Store));
    let mut request = GetRequest::new();
    request.set_key(b"alpha");
    let response = now(client.get(&request)).unwrap();
    assert!(response.0.found());
    assert_eq!(response.0.value(), b"alpha");

    let mut scan = ScanRequest::new();
    scan.set_from(b"k");
    scan.set_limit(100);
    let items = now(client.scan(&scan)).unwrap();
    assert_eq!(items.0.items().len(), 100);
    for (index, item) in items.0.items().iter().enumerate() {
        assert_eq!((item.key(), item.value()), (&b"k"[..], &[index as u8][..]));
    }

    let relayed = now(client.relay(&request)).unwrap();
    assert_eq!(relayed.0.value(), b"relayed alpha");
}

#[test]
fn messages_and_services_may_have_the_names_of_type_parameters() {
    use names::letters::{C, CMut, R, RMut, S, SClient, SServer, T};

    struct Letters;

    impl S for Letters {
        fn one(&self, request: Request<'_, T>, mut response: RMut<'_>) -> Result<(), Status> {
            response.set_number(request.message().number() + 1);
            Ok(())
        }

        async fn two(self: Arc<Self>, _: NestedContext, c: OwnedRequest<C>) -> Result<T, Status> {
            let mut response = T::new();
            response.set_number(c.0.number() + 2);
            Ok(response)
        }

        fn three(&self, request: Request<'_, R>, mut response: CMut<'_>) -> Result<(), Status> {
            response.set_number(request.message().number() + 3);
            Ok(())
        }
    }

    let mut table = Table::default();
    SServer::new(Letters).register(&mut table);
    let client = SClient::new(Rc::new(table));
    let r = now(client.one(&T::new())).unwrap();
    let c = now(client.three(&r.0)).unwrap();
    let t = now(client.two(&c.0)).unwrap();
    assert_eq!(t.0.number(), 6);
}

#[test]
fn enumerations_may_have_the_names_of_rusts_own_variants() {
    use names::prelude::{None as Nothing, Option as Choice, OptionResult};

    assert_eq!(
        format!("{:?} {:?}", Nothing::NONE, Nothing(7)),
        "NONE None(7)"
    );
    let mut message = Choice::new();
    message.set_err(names::prelude::Err::ERR);
    assert_eq!(
        message.result(),
        Some(OptionResult::Err(names::prelude::Err::ERR))
    );
}

#[test]
fn a_generated_name_differs_from_declared_ones() {
    use names::numbered::{Fields, Oneofs, OneofsAt, Values};

    let mut fields = Fields::new();
    fields.set_view_3(1);
    fields.set_view_3_3(3);
    assert_eq!((fields.view_3(), fields.view_3_3()), (1, 3));
    let mut oneofs = Oneofs::new();
    oneofs.set_at_oneof(2);
    oneofs.set_a2(3);
    assert_eq!(oneofs.at_oneof_oneof(), Some(OneofsAt::A2(3)));
    assert_eq!(
        [Values::X_3, Values::X, Values::X_4].map(|x| x.0),
        [0, 1, 2]
    );
}

#[test]
fn a_package_may_have_the_name_of_a_messages_module() {
    use names::shop::Order;
    use names::shop::order::line::{Unit, v1::Weight};
    use names::shop::order::{Line, Note, State};

    let mut order = Order::new();
    order.set_state(State::PAID);
    order.lines_mut().push_default().set_unit(Unit::KILOGRAM);
    let mut note = Note::new();
    note.set_state(order.state());
    note.set_line(order.lines().get(0).unwrap());
    assert_eq!(note.state(), State::PAID);
    let line: Line = note.line().to_owned();
    let mut weight = Weight::new();
    weight.set_unit(line.unit());
    assert_eq!(weight.unit(), Unit::KILOGRAM);
}

#[test]
fn a_status_and_options_reach_the_other_side() {
    let client = client(KvServer::new(Store));
    let mut request = GetRequest::new();
    request.set_key(b"broken");
    assert_eq!(now(client.get(&request)).unwrap_err(), Status("broken"));
    let options = CallOptions { fail: true };
    assert_eq!(
        now(client.get_with(&request, &options)).unwrap_err(),
        Status("told to fail")
    );
    let client = client.with_options(options);
    assert_eq!(
        now(client.get(&request)).unwrap_err(),
        Status("told to fail")
    );
}

#[test]
fn modes_come_from_the_proto_file_and_may_be_overridden() {
    let proto = client(KvServer::new(Store));
    let paths = ["/kv.Kv/Get", "/kv.Kv/Scan", "/kv.Kv/Relay"];
    let expect = |modes: [Mode; 3]| paths.into_iter().zip(modes).collect::<Vec<_>>();
    assert_eq!(
        proto.caller().modes,
        expect([Mode::Inline, Mode::Worker, Mode::Nested])
    );
    let other = client(KvServer::new(Store).worker("Get").inline("Scan"));
    assert_eq!(
        other.caller().modes,
        expect([Mode::Worker, Mode::Inline, Mode::Nested])
    );
}

#[test]
#[should_panic(expected = "kv.Kv has no method get")]
fn an_unknown_method_cannot_be_overridden() {
    let _ = KvServer::new(Store).worker("get");
}

#[test]
#[should_panic(expected = "kv.Kv.Relay is nested")]
fn a_nested_method_cannot_be_overridden() {
    let _ = KvServer::new(Store).inline("Relay");
}

#[test]
fn a_part_of_a_schema_has_one_method_and_what_it_reaches() {
    use starling_message::schema::Schema;

    let schema = Schema::parse(KV_SERVICE.schema).unwrap();
    for method in &schema.methods {
        let part = schema.of_method(&method.path).expect(&method.path);
        assert_eq!(Schema::parse(&part.to_bytes()).as_ref(), Ok(&part));
        assert_eq!(part.of_method(&method.path).as_ref(), Some(&part));
        let [of] = part.methods.as_slice() else {
            panic!("{:?}", part.methods);
        };
        let message = |schema: &Schema, index: u32| schema.messages[index as usize].name.clone();
        assert_eq!(message(&part, of.request), message(&schema, method.request));
        assert_eq!(
            message(&part, of.response),
            message(&schema, method.response)
        );
        let reached = part.messages.iter().flat_map(|message| &message.fields);
        let named = |field: &&starling_message::schema::FieldSchema| field.message.is_some();
        for field in reached.filter(named) {
            let child = &part.messages[field.message.unwrap() as usize];
            let all = schema.messages.iter().flat_map(|message| &message.fields);
            let mut same =
                all.filter(|other| other.name == field.name && other.number == field.number);
            assert!(same.any(|other| message(&schema, other.message.unwrap()) == child.name));
        }
    }
    assert_eq!(schema.of_method("/kv.Kv/None"), None);
}

#[test]
fn the_descriptor_is_complete() {
    use prost::Message as _;
    use starling_message::schema::{Compatibility, Schema, check_compatible};

    assert_eq!(KvServer::new(Store).descriptor().name, "kv.Kv");
    let schema = Schema::parse(KV_SERVICE.schema).unwrap();
    assert_eq!(schema.hash(), KV_SERVICE.schema_hash);
    assert_eq!(schema.to_bytes(), KV_SERVICE.schema);
    // What a harness in `hostile.rs` keeps, so that a fuzzer begins with something.
    let kept = include_bytes!("__fuzz__/random_schemas_are_refused_or_compared/corpus/kv");
    assert_eq!(kept, KV_SERVICE.schema);
    assert_eq!(
        check_compatible(KV_SERVICE.schema, KV_SERVICE.schema),
        Ok(Compatibility::Identical)
    );
    let set = prost_types::FileDescriptorSet::decode(KV_SERVICE.file_descriptor_set).unwrap();
    let names: Vec<_> = set.file.iter().map(|file| file.name()).collect();
    assert_eq!(
        names,
        [
            "google/protobuf/descriptor.proto",
            "starling/options.proto",
            "kv.proto"
        ]
    );
    let pool = prost_reflect::DescriptorPool::from_file_descriptor_set(set).unwrap();
    assert!(pool.get_service_by_name("kv.Kv").is_some());
}

#[test]
fn methods_say_whether_they_are_idempotent() {
    let idempotent = |name: &str| {
        let methods = &mut KV_SERVICE.methods.iter();
        let method = methods.find(|method| method.path.ends_with(name));
        method.expect("it is a method").idempotent
    };
    assert!(idempotent("/Get") && idempotent("/Scan"));
    assert!(!idempotent("/Relay"));
}

#[test]
fn layouts_made_from_a_schema_equal_generated_ones() {
    use starling_message::{FieldRef, LayoutRef, Message, reflect, validate};

    let schema = starling_message::schema::Schema::parse(KV_SERVICE.schema).unwrap();
    let layouts = schema.layouts().unwrap();
    let places = |layout: LayoutRef<'_>| {
        let place = |f: FieldRef<'_>| {
            let json_name = f.json_name().to_owned();
            let shape = (f.kind, f.shape, f.presence);
            (f.number, json_name, shape, f.offset, f.stride())
        };
        layout.fields().map(place).collect::<Vec<_>>()
    };
    let same = |made: LayoutRef<'_>, generated: LayoutRef<'_>| {
        assert_eq!(made.name(), generated.name());
        assert_eq!(made.size(), generated.size());
        assert_eq!(places(made), places(generated));
    };
    let methods = schema.owned_methods().unwrap();
    assert_eq!(methods.len(), KV_SERVICE.methods.len());
    for method in KV_SERVICE.methods {
        let made = methods
            .iter()
            .find(|made| made.path == method.path)
            .unwrap();
        assert_eq!(made.id, method.id);
        assert_eq!(made.client_streaming, method.client_streaming);
        assert_eq!(made.server_streaming, method.server_streaming);
        same(made.request(), method.request.into());
        same(made.response(), method.response.into());
    }

    let mut response = kv::ScanResponse::new();
    response.items_mut().push_default().set_key(b"k");
    let made = layouts.named("kv.ScanResponse").unwrap();
    validate(made, response.parts().0).unwrap();
    let reader = response.arena().reader();
    assert!(reflect::equal(made, reader, reader));
    let mut encoded = Vec::new();
    starling_message::protobuf::encode(made, reader, &mut encoded).unwrap();
    assert_eq!(encoded, response.to_protobuf().unwrap());
}
