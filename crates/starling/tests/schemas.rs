//! Clients and servers with different versions of a schema, unknown methods, and reflection.

mod common;

use common::shm_address;
use common::store::Store;
use starling::health::HEALTH_SERVICE;
use starling::introspection::INTROSPECTION_SERVICE;
use starling::reflection::{
    DescribeServiceRequest, ListServicesRequest, REFLECTION_SERVICE, ReflectionClient,
};
use starling::{
    Caller, Channel, Code, Endpoint, InterceptedCall, InterceptedResponse, Interceptor, Next,
    Server, ServerHandle, Side, Status,
};
use starling_test_protos::{test, v1, v2, v3};

/// Puts many values by one stream, large ones by reference.
async fn newer_client_with_streams<C: Caller>(client: v2::StoreClient<C>) {
    const VALUES: u64 = 300;
    let (mut requests, mut responses) = client.put_all();
    let sending = async {
        let value = starling::Bytes::from(vec![7; 5_000]);
        for _ in 0..VALUES {
            let mut request = v2::PutRequest::new();
            request.tags_mut().push("unknown to the server");
            request.set_value_bytes(value.clone());
            requests.send(&request).await.expect("room");
        }
        requests.close();
    };
    let receiving = async {
        let mut sizes = Vec::new();
        while let Some(response) = responses.message().await.expect("through protobuf") {
            assert_eq!(response.message().note(), "", "the server does not know it");
            sizes.push(response.message().size());
        }
        sizes
    };
    let ((), sizes) = futures::join!(sending, receiving);
    let first = sizes[0] - 5_000;
    let expected = (1..=VALUES).map(|count| first + count * 5_000);
    assert!(sizes.into_iter().eq(expected));
}

fn old_server() -> ServerHandle {
    Server::builder()
        .bind(&shm_address())
        .expect("a free name")
        .add_service(v1::StoreServer::new(Store::default()))
        .build()
        .expect("a server")
        .spawn()
        .expect("threads")
}

async fn newer_client<C: Caller>(client: v2::StoreClient<C>) {
    let mut request = v2::PutRequest::new();
    request.set_key("k");
    request.set_value(b"12345");
    request.tags_mut().push("unknown to the server");
    let first = client.put(&request).await.expect("through protobuf");
    let before = first.message().size() - 5;
    assert_eq!(first.message().note(), "", "the server does not know it");
    let second = client
        .put(&request)
        .await
        .expect("through protobuf, bound already");
    assert_eq!(second.message().size(), before + 10);
    let size = client
        .size(&v2::SizeRequest::new())
        .await
        .expect("natively");
    assert_eq!(size.message().size(), before + 10);
    request.set_value(&vec![7; 1 << 20]);
    let large = client.put(&request).await.expect("through protobuf");
    assert_eq!(large.message().size(), before + 10 + (1 << 20));
    let status = client
        .clear(&v2::SizeRequest::new())
        .await
        .expect_err("it is new");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("/store.Store/Clear"), "{status}");
}

async fn incompatible_client<C: Caller>(client: v3::StoreClient<C>) {
    let mut request = v3::PutRequest::new();
    request.set_value(5);
    for _ in 0..2 {
        let status = client.put(&request).await.expect_err("bytes are no number");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(
            status.message().contains("store.PutRequest.value"),
            "{status}"
        );
    }
    let (mut requests, mut responses) = client.put_all();
    requests
        .send(&request)
        .await
        .expect("nothing has failed yet");
    let status = responses.message().await.expect_err("bytes are no number");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("store.PutRequest.value") && !status.may_have_run());
    client
        .size(&v3::SizeRequest::new())
        .await
        .expect("this method is the same");
}

#[test]
fn compatible_versions_exchange_protobuf() {
    let server = old_server();
    let channel = Channel::lazy(server.address()).expect("a channel");
    starling::block_on(newer_client(v2::StoreClient::new(channel.clone())));
    starling::block_on(newer_client_with_streams(v2::StoreClient::new(channel)));
    let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
    let channel = endpoint.channel(server.address()).expect("a channel");
    let calls = newer_client(v2::StoreClient::new(channel.clone()));
    endpoint.block_on(calls).expect("no device fails");
    let streams = newer_client_with_streams(v2::StoreClient::new(channel));
    endpoint.block_on(streams).expect("no device fails");
}

/// Doubles what is put, in the types of its own version.
struct Doubles;

