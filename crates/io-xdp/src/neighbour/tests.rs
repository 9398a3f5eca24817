use std::fs::File;
use std::net::UdpSocket;
use std::process::Command;

use starling_netns::{IPV4, IPV6, MAC_B, Pair, inside, run, set_kernel};

use super::*;
use crate::netlink::Netlink;

/// Two namespaces. None, having said so, where they cannot be made.
fn pair(test: &str) -> Option<Pair> {
    let pair = Pair::new();
    if let Err(problem) = &pair {
        println!("skipped: {test} needs root and `ip` of iproute2 ({problem})");
    }
    pair.ok()
}

/// The state of the thread, to be driven by hand, and a next hop from `va` that it watches.
fn watched(namespace: &File, source: &str, destination: &str) -> (Watcher, Arc<NextHop>) {
    let (mut watcher, interface) = inside(namespace, || {
        let mut watcher = Watcher::new().expect("netlink");
        let interface = watcher.questions.link("va").expect("it is there").index;
        (watcher, interface)
    });
    let target = Target {
        interface,
        source: source.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
    };
    let hop = Arc::new(NextHop::new(target));
    let mut table = lock(&watcher.table);
    table.hops.insert(target, Arc::downgrade(&hop));
    drop(table);
    hop.refresh(&mut watcher.questions, false);
    (watcher, hop)
}

