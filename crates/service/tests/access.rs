//! Policies that look into requests: by the schema of the server that gets them.

mod mesh;
#[path = "../../starling/tests/common/store.rs"]
mod store;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use mesh::{Mesh, direct, echo_at, exercise};
use starling::managed::{ListRequest, OperatorClient, PolicyChange, SchemaAddition};
use starling::{
    CallOptions, Channel, Code, Compression, NestedContext, Request, Server, ServerHandle, Status,
    StreamReceiver, StreamSender,
};
use starling_sample_services::api::bench::{ECHO_SERVICE, EchoClient, Payload};
use starling_test_protos::{v1, v2};

struct Operator(OperatorClient<Channel>);

impl Operator {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.operator())
    }

    fn add_schema(&self, schema: &[u8]) -> Result<Vec<String>, Status> {
        let addition = SchemaAddition::new().with_schema(schema);
        let response = self.0.add_schema(&addition).wait()?;
        Ok(response
            .message()
            .methods()
            .iter()
            .map(str::to_owned)
            .collect())
    }

    fn attach(&self, policy: &str) -> Result<(), Status> {
        let change = PolicyChange::new().with_what(policy);
        self.0.attach(&change).wait().map(drop)
    }

    /// How many requests the first policy has let pass, and has refused.
    fn counts(&self) -> (u64, u64) {
        let listing = self.0.list(&ListRequest::new()).wait().expect("a listing");
        let policy = listing.message().policies().iter().next().expect("one");
        (policy.passed(), policy.refused())
    }
}

/// An access control of a method.
fn access(method: &str, side: &str, settings: &str) -> String {
    let scope = format!(r#"{{"side":"{side}","methods":["{method}"]}}"#);
    format!(r#"{{"name":"access","kind":"access-control","for":{scope},"settings":{settings}}}"#)
}

fn refused(result: Result<(), Status>) -> Option<Code> {
    let status = result.err()?;
    assert!(!status.may_have_run(), "{status}");
    Some(status.code())
}

fn call(client: &EchoClient<Channel>, data: &[u8]) -> Result<(), Status> {
    let response = client.call(&Payload::new().with_data(data)).wait()?;
    assert_eq!(response.message().data(), data);
    Ok(())
}

const EVIL: &str = r#"{"deny":"request.data == b'evil'"}"#;

#[test]
fn calls_pass_by_the_values_of_their_requests() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    let client = EchoClient::new(mesh.channel(server.address()));
    call(&client, b"evil").expect("no policy");
    let paths = operator.add_schema(ECHO_SERVICE.schema).expect("a schema");
    assert!(paths.contains(&"/bench.Echo/Call".to_owned()), "{paths:?}");
    operator
        .attach(&access("bench.Echo/Call", "client", EVIL))
        .expect("a policy");
    for _ in 0..3 {
        call(&client, b"good").expect("another value");
        assert_eq!(
            refused(call(&client, b"evil")),
            Some(Code::PermissionDenied)
        );
    }
    assert_eq!(operator.counts(), (3, 3));
    // All other methods and large messages are as before.
    exercise(mesh.channel(server.address()));
}

/// Of an application that is called, and between two of one service.
#[test]
fn an_application_that_is_called_is_asked_for_its_schema() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = mesh.echo_at("udp://127.0.0.1:0");
    operator.add_schema(ECHO_SERVICE.schema).expect("a schema");
    operator
        .attach(&access("bench.Echo/Call", "server", EVIL))
        .expect("a policy");
    for channel in [direct(server.address()), mesh.channel(server.address())] {
        let client = EchoClient::new(channel);
        assert_eq!(
            refused(call(&client, b"evil")),
            Some(Code::PermissionDenied)
        );
        call(&client, b"good").expect("another value");
    }
    assert_eq!(operator.counts(), (2, 2));
}

#[test]
fn calls_that_came_at_once_wait_for_the_schema() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    operator.add_schema(ECHO_SERVICE.schema).expect("a schema");
    operator
        .attach(&access("bench.Echo/Call", "client", EVIL))
        .expect("a policy");
    let client = EchoClient::new(mesh.channel(server.address()));
    let requests = [b"good", b"evil"].repeat(50);
    let calls = requests.iter().map(|data| {
        let call = client.call(&Payload::new().with_data(*data));
        async move { call.await.map(drop) }
    });
    let results = starling::block_on(futures::future::join_all(calls));
    for (data, result) in requests.iter().zip(results) {
        assert_eq!(result.is_ok(), *data == b"good", "{result:?}");
    }
    assert_eq!(operator.counts(), (50, 50));
}

