//! A process forks while it has channels.

mod common;
#[path = "streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod stream_service;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{another_address, far_addresses, payload, serve, wait_until};
use rustix::process::{Pid, WaitOptions, waitpid};
use starling::{Channel, Code};
use starling_test_protos::test::TestClient;

#[allow(unsafe_code, reason = "the C library's fork and exit")]
/// Runs `child` in a fork of this process. Its exit status is 0 if that returns true.
fn in_a_fork(child: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child makes calls and leaves by `_exit`; nothing of the parent's is unwound in it.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: it ends this process, if it hangs.
            unsafe { libc::alarm(30) };
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            // SAFETY: it ends this process.
            unsafe { libc::_exit(i32::from(!good.unwrap_or(false))) }
        }
        child => {
            let child = Pid::from_raw(child).expect("a process");
            let ended = waitpid(Some(child), WaitOptions::empty());
            let (_, status) = ended.expect("a child").expect("it has ended");
            status.exit_status()
        }
    }
}

#[test]
fn a_forks_channels_have_endpoints_of_their_own_and_the_parents_go_on() {
    for address in far_addresses() {
        let (server, gate) = serve(&address);
        let channel = Channel::lazy(server.address()).expect("a channel");
        let client = TestClient::new(channel.clone());
        client.echo(&payload(b"before")).wait().expect("an echo");
        let open = client.wait(&payload(b"open"));
        let its_client = client.clone();
        let other = std::thread::spawn(move || its_client.wait(&payload(b"other")).wait());
        wait_until(|| gate.waiting.load(Ordering::SeqCst) > 0);
        let status = in_a_fork(|| {
            let echo = client.echo(&payload(b"child")).wait().expect("an echo");
            let another = Channel::lazy(server.address()).expect("a channel");
            let echoes = TestClient::new(another).echo(&payload(b"again")).wait();
            let ended = open.wait().expect_err("it is the parent's");
            let grandchild = in_a_fork(|| client.echo(&payload(b"")).wait().is_ok());
            drop((client.clone(), channel.clone()));
            echo.message().bytes() == b"child"
                && echoes.is_ok()
                && ended.code() == Code::Unavailable
                && grandchild == Some(0)
        });
        assert_eq!(status, Some(0), "{address}");
        // The thread that forks drives the parent's endpoint.
        let its_client = client.clone();
        let status = starling::block_on(async {
            its_client.echo(&payload(b"first")).await.expect("an echo");
            in_a_fork(|| {
                let call = its_client.echo(&payload(b"child"));
                starling::block_on(call).is_ok()
            })
        });
        assert_eq!(status, Some(0), "{address}");
        gate.open.store(true, Ordering::SeqCst);
        let answer = other.join().expect("no panic").expect("the gate is open");
        assert_eq!(answer.message().bytes(), b"other");
        client.echo(&payload(b"after")).wait().expect("an echo");
        assert_eq!(channel.stats().expect("it works").protocol.peers_failed, 0);
    }
}

#[test]
fn a_fork_has_backends_of_its_own_behind_a_channel_to_several_servers() {
    for address in far_addresses() {
        let servers = [serve(&address), serve(&another_address(&address, 1))];
        let addresses = servers.each_ref().map(|(server, _)| server.address());
        let channel = Channel::balanced(addresses).lazy().expect("a channel");
        let client = TestClient::new(channel.clone());
        client.echo(&payload(b"before")).wait().expect("an echo");
        let open = client.wait(&payload(b"open"));
        wait_until(|| {
            let waiting = servers.iter().map(|(_, gate)| &gate.waiting);
            waiting.map(|it| it.load(Ordering::SeqCst)).sum::<usize>() == 1
        });
        let status = in_a_fork(|| {
            let idle = channel.backends().is_empty();
            for _ in 0..10 {
                client.echo(&payload(b"child")).wait().expect("an echo");
            }
            wait_until(|| channel.backends().iter().all(|it| it.takes_calls()));
            idle && channel.backends().len() == 2
        });
        assert_eq!(status, Some(0), "{address}");
        for (_, gate) in &servers {
            gate.open.store(true, Ordering::SeqCst);
        }
        open.wait().expect("the gate is open");
        client.echo(&payload(b"after")).wait().expect("an echo");
        assert_eq!(channel.backends().len(), 2);
    }
}

#[test]
fn a_fork_lets_go_of_a_stream_that_a_thread_of_the_parent_is_using() {
    let (server, _, client) = stream_service::serve(&common::shm_address());
    for _ in 0..5 {
        let (mut there, back) = client.echo();
        let begins = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let large = stream_service::number(1, 64 << 20);
                begins.store(true, Ordering::SeqCst);
                // It is copied under the stream's lock, which the child has for ever.
                let _ = there.send_wait(&large);
            });
            wait_until(|| begins.load(Ordering::SeqCst));
            std::thread::sleep(Duration::from_millis(4));
            let mut back = Some(back);
            let status = in_a_fork(|| {
                let own = back.take().expect("the child's");
                let none = own.metadata().is_none() && own.trailers().is_none();
                drop(own);
                none
            });
            assert_eq!(status, Some(0));
        });
    }
    server.shutdown(common::LONG).expect("the device works");
}