#[track_caller]
fn wait_until(mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_hop_has_a_whole_address_or_none() {
    let target = Target {
        interface: 1,
        source: [127, 0, 0, 1].into(),
        destination: [127, 0, 0, 1].into(),
    };
    let hop = NextHop::new(target);
    assert_eq!(hop.mac(), None);
    let mac = [0xff, 1, 2, 3, 4, 0xfe];
    hop.put(Some(mac));
    assert_eq!(hop.mac(), Some(mac));
    hop.put(Some([0; 6]));
    assert_eq!(hop.mac(), Some([0; 6]));
    hop.put(None);
    assert_eq!(hop.mac(), None);
}

#[test]
fn a_destination_has_one_hop_as_long_as_there_is_a_reference() {
    let cache = Neighbours::of_namespace(u64::MAX).expect("netlink");
    let same = Neighbours::of_namespace(u64::MAX).expect("netlink");
    assert!(Arc::ptr_eq(&cache, &same));
    let mut netlink = Netlink::new(0).expect("netlink");
    let target = Target {
        interface: 1,
        source: [127, 0, 0, 1].into(),
        destination: [127, 0, 0, 1].into(),
    };
    let hop = cache.hop(target, Some(&mut netlink));
    assert_eq!(hop.mac(), None, "an address of this host is no next hop");
    assert!(Arc::ptr_eq(&hop, &cache.hop(target, None)));
    drop(hop);
    assert_eq!(lock(&cache.table).hops[&target].strong_count(), 0);
}

/// A routing protocol may change thousands of routes at a time. Neighbours do not change with them.
#[test]
fn changes_of_routes_cause_a_comparison_now_and_then_and_no_probe() {
    let test = "changes_of_routes_cause_a_comparison_now_and_then_and_no_probe";
    let Some(pair) = pair(test) else {
        return;
    };
    let stale = "ip neigh replace 10.77.0.9 lladdr 02:00:00:00:00:09 dev va nud stale";
    run(&pair.a, stale).expect("root");
    let (mut watcher, hop) = watched(&pair.a, IPV4[0], "10.77.0.9");
    hop.put(None);
    let change = |watcher: &mut Watcher, verb: &str| {
        let line = format!("ip route {verb} 10.80.0.0/24 via 10.77.0.2");
        run(&pair.a, &line).expect("root");
        watcher.handle_events();
        // To see whether it is refreshed.
        hop.put(None);
    };
    let now = Instant::now();
    assert_eq!(watcher.refresh_if_outdated(now), Duration::MAX);
    assert_eq!(hop.mac(), None, "nothing has changed");
    change(&mut watcher, "add");
    assert_eq!(watcher.refresh_if_outdated(now), Duration::MAX);
    assert!(hop.mac().is_some());
    change(&mut watcher, "delete");
    change(&mut watcher, "add");
    assert_eq!(watcher.refresh_if_outdated(now), ROUTES_EVERY);
    assert_eq!(hop.mac(), None, "a moment ago");
    watcher.refresh_if_outdated(now + ROUTES_EVERY);
    assert!(hop.mac().is_some());
    assert!(is_stale(&mut watcher, &hop), "nothing has probed it");
}

/// A sender must not wait for the kernel, so the thread asks for it.
#[test]
fn the_thread_looks_up_a_wanted_hop_before_it_compares_any() {
    let Some(pair) = pair("the_thread_looks_up_a_wanted_hop_before_it_compares_any") else {
        return;
    };
    let hops = inside(&pair.a, || {
        // The thread compares nothing in the time that the test takes.
        let cache = Neighbours::start(Duration::from_secs(86_400)).expect("netlink");
        let interface = Netlink::new(0).and_then(|mut netlink| netlink.link("va"));
        let interface = interface.expect("it is there").index;
        let to = |host: u8| Target {
            interface,
            source: [10, 77, 0, 1].into(),
            destination: [10, 77, 0, host].into(),
        };
        // The pair has exchanged datagrams. No host has the other address.
        let hops = [2, 3].map(|host| cache.hop(to(host), None));
        wait_until(|| hops[0].mac().is_some());
        hops.map(|hop| hop.mac())
    });
    assert_eq!(hops, [Some([2, 0, 0, 0, 0, 2]), None]);
}

/// Whether the kernel's entry of the next hop is stale.
fn is_stale(watcher: &mut Watcher, hop: &NextHop) -> bool {
    let next = hop.next().expect("a route");
    let known = watcher.questions.neighbour(hop.target.interface, next);
    known.expect("a neighbour").is_stale
}

/// From now on the kernel of `va` probes at once and gives up soon. No neighbour becomes stale by
/// itself.
fn probe_at_once(pair: &Pair) {
    for version in ["ipv4", "ipv6"] {
        for (name, value) in [
            ("delay_first_probe_time", "0"),
            ("retrans_time_ms", "200"),
            ("base_reachable_time_ms", "86400000"),
        ] {
            let name = format!("net/{version}/neigh/va/{name}");
            set_kernel(&pair.a, &name, value).expect("root");
        }
    }
}

/// Ethernet frames that bypass the kernel do not tell it that the neighbour is needed.
#[test]
fn a_stale_neighbour_is_probed_and_one_that_does_not_answer_is_not_used() {
    let test = "a_stale_neighbour_is_probed_and_one_that_does_not_answer_is_not_used";
    let Some(pair) = pair(test) else {
        return;
    };
    probe_at_once(&pair);
    for (ends, prefix) in [(IPV4, 24), (IPV6, 64)] {
        let mac = Some([2, 0, 0, 0, 0, 2]);
        let stale = format!(
            "ip neigh replace {} lladdr {MAC_B} dev va nud stale",
            ends[1]
        );
        let (mut watcher, hop) = watched(&pair.a, ends[0], ends[1]);
        wait_until(|| {
            // An answer to an earlier probe may make it reachable again.
            run(&pair.a, &stale).expect("root");
            is_stale(&mut watcher, &hop)
        });
        hop.refresh(&mut watcher.questions, false);
        assert_eq!(hop.mac(), mac, "it may well be there");
        watcher.refresh_some();
        assert!(!is_stale(&mut watcher, &hop), "the kernel probes it");
        wait_until(|| {
            if shows(&pair.a, ends[1], "FAILED") {
                // The other end did not run in time to answer.
                run(&pair.a, &stale).expect("root");
            }
            watcher.refresh_some();
            watcher.handle_events();
            shows(&pair.a, ends[1], "REACHABLE")
        });
        wait_until(|| {
            watcher.handle_events();
            hop.mac() == mac
        });

        // The host is gone.
        let address = format!("{}/{prefix} dev vb", ends[1]);
        run(&pair.b, &format!("ip address delete {address}")).expect("it is there");
        wait_until(|| {
            if shows(&pair.a, ends[1], "REACHABLE") {
                run(&pair.a, &stale).expect("root");
            }
            watcher.refresh_some();
            watcher.handle_events();
            if hop.mac().is_some() {
                return false;
            }
            let is_known = shows(&pair.a, ends[1], "lladdr");
            if is_known {
                // The answer to an earlier probe came after the kernel had given up.
                wait_until(|| {
                    watcher.handle_events();
                    hop.mac() == mac
                });
            }
            !is_known
        });

        // It is back, and the kernel resolves it for a socket that sends to it.
        run(&pair.b, &format!("ip address add {address} nodad")).expect("root");
        let socket = inside(&pair.a, || UdpSocket::bind((ends[0], 0))).expect("its address");
        wait_until(|| {
            // The kernel may refuse while it remembers that the neighbour did not answer.
            let _ = socket.send_to(b"x", (ends[1], 9));
            watcher.handle_events();
            hop.mac() == mac
        });
    }
}

/// Whether the kernel has a neighbour of `va` in that state.
fn shows(namespace: &File, address: &str, state: &str) -> bool {
    let ask = || {
        let mut command = Command::new("ip");
        command
            .args(["neigh", "show", address, "dev", "va"])
            .output()
    };
    let output = inside(namespace, ask).expect("iproute2");
    String::from_utf8_lossy(&output.stdout).contains(state)
}

#[test]
fn a_neighbour_that_failed_or_was_deleted_is_not_used() {
    let Some(pair) = pair("a_neighbour_that_failed_or_was_deleted_is_not_used") else {
        return;
    };
    for (source, address) in [(IPV4[0], "10.77.0.9"), (IPV6[0], "fd77::9")] {
        for end in ["change {} dev va nud failed", "delete {} dev va"] {
            let neigh = |line: &str| {
                let line = line.replace("{}", address);
                run(&pair.a, &format!("ip neigh {line}")).expect("root");
            };
            let (mut watcher, hop) = watched(&pair.a, source, address);
            assert_eq!(hop.mac(), None);
            for state in ["reachable", "stale", "permanent"] {
                neigh(&format!(
                    "replace {{}} lladdr 02:00:00:00:00:09 dev va nud {state}"
                ));
                watcher.handle_events();
                assert_eq!(hop.mac(), Some([2, 0, 0, 0, 0, 9]), "{state}");
            }
            neigh(end);
            watcher.handle_events();
            assert_eq!(hop.mac(), None, "{end}");
            // A lookup does not bring it back.
            hop.refresh(&mut watcher.questions, true);
            assert_eq!(hop.mac(), None, "{end}");
        }
    }
}