#[test]
fn compressed_requests_are_looked_into() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    operator.add_schema(ECHO_SERVICE.schema).expect("a schema");
    let settings = r#"{"allow":"size(request.data) != 5000"}"#;
    operator
        .attach(&access("bench.Echo/Call", "client", settings))
        .expect("a policy");
    let options = CallOptions::default().compression(Compression::gzip());
    let client = EchoClient::new(mesh.channel(server.address())).with_options(options);
    for _ in 0..2 {
        assert_eq!(
            refused(call(&client, &[7; 5000])),
            Some(Code::PermissionDenied)
        );
        call(&client, &[7; 5001]).expect("another length");
    }
}

/// A server of the first version of a schema.
fn old_server() -> ServerHandle {
    let server = Server::builder()
        .direct()
        .bind("udp://127.0.0.1:0")
        .expect("an address")
        .reflection(false)
        .add_service(v1::StoreServer::new(store::Store::default()));
    server.build().expect("a server").spawn().expect("threads")
}

/// The client's messages come in protobuf: they are read by the server's version, which the client does not have.
#[test]
fn values_are_read_as_the_server_understands_them() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = old_server();
    operator
        .add_schema(v2::STORE_SERVICE.schema)
        .expect("a schema");
    let keys = r#"{"allow":"request.key.startsWith('a')"}"#;
    operator
        .attach(&access("store.Store/Put", "client", keys))
        .expect("a policy");
    let new = v2::StoreClient::new(mesh.channel(server.address()));
    let old = v1::StoreClient::new(mesh.channel(server.address()));
    for (key, expected) in [("apple", None), ("pear", Some(Code::PermissionDenied))] {
        let mut request = v2::PutRequest::new().with_key(key);
        request.tags_mut().push("x");
        assert_eq!(refused(new.put(&request).wait().map(drop)), expected);
        let request = v1::PutRequest::new().with_key(key);
        assert_eq!(refused(old.put(&request).wait().map(drop)), expected);
    }
}

/// Nothing passes that was not looked at.
#[test]
fn a_condition_that_does_not_fit_the_server_refuses_its_calls() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = old_server();
    operator
        .add_schema(v2::STORE_SERVICE.schema)
        .expect("a schema");
    let tags = r#"{"deny":"'secret' in request.tags"}"#;
    operator
        .attach(&access("store.Store/Put", "client", tags))
        .expect("it fits the new version");
    let client = v1::StoreClient::new(mesh.channel(server.address()));
    let status = client
        .put(&v1::PutRequest::new())
        .wait()
        .expect_err("no such field");
    assert!(
        status
            .message()
            .contains("store.PutRequest has no field tags"),
        "{status}"
    );
    assert_eq!(refused(Err(status)), Some(Code::FailedPrecondition));
    client
        .size(&v1::SizeRequest::new())
        .wait()
        .expect("no policy is for it");
}

#[test]
fn a_policy_that_cannot_look_into_its_methods_is_refused() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let refused = |policy: &str| {
        let status = operator.attach(policy).expect_err(policy);
        (status.code(), status.message().to_owned())
    };
    let policy = access(
        "store.Store/Put",
        "client",
        r#"{"deny":"request.key == 'a'"}"#,
    );
    let (code, text) = refused(&policy);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        text.contains("no schema of store.Store/Put is known"),
        "{text}"
    );
    operator
        .add_schema(v1::STORE_SERVICE.schema)
        .expect("a schema");
    for (method, condition, problem) in [
        (
            "store.Store/Put",
            "request.kee == 'a'",
            "has no field kee: it has key, value",
        ),
        (
            "store.Store/Put",
            "request.key == 1",
            "a string cannot be compared with an integer",
        ),
        (
            "store.Store/PutAll",
            "request.key == 'a'",
            "is a streaming method",
        ),
        (
            "store.Store/Get",
            "request.key == 'a'",
            "no schema of store.Store/Get",
        ),
        (
            "store.Store/Put",
            "request.key ==",
            "settings: deny: at character 15",
        ),
    ] {
        let settings = format!(r#"{{"deny":"{condition}"}}"#);
        let (_, text) = refused(&access(method, "client", &settings));
        assert!(text.contains(problem), "{text}");
    }
    operator.attach(&policy).expect("a policy");
    let error = operator.add_schema(b"no schema").expect_err("garbage");
    assert_eq!(error.code(), Code::InvalidArgument);
    let known = operator
        .0
        .list_schemas(&ListRequest::new())
        .wait()
        .expect("a list");
    let known: Vec<_> = known.message().methods().iter().collect();
    assert_eq!(
        known,
        [
            "/store.Store/Put",
            "/store.Store/PutAll",
            "/store.Store/Size"
        ]
    );
}

