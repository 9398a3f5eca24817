//! The ways that frames take: by routers, and to neighbours that the kernel knows well or does not.

mod common;

use common::{Net, by_the_kernel, check_no_drops, meet, send_one, transfer, until_not_needed};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::inside;

#[test]
fn what_is_behind_a_router_is_reached_by_it_past_the_kernel() {
    let test = "what_is_behind_a_router_is_reached_by_it_past_the_kernel";
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
