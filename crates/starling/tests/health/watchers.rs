//! Watchers that are too many, too slow, or gone.

use starling::{CallOptions, Code, ServingStatus};

use crate::common::process::Process;
use crate::common::{any_addresses, far_addresses, impatient, server, wait_until};
use crate::{NOT_SERVING, SERVING, SHORT, check, echoes, end, health_client, next, request, start};

#[test]
fn a_client_has_as_many_watchers_as_are_free_and_hears_so_when_it_wants_more() {
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder.max_health_watchers(4));
        let health = server.health();
        let client = health_client(server.address());
        let mut watchers: Vec<_> = (0..2).map(|_| client.watch(&request(""))).collect();
        for changes in &mut watchers {
            assert_eq!(next(changes), Ok(SERVING));
        }
        let status = next(&mut client.watch(&request(""))).expect_err("too many");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = status.message();
        assert!(text.contains("takes 4 watchers"), "{text}");
        assert!(text.contains("max_health_watchers"), "{text}");
        // One that goes makes room for another one.
        drop(watchers.pop());
        wait_until(|| health.watchers() == 1);
        watchers.push(client.watch(&request("")));
        assert_eq!(watchers.last_mut().map(next), Some(Ok(SERVING)));
        drop(watchers);
        wait_until(|| health.watchers() == 0);
        end(server);
    }
}

#[test]
fn a_flood_of_watchers_disturbs_no_other_calls_and_leaves_nothing() {
    const FLOOD: usize = 3_000;
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let client = health_client(server.address());
        let mut watchers: Vec<_> = (0..FLOOD).map(|_| client.watch(&request(""))).collect();
        let first: Vec<_> = watchers.iter_mut().map(next).collect();
        let admitted = first.iter().filter(|status| **status == Ok(SERVING));
        assert_eq!(admitted.count(), 512);
        let refused = first.iter().filter_map(|status| status.as_ref().err());
        assert!(
            refused
                .into_iter()
                .all(|it| it.code() == Code::ResourceExhausted)
        );
        assert_eq!(health.watchers(), 512);
        echoes(server.address());
        assert_eq!(check(&client, ""), Ok(SERVING));
        // All of them hear of a change.
        health.set("", NOT_SERVING).expect("known");
        for (changes, _) in watchers.iter_mut().zip(first).filter(|(_, it)| it.is_ok()) {
            assert_eq!(next(changes), Ok(NOT_SERVING));
        }
        drop(watchers);
        wait_until(|| health.watchers() == 0);
        echoes(server.address());
        end(server);
    }
}

#[test]
fn a_watcher_that_reads_slowly_gets_the_latest_status() {
    const CHANGES: usize = 20_001;
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let client = health_client(server.address());
        let options = CallOptions::with_timeout(SHORT).stream_window(1);
        let mut changes = client.watch_with(&request("test.Test"), &options);
        assert_eq!(next(&mut changes), Ok(SERVING));
        for number in 0..CHANGES {
            let status = [NOT_SERVING, SERVING][number % 2];
            health.set("test.Test", status).expect("known");
            if number % 100 == 0 {
                // The server's thread gets to run between the changes.
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        health
            .set("test.Test", ServingStatus::UNKNOWN)
            .expect("known");
        let statuses = std::iter::from_fn(|| Some(next(&mut changes).expect("no end")));
        let stale = statuses.take_while(|status| *status != ServingStatus::UNKNOWN);
        // What was on its way, and what waited at the server.
        let stale = stale.count();
        assert!(stale <= 4, "{stale} old statuses");
        drop(changes);
        end(server);
    }
}

const WATCH: &str = "STARLING_TEST_WATCH";

/// In a process of the test below: watches until it is killed.
#[test]
fn watch_in_this_process() {
    let Some(address) = std::env::var_os(WATCH) else {
        return;
    };
    let client = health_client(address.to_str().expect("text"));
    let mut watchers: Vec<_> = (0..50).map(|_| client.watch(&request(""))).collect();
    for changes in &mut watchers {
        assert_eq!(next(changes), Ok(SERVING));
    }
    println!("\nwatching {}", watchers.len());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

#[test]
fn a_client_with_all_watchers_that_it_gets_leaves_some_to_others() {
    for address in far_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder);
        let health = server.health();
        let client = health_client(server.address());
        let mut watchers: Vec<_> = (0..1_100).map(|_| client.watch(&request(""))).collect();
        let first = watchers.iter_mut().map(next);
        let admitted = first.filter(Result::is_ok).count();
        assert_eq!(admitted, 512);
        // Another client watches as often as it likes.
        let function = "watchers::watch_in_this_process";
        let mut process = Process::run(function, WATCH, server.address());
        assert_eq!(process.next("watching "), "50");
        assert_eq!(health.watchers(), admitted + 50);
        drop((process, watchers));
        end(server);
    }
}

#[test]
fn watchers_whose_process_is_killed_are_removed() {
    for address in far_addresses() {
        let (builder, _) = server(&[&address]);
        let server = start(builder.config(impatient()));
        let health = server.health();
        let function = "watchers::watch_in_this_process";
        let mut process = Process::run(function, WATCH, server.address());
        assert_eq!(process.next("watching "), "50");
        assert_eq!(health.watchers(), 50);
        drop(process);
        wait_until(|| health.watchers() == 0);
        echoes(server.address());
        end(server);
    }
}
