//! A server's methods, called without generated code.

use std::time::Duration;

use starling::{
    CallOptions, Channel, Code, InterceptedCall, InterceptedResponse, Interceptor, Next, Server,
    ServerHandle, Status, block_on,
};
use starling_dynamic::{DescriptorPool, DynamicClient, DynamicMethod, Value, service_notation};

use starling_sample_services::kv;

fn serve(name: &str) -> (ServerHandle, DynamicClient) {
    let address = format!("mem://{name}");
    let server = Server::builder()
        .bind(&address)
        .expect("an address")
        .add_service(kv::server(0))
        .build()
        .expect("a server")
        .spawn()
        .expect("it serves");
    let channel = Channel::lazy(&address).expect("a channel");
    let options = CallOptions::with_timeout(Duration::from_secs(60));
    (server, DynamicClient::new(channel).with_options(options))
}

#[test]
fn a_server_describes_its_services_and_answers_json() {
    let (_server, client) = serve("dynamic-json");
    let services = block_on(client.services()).expect("a list");
    assert!(services.iter().any(|name| name == "kv.Kv"), "{services:?}");
    let service = block_on(client.service("kv.Kv")).expect("a description");
    assert!(service_notation(&service).contains("rpc Get(kv.GetRequest)"));
    let call = |path: &str, json: &str| {
        let method = block_on(client.method(path)).expect("a method");
        let request = method.request_from_json(json).expect("a request");
        client.call(&method, &request).wait().expect("a response")
    };
    call("kv.Kv/Put", r#"{"key": "aGk=", "value": "d29ybGQ="}"#);
    let got = call("/kv.Kv/Get", r#"{"key": "aGk="}"#);
    assert!(got.to_json().contains("d29ybGQ="), "{}", got.to_json());
    let value = got.message().get_field_by_name("value").expect("a field");
    assert_eq!(*value, Value::Bytes("world".into()));
}

#[test]
fn unknown_services_methods_and_fields_are_named_with_those_that_exist() {
    let (_server, client) = serve("dynamic-unknown");
    let status = block_on(client.service("kv.Kv.Get")).expect_err("a method's name");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("write kv.Kv/Get"), "{status}");
    let status = block_on(client.method("kv.Kv/Fetch")).expect_err("no such method");
    assert!(status.message().contains("it has Get"), "{status}");
    assert!(!status.may_have_run());
    let status = block_on(client.method("kv.Kv")).expect_err("no path");
    assert_eq!(status.code(), Code::InvalidArgument);
    let method = block_on(client.method("kv.Kv/Get")).expect("a method");
    let error = method
        .request_from_json(r#"{"kee": ""}"#)
        .expect_err("no such field");
    assert!(error.to_string().contains("it has key (bytes)"), "{error}");
}

#[test]
fn a_status_of_the_server_comes_back_and_a_method_that_it_lacks_did_not_run() {
    let (_server, client) = serve("dynamic-status");
    let method = block_on(client.method("kv.Kv/Get")).expect("a method");
    let status = client.call(&method, &method.request()).wait();
    let status = status.expect_err("a key is not empty");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.may_have_run());
    let channel = Channel::lazy("mem://dynamic-status").expect("a channel");
    let call = channel.call_protobuf("/kv.Kv/Fetch", b"", &CallOptions::default());
    let status = call.wait().expect_err("no such method");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    assert!(!status.may_have_run());
}

/// Descriptors belong to those that refer to them: a tenant's go with the tenant.
#[test]
fn a_method_outlives_the_pool_that_it_came_from() {
    let (_server, client) = serve("dynamic-owned");
    let set = starling_sample_services::api::kv::KV_SERVICE.file_descriptor_set;
    let method = {
        let pool = DescriptorPool::decode(set).expect("a set");
        let service = pool.get_service_by_name("kv.Kv").expect("it is there");
        let get = service.methods().find(|method| method.name() == "Get");
        DynamicMethod::new(get.expect("it is there")).expect("a unary method")
    };
    assert_eq!(method.path(), "/kv.Kv/Get");
    let request = method.request_from_json(r#"{"key": "bm9uZQ=="}"#);
    let call = client.call(&method, &request.expect("a request"));
    let got = call.wait().expect("a response").into_message();
    let found = got.get_field_by_name("found").expect("a field");
    assert_eq!(*found, Value::Bool(false));
}

/// Wants a token from whoever calls, also from those who ask what there is.
struct AsksForToken;

impl Interceptor for AsksForToken {
    async fn intercept(
        &self,
        call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        match call.metadata().value("token") {
            Some(b"t") => next.run(call).await,
            _ => Err(Status::unauthenticated("no token")),
        }
    }
}

#[test]
fn what_is_sent_beside_calls_is_sent_beside_those_that_ask_for_descriptions() {
    let builder = Server::builder()
        .bind("mem://dynamic-token")
        .expect("an address");
    let builder = builder.add_service(kv::server(0)).interceptor(AsksForToken);
    let server = builder.build().expect("a server");
    let _server = server.spawn().expect("it serves");
    let client = DynamicClient::new(Channel::lazy("mem://dynamic-token").expect("a channel"));
    let status = block_on(client.services()).expect_err("it has no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut options = CallOptions::default();
    options.metadata.insert("token", "t").expect("it is valid");
    let client = client.with_options(options);
    let method = block_on(client.method("kv.Kv/Scan")).expect("a method");
    let request = method
        .request_from_json(r#"{"limit": 1}"#)
        .expect("a request");
    client.call(&method, &request).wait().expect("a response");
}