/// A server that cannot be asked.
#[test]
fn a_server_without_the_method_says_so() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let server = echo_at("udp://127.0.0.1:0");
    operator
        .add_schema(v1::STORE_SERVICE.schema)
        .expect("a schema");
    operator
        .attach(&access(
            "store.Store/Put",
            "client",
            r#"{"deny":"request.key == 'a'"}"#,
        ))
        .expect("a policy");
    let client = v1::StoreClient::new(mesh.channel(server.address()));
    let status = client
        .put(&v1::PutRequest::new())
        .wait()
        .expect_err("no such service");
    assert_eq!(refused(Err(status)), Some(Code::Unimplemented));
}

/// Adds up what is put, and keeps its dispatch thread while it is told to.
struct Busy {
    begun: mpsc::Sender<()>,
    until: Mutex<mpsc::Receiver<()>>,
    put: AtomicU64,
}

impl v1::Store for Busy {
    fn put(
        &self,
        request: Request<'_, v1::PutRequest>,
        mut response: v1::PutResponseMut<'_>,
    ) -> Result<(), Status> {
        let bytes = request.message().value().len() as u64;
        response.set_size(self.put.fetch_add(bytes, Ordering::Relaxed) + bytes);
        Ok(())
    }

    fn size(
        &self,
        _: Request<'_, v1::SizeRequest>,
        _: v1::SizeResponseMut<'_>,
    ) -> Result<(), Status> {
        self.begun.send(()).expect("the test waits");
        // The test may have failed.
        let _ = self.until.lock().expect("no panics").recv();
        Ok(())
    }

    async fn put_all(
        self: Arc<Self>,
        _: NestedContext,
        _: StreamReceiver<v1::PutRequest>,
        _: StreamSender<v1::PutResponse>,
    ) -> Result<(), Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// A server that is busy does not say what its methods are: a call that waits for that ends at its deadline.
#[test]
fn a_call_whose_deadline_comes_while_the_schema_is_asked_for_does_not_run() {
    let mesh = Mesh::start();
    let operator = Operator::of(&mesh);
    let (begun, has_begun) = mpsc::channel();
    let (release, until) = mpsc::channel();
    let busy = Busy {
        begun,
        until: Mutex::new(until),
        put: AtomicU64::new(0),
    };
    let server = Server::builder().direct().bind("udp://127.0.0.1:0");
    let server = server
        .expect("an address")
        .add_service(v1::StoreServer::new(busy));
    let server = server.build().expect("a server").spawn().expect("threads");
    let client = v1::StoreClient::new(mesh.channel(server.address()));
    let put = v1::PutRequest::new().with_key("a").with_value(b"12345");
    let size = client.put(&put).wait().expect("no policy").message().size();
    assert_eq!(size, 5);
    operator
        .add_schema(v1::STORE_SERVICE.schema)
        .expect("a schema");
    let policy = access(
        "store.Store/Put",
        "client",
        r#"{"allow":"request.key == 'a'"}"#,
    );
    operator.attach(&policy).expect("a policy");

    let other = v1::StoreClient::new(direct(server.address()));
    let keeps = std::thread::spawn(move || other.size(&v1::SizeRequest::new()).wait().map(drop));
    has_begun.recv().expect("the server runs");
    let options = CallOptions::with_timeout(Duration::from_millis(50));
    let late = client.clone().with_options(options).put(&put).wait();
    let late = late.expect_err("the server is busy");
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    release.send(()).expect("the server runs");
    keeps.join().expect("no panic").expect("it was released");
    let size = client.put(&put).wait().expect("a value that may pass");
    assert_eq!(size.message().size(), 10, "the late one did not run");
}