impl Interceptor for Doubles {
    async fn intercept(
        &self,
        mut call: InterceptedCall,
        next: Next<'_>,
    ) -> Result<InterceptedResponse, Status> {
        let twice = |value: &[u8]| [value, value].concat();
        match (call.path(), call.side()) {
            ("/store.Store/Put", Side::Client) => {
                let mut request = call.message::<v2::PutRequest>()?;
                request.set_value(&twice(request.view().value()));
                call.set_message(&request)?;
            }
            ("/store.Store/Put", Side::Server) => {
                let mut request = call.message::<v1::PutRequest>()?;
                request.set_value(&twice(request.view().value()));
                call.set_message(&request)?;
            }
            (_, Side::Client) => {
                call.on_requests(move |item| {
                    let mut request = item.message::<v2::PutRequest>()?;
                    request.set_value(&twice(request.view().value()));
                    item.set_message(&request)
                })?;
                call.on_responses(|item| {
                    let response = item.message::<v2::PutResponse>()?;
                    item.set_message(&response.with_note("seen"))
                })?;
            }
            (_, Side::Server) => {
                call.on_requests(move |item| {
                    let mut request = item.message::<v1::PutRequest>()?;
                    request.set_value(&twice(request.view().value()));
                    item.set_message(&request)
                })?;
                call.on_responses(|item| {
                    let size = item.message::<v1::PutResponse>()?.view().size();
                    item.set_message(&v1::PutResponse::new().with_size(size * 10))
                })?;
            }
        }
        next.run(call).await
    }
}

#[test]
fn interceptors_see_messages_in_their_own_version() {
    let store = v1::StoreServer::new(Store::default());
    let server = Server::builder().bind(&shm_address()).expect("a free name");
    let server = server.add_intercepted(store, Doubles).build();
    let server = server.expect("a server").spawn().expect("threads");
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = v2::StoreClient::new(channel.intercept(Doubles));
    let request = v2::PutRequest::new().with_value(b"12345").with_tags(["t"]);
    let response = client.put(&request).wait().expect("through protobuf");
    assert_eq!(response.message().size(), 20);
    let (mut requests, mut responses) = client.put_all();
    for count in 2..10 {
        requests.send_wait(&request).expect("room");
        let response = responses.wait().expect("no end").expect("a response");
        assert_eq!(response.message().size(), 20 * count * 10);
        assert_eq!(response.message().note(), "seen");
    }
}

#[test]
fn incompatible_versions_are_refused_naming_the_field() {
    let server = old_server();
    let channel = Channel::lazy(server.address()).expect("a channel");
    starling::block_on(incompatible_client(v3::StoreClient::new(channel)));
    let mut endpoint = Endpoint::client(server.address()).expect("an endpoint");
    let channel = endpoint.channel(server.address()).expect("a channel");
    let calls = incompatible_client(v3::StoreClient::new(channel));
    endpoint.block_on(calls).expect("no device fails");
}

#[test]
fn an_unknown_service_is_unimplemented_and_the_status_names_the_known_ones() {
    let server = old_server();
    let client = test::TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    let status = client
        .echo(&test::Payload::new())
        .wait()
        .expect_err("another service");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("/test.Test/Echo"), "{status}");
    assert!(status.message().contains("store.Store"), "{status}");
}

#[test]
fn a_server_describes_itself() {
    let server = old_server();
    let client = ReflectionClient::new(Channel::lazy(server.address()).expect("a channel"));
    let list = client
        .list_services(&ListServicesRequest::new())
        .wait()
        .expect("a list");
    let services: Vec<_> = list
        .message()
        .services()
        .iter()
        .map(|service| (service.name(), service.methods().len()))
        .collect();
    let built_in = [&HEALTH_SERVICE, &INTROSPECTION_SERVICE, &REFLECTION_SERVICE];
    let [health, introspection, reflection] = built_in.map(|service| service.name);
    assert_eq!(
        services,
        [
            ("store.Store", 3),
            (health, 2),
            (introspection, 3),
            (reflection, 3)
        ]
    );

    let mut request = DescribeServiceRequest::new();
    request.set_name("store.Store");
    let description = client
        .describe_service(&request)
        .wait()
        .expect("a description");
    assert_eq!(
        description.message().file_descriptor_set(),
        v1::STORE_SERVICE.file_descriptor_set
    );
    request.set_name("store.Shop");
    let status = client
        .describe_service(&request)
        .wait()
        .expect_err("there is none");
    assert_eq!(status.code(), Code::NotFound);
}

#[test]
fn a_server_that_does_not_describe_itself_takes_other_versions_all_the_same() {
    let server = Server::builder()
        .bind(&shm_address())
        .expect("a free name")
        .reflection(false)
        .add_service(v1::StoreServer::new(Store::default()))
        .build()
        .expect("a server")
        .spawn()
        .expect("threads");
    // Each with a session of its own, as programs of different versions have.
    let channel = || Channel::lazy(server.address()).expect("a channel");
    starling::block_on(newer_client(v2::StoreClient::new(channel())));
    let streams = newer_client_with_streams(v2::StoreClient::new(channel()));
    starling::block_on(streams);
    starling::block_on(incompatible_client(v3::StoreClient::new(channel())));
}
