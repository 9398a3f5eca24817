use super::*;

#[test]
fn the_loopback_interface_is_found_and_another_is_not() {
    let mut netlink = Netlink::new(0).expect("netlink");
    let link = netlink.link("lo").expect("every host has it");
    assert_eq!(link.index, 1);
    assert_eq!(netlink.link_of(1).expect("by its number"), link);
    let error = netlink.link_of(i32::MAX as u32).expect_err("there is none");
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    assert!(!link.is_ethernet && link.queues.rx >= 1 && link.mtu > 0);
    let error = netlink.link("no-such-if").expect_err("there is none");
    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn an_incomplete_list_is_an_error() {
    let after = |item_flags: i32, kind: i32, end: i32| {
        let mut answer = Answer::to(7);
        answer.take(&message(libc::RTM_NEWLINK, item_flags as u16, 7, &[0; 16]));
        assert!(answer.end.is_none());
        // A message of another answer.
        answer.take(&message(kind as u16, 0, 6, &(-libc::EPERM).to_ne_bytes()));
        answer.take(&message(kind as u16, 0, 7, &end.to_ne_bytes()));
        assert_eq!(answer.messages.len(), 1);
        answer
            .end
            .expect("it has ended")
            .map_err(|error| error.kind())
    };
    for kind in [libc::NLMSG_DONE, libc::NLMSG_ERROR] {
        assert_eq!(after(0, kind, 0), Ok(()));
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(after(0, kind, -libc::EPERM), Err(denied));
        let flags = libc::NLM_F_MULTI | libc::NLM_F_DUMP_INTR;
        let interrupted = io::ErrorKind::Interrupted;
        assert_eq!(after(flags, kind, 0), Err(interrupted));
    }
}

#[test]
fn link_local_addresses_are_routed_by_the_given_interface() {
    let made = starling_netns::Pair::new().and_then(|pair| {
        for line in [
            "ip link add other type veth peer name further",
            "ip link set other up",
            "ip link set further up",
        ] {
            starling_netns::run(&pair.a, line)?;
        }
        Ok(pair)
    });
    let pair = match made {
        Ok(pair) => pair,
        Err(problem) => {
            let test = "link_local_addresses_are_routed_by_the_given_interface";
            println!("skipped: {test} needs root and `ip` of iproute2 ({problem})");
            return;
        }
    };
    starling_netns::inside(&pair.a, || {
        let mut netlink = Netlink::new(0).expect("netlink");
        for name in ["va", "other"] {
            let index = netlink.link(name).expect("it is there").index;
            let to = "fe80::1234".parse().expect("an address");
            let route = netlink.route(to, None, index).expect("a route");
            assert_eq!((route.interface, route.is_unicast), (index, true), "{name}");
        }
        // For all other addresses the routes decide.
        let other = netlink.link("other").expect("it is there").index;
        let to = starling_netns::IPV6[1].parse().expect("an address");
        let route = netlink.route(to, None, other).expect("a route");
        assert_ne!(route.interface, other);
    });
}

#[test]
fn older_events_are_left_out_after_a_loss() {
    let pair = match starling_netns::Pair::new() {
        Ok(pair) => pair,
        Err(problem) => {
            let test = "older_events_are_left_out_after_a_loss";
            println!("skipped: {test} needs root and `ip` of iproute2 ({problem})");
            return;
        }
    };
    starling_netns::inside(&pair.a, || {
        let mut events = Netlink::new(libc::RTMGRP_NEIGH as u32).expect("netlink");
        let mut netlink = Netlink::new(0).expect("netlink");
        let interface = netlink.link("va").expect("it is there").index;
        let mut change = |address: [u8; 4]| {
            let mut body = neighbour_body(interface, address.into(), 0);
            // NUD_PERMANENT
            body[8] = 0x80;
            push_attribute(&mut body, libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 9]);
            let made = netlink.ask(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE, &body);
            made.expect("a neighbour");
        };
        // More than a socket has room for.
        for number in 0..10_000_u16 {
            let [high, low] = number.to_be_bytes();
            change([10, 78, high, low]);
        }
        let error = events.events().expect_err("some were lost");
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
        change([10, 79, 0, 1]);
        let told = events.events().expect("there is room again");
        let told: Vec<IpAddr> = told
            .iter()
            .filter_map(|event| Some(parse_neighbour(event)?.address))
            .collect();
        // The kernel's own neighbours may be among them.
        let is_older = |address: &IpAddr| matches!(octets(*address)[..], [10, 78, ..]);
        assert!(!told.iter().any(is_older));
        assert!(told.contains(&[10, 79, 0, 1].into()));
    });
}

#[test]
fn a_vlan_names_the_interface_that_it_is_on() {
    let of_kind = |kind: &[u8]| {
        let mut body = vec![0; 16];
        let mut info = Vec::new();
        push_attribute(&mut info, IFLA_INFO_KIND, kind);
        push_attribute(&mut body, libc::IFLA_LINKINFO, &info);
        push_attribute(&mut body, libc::IFLA_LINK, &7_u32.to_ne_bytes());
        parse_link(&body).expect("a link").vlan_of
    };
    assert_eq!(of_kind(b"vlan\0"), Some(7));
    assert_eq!(of_kind(b"veth\0"), None, "its link is its peer");
    assert_eq!(of_kind(b"vlan"), None, "names end with a zero");
}

#[test]
fn any_bytes_are_parsed_without_panic() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        Answer::to(0).take(bytes);
        each_message(bytes, |Header { kind, .. }, body| {
            let body = body.to_vec();
            let _ = (
                parse_link(&body),
                parse_address(&body, 1),
                parse_route(&body),
            );
            let _ = parse_neighbour(&Message { kind, body });
        });
        let _ = (
            parse_link(bytes),
            parse_address(bytes, 0),
            parse_route(bytes),
        );
    });
}
