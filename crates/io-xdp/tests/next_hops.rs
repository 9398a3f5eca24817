//! Next hops: routers, and neighbours in all states of the kernel's table.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{Net, by_the_kernel, check_no_drops, meet, send_one, transfer, until_not_needed};
use starling_io::PeerId;
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{IPV4, IPV6, MAC_B, inside, run};

#[test]
fn a_host_behind_a_router_is_reached_by_the_ring() {
    let test = "a_host_behind_a_router_is_reached_by_the_ring";
    let Some(net) = Net::new(test) else {
        return;
    };
    let far = net.route_to_another().expect("as the pair itself");
    for host in [
        starling_netns::FAR_IPV4[1].to_owned(),
        format!("[{}]", starling_netns::FAR_IPV6[1]),
    ] {
        let bind = || XdpIo::bind(&format!("xdp://vc/{host}:0"), XdpConfig::default());
        let mut c = inside(&far, bind).expect("a device");
        let to_c = format!("xdp://va/{host}:{}", c.local_socket_address().port());
        let mut a = inside(&net.a, || XdpIo::client(&to_c, Default::default())).expect("a route");
        let (to_c, to_a) = meet(&mut a, &mut c, &to_c);
        // Frames to any other hardware address than the router's would not arrive.
        let namespaces = [&net.a, &far];
        until_not_needed(namespaces, || send_one(&mut a, &mut c, to_c));
        let before = until_not_needed(namespaces, || send_one(&mut c, &mut a, to_a));
        transfer(&mut a, &mut c, to_c, to_a);
        transfer(&mut c, &mut a, to_a, to_c);
        assert_eq!(before, namespaces.map(by_the_kernel), "it was not needed");
        check_no_drops(&a);
        check_no_drops(&c);
    }
}

/// Runs `ip neigh VERB` for a neighbour of `va`.
fn neigh(net: &Net, verb: &str, address: &str, rest: &str) {
    let line = format!("ip neigh {verb} {address} dev va {rest}");
    run(&net.a, line.trim_end()).expect("root");
}

/// Devices at both ends that know each other's next hop. The second, at `vb`, has this address; the
/// first has it as a peer.
fn met(net: &Net, address: &str) -> (XdpIo, XdpIo, PeerId) {
    let host = match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    };
    let mut b = net.at_b(&format!("xdp://vb/{host}:0"));
    let to_b = format!("xdp://va/{host}:{}", b.local_socket_address().port());
    let mut a = inside(&net.a, || XdpIo::client(&to_b, Default::default())).expect("a route");
    let (to_b, _) = meet(&mut a, &mut b, &to_b);
    (a, b, to_b)
}

/// Otherwise the kernel would forget a neighbour that only the ring uses, and would not notice its
/// change of address.
#[test]
fn a_stale_neighbour_is_probed_though_the_kernel_sends_it_nothing() {
    let test = "a_stale_neighbour_is_probed_though_the_kernel_sends_it_nothing";
    let Some(net) = Net::new(test) else {
        return;
    };
    for address in [IPV4[1], IPV6[1]] {
        let (mut a, mut b, to_b) = met(&net, address);
        until_not_needed([&net.a], || send_one(&mut a, &mut b, to_b));
        neigh(
            &net,
            "replace",
            address,
            &format!("lladdr {MAC_B} nud stale"),
        );
        let before = by_the_kernel(&net.a);
        let is_stale = || {
            let show = ["neigh", "show", address, "dev", "va"];
            let output = inside(&net.a, || Command::new("ip").args(show).output());
            String::from_utf8_lossy(&output.expect("iproute2").stdout).contains("STALE")
        };
        assert!(is_stale());
        let begun = Instant::now();
        while is_stale() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no query reaches it"
            );
            send_one(&mut a, &mut b, to_b);
        }
        assert_eq!(by_the_kernel(&net.a), before, "it was not needed");
        check_no_drops(&a);
    }
}

#[test]
fn a_neighbour_that_failed_is_found_again_by_the_kernel() {
    let Some(net) = Net::new("a_neighbour_that_failed_is_found_again_by_the_kernel") else {
        return;
    };
    for address in [IPV4[1], IPV6[1]] {
        let (mut a, mut b, to_b) = met(&net, address);
        for (verb, rest) in [("change", "nud failed"), ("delete", "")] {
            let [before] = until_not_needed([&net.a], || send_one(&mut a, &mut b, to_b));
            neigh(&net, verb, address, rest);
            let begun = Instant::now();
            while by_the_kernel(&net.a) == before {
                assert!(
                    begun.elapsed() < Duration::from_secs(60),
                    "{verb} {rest}: still used"
                );
                send_one(&mut a, &mut b, to_b);
            }
        }
        until_not_needed([&net.a], || send_one(&mut a, &mut b, to_b));
    }
}
