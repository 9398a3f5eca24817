//! Tasks of tokio runtimes make calls: a task of the runtime drives them, whatever the runtime does.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Gate, LONG, any_addresses, payload, serve, wait_until};
use starling::{Channel, Code, Idle, ServerHandle};
use starling_test_protos::test::TestClient;
use tokio::runtime::{Builder, Runtime};

fn current_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn two_workers() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

/// A server, what its test and it share, and a channel to it with a client.
fn served(address: &str) -> (ServerHandle, Arc<Gate>, Channel, TestClient<Channel>) {
    let (server, gate) = serve(address);
    let channel = Channel::lazy(server.address()).expect("a channel");
    let client = TestClient::new(channel.clone());
    (server, gate, channel, client)
}

/// Calls of tasks that all get their own answers.
async fn calls(client: TestClient<Channel>, tasks: u32) {
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for call in 0..20u32 {
                    let bytes = [task.to_le_bytes(), call.to_le_bytes()].concat();
                    let answer = client.echo(&payload(&bytes)).await.expect("an echo");
                    assert_eq!(answer.message().bytes(), bytes);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

#[test]
fn runtimes_and_threads_share_a_channel_with_any_idle_setting() {
    let idles = [Idle::default(), Idle::Block, Idle::Spin];
    for (address, idle) in any_addresses()
        .iter()
        .flat_map(|it| idles.map(|idle| (it, idle)))
    {
        let (server, gate) = serve(address);
        let channel = Channel::builder(server.address()).idle(idle).lazy();
        let client = TestClient::new(channel.expect("a channel"));
        let in_runtime = |runtime: Runtime| {
            let client = client.clone();
            std::thread::spawn(move || runtime.block_on(calls(client, 10)))
        };
        let threads = [current_thread(), current_thread(), two_workers()].map(in_runtime);
        for call in 0..100u32 {
            let bytes = call.to_le_bytes();
            let answer = client.echo(&payload(&bytes)).wait().expect("an echo");
            assert_eq!(answer.message().bytes(), bytes);
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(gate.runs.load(Ordering::SeqCst), 3 * 10 * 20 + 100);
    }
}

#[test]
fn a_runtime_that_is_blocked_holds_up_no_call() {
    for address in any_addresses() {
        let (_server, gate, _, client) = served(&address);
        current_thread().block_on(async {
            client.echo(&payload(b"")).await.expect("an echo");
            let its_client = client.clone();
            let call = tokio::spawn(async move { its_client.echo(&payload(b"mine")).await });
            // The task has left its call, and perhaps the driver task has not run yet.
            tokio::task::yield_now().await;
            // Other threads are served, and the server runs the task's call.
            let plain = std::thread::spawn(move || client.echo(&payload(b"other")).wait());
            plain.join().expect("no panic").expect("an echo");
            wait_until(|| gate.runs.load(Ordering::SeqCst) == 3);
            let answer = call.await.expect("no panic").expect("an echo");
            assert_eq!(answer.message().bytes(), b"mine");
        });
    }
}

#[test]
fn a_runtime_that_ends_with_calls_out_cancels_them_and_harms_no_others() {
    for address in any_addresses() {
        for runtime in [current_thread(), two_workers()] {
            let (_server, gate, channel, client) = served(&address);
            let others = client.clone();
            let other = std::thread::spawn(move || others.wait(&payload(b"other")).wait());
            runtime.block_on(async {
                for _ in 0..20 {
                    let client = client.clone();
                    tokio::spawn(async move { client.wait(&payload(b"mine")).await });
                }
                while gate.waiting.load(Ordering::SeqCst) < 21 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            runtime.shutdown_timeout(LONG);
            wait_until(|| channel.calls_outstanding() == 1);
            wait_until(|| gate.dropped.load(Ordering::SeqCst) == 20);
            gate.open.store(true, Ordering::SeqCst);
            other.join().expect("no panic").expect("the gate is open");
            client.echo(&payload(b"later")).wait().expect("an echo");
        }
    }
}

#[test]
fn no_task_is_left_in_a_runtime_without_channels() {
    for address in any_addresses() {
        let (server, _) = serve(&address);
        let runtime = current_thread();
        runtime.block_on(async {
            for _ in 0..3 {
                let channel = Channel::builder(server.address()).own_endpoint();
                let client = TestClient::new(channel.lazy().expect("a channel"));
                client.echo(&payload(b"")).await.expect("an echo");
                drop(client);
                while tokio::runtime::Handle::current()
                    .metrics()
                    .num_alive_tasks()
                    > 0
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
}

#[test]
fn a_server_that_goes_ends_the_calls_of_a_runtime() {
    for address in any_addresses() {
        let (server, gate, _, client) = served(&address);
        current_thread().block_on(async {
            let open: Vec<_> = (0..20)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { client.wait(&payload(b"")).await })
                })
                .collect();
            while gate.waiting.load(Ordering::SeqCst) < 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let gone = std::thread::spawn(move || server.shutdown(Duration::ZERO));
            for call in open {
                let ended = call.await.expect("no panic").expect_err("it was cut off");
                assert_eq!(ended.code(), Code::Unavailable);
            }
            gone.join().expect("no panic").expect("no device fails");
        });
    }
}

/// Inside a runtime that nobody runs, calls end all the same.
#[test]
fn a_call_in_the_context_of_an_idle_runtime_ends() {
    let (_server, _, _, client) = served("udp://127.0.0.1:0");
    let runtime = current_thread();
    let _context = runtime.enter();
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = std::task::Waker::from(Arc::clone(&woken));
    let mut call = std::pin::pin!(client.echo(&payload(b"x")));
    let mut answer = None;
    wait_until(|| {
        if woken.0.swap(false, Ordering::SeqCst) {
            let mut cx = std::task::Context::from_waker(&waker);
            match call.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(result) => answer = Some(result),
                std::task::Poll::Pending => {}
            }
        }
        answer.is_some()
    });
    answer.expect("it has ended").expect("an echo");
}

struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
