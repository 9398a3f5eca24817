//! Channels work in any executor, and without one.

mod common;

use common::{payload, serve, shm_address};
use starling::{Channel, block_on};
use starling_test_protos::test::TestClient;

async fn from_tasks(address: &str) {
    let client = TestClient::new(Channel::connect(address).await.expect("a channel"));
    let tasks: Vec<_> = (0..50u32)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    let response = client
                        .echo(&payload(&i.to_le_bytes()))
                        .await
                        .expect("an echo");
                    assert_eq!(response.message().bytes(), i.to_le_bytes());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[test]
fn tokio_tasks_share_a_channel_in_one_thread_and_in_several() {
    for address in common::any_addresses() {
        let (server, _) = serve(&address);
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime")
            .block_on(from_tasks(server.address()));
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .build()
            .expect("a runtime")
            .block_on(from_tasks(server.address()));
    }
}

#[test]
fn a_call_that_the_executors_timeout_drops_is_cancelled() {
    let (server, gate) = serve(&shm_address());
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = TestClient::new(channel.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let call = client.wait(&payload(b""));
        tokio::time::timeout(std::time::Duration::from_millis(20), call)
            .await
            .expect_err("nobody answers");
    });
    common::wait_until(|| channel.calls_outstanding() == 0);
    gate.open.store(true, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn many_plain_threads_share_a_channel() {
    for address in common::any_addresses() {
        let (server, gate) = serve(&address);
        let channel = block_on(starling::connect(server.address())).expect("a channel");
        let client = TestClient::new(channel);
        let threads: Vec<_> = (0..16u32)
            .map(|thread| {
                let client = client.clone();
                std::thread::spawn(move || {
                    for call in 0..50u32 {
                        let bytes = [thread.to_le_bytes(), call.to_le_bytes()].concat();
                        let response = client.echo(&payload(&bytes)).wait().expect("an echo");
                        assert_eq!(response.message().bytes(), bytes);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        let runs = gate.runs.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(runs, 16 * 50, "each call ran once");
    }
}
