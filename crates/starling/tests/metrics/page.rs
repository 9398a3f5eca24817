//! The page of metrics, asked by honest clients and others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::parser::parse;

fn ask(address: SocketAddr, request: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("the page");
    connection.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_page_of_another_text_says_why_there_is_none() {
    let is_there = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&is_there);
    let text = move || match flag.load(Ordering::Relaxed) {
        true => Ok("up 1\n".to_owned()),
        false => Err("it has ended".to_owned()),
    };
    let page = starling::metrics::serve_text("127.0.0.1:0", text).expect("a free port");
    let get = || ask(page.address(), "GET /metrics HTTP/1.1\r\n\r\n");
    let answer = get();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nup 1\n"));
    is_there.store(false, Ordering::Relaxed);
    let answer = get();
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("it has ended\n"),
        "{answer}"
    );
}

#[test]
fn a_scraper_gets_the_metrics_and_others_get_told_what_to_ask() {
    let page = starling::metrics::serve("127.0.0.1:0").expect("a free port");
    assert!(starling::metrics::is_enabled());
    let answer = ask(page.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    parse(body);
    let head_only = ask(page.address(), "HEAD /metrics?x=1 HTTP/1.1\r\n\r\n");
    assert!(head_only.starts_with("HTTP/1.1 200") && head_only.ends_with("\r\n\r\n"));
    let other = ask(page.address(), "GET / HTTP/1.1\r\n\r\n");
    assert!(
        other.starts_with("HTTP/1.1 404") && other.contains("/metrics"),
        "{other}"
    );
    let post = ask(page.address(), "POST /metrics HTTP/1.1\r\n\r\n");
    assert!(
        post.starts_with("HTTP/1.1 405") && post.contains("Allow: GET"),
        "{post}"
    );
    for nonsense in ["\r\n\r\n", "\0\x01\r\n\r\n", "GET\r\n\r\n"] {
        assert!(
            ask(page.address(), nonsense).starts_with("HTTP/1.1 40"),
            "{nonsense:?}"
        );
    }
}

#[test]
fn a_client_that_says_nothing_or_too_much_holds_up_no_other_for_long() {
    let page = starling::metrics::serve("127.0.0.1:0").expect("a free port");
    let silent = TcpStream::connect(page.address()).expect("the page");
    let mut endless = TcpStream::connect(page.address()).expect("the page");
    endless
        .write_all(&[b'x'; 9000])
        .expect("room in the socket");
    let answer = ask(page.address(), "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"));
    drop(silent);
}

#[test]
fn clients_that_say_nothing_do_not_hold_up_the_others_one_by_one() {
    let page = starling::metrics::serve("127.0.0.1:0").expect("a free port");
    let silent: Vec<_> = (0..12)
        .map(|_| TcpStream::connect(page.address()).expect("the page"))
        .collect();
    // A line feed alone ends a line, too.
    let answer = ask(page.address(), "GET /metrics HTTP/1.1\nHost: x\n\n");
    assert!(answer.starts_with("HTTP/1.1 200"));
    // Those before it were not waited for.
    let waits = |mut connection: &TcpStream| {
        connection.set_nonblocking(true).expect("a socket");
        let read = connection.read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(silent.iter().any(waits));
}

#[test]
fn a_page_that_is_dropped_is_closed_and_a_taken_address_is_an_error() {
    let page = starling::metrics::serve("127.0.0.1:0").expect("a free port");
    let address = page.address();
    let error = starling::metrics::serve(&address.to_string()).expect_err("it is taken");
    assert!(
        error
            .to_string()
            .contains(&format!("show metrics at http://{address}/metrics")),
        "{error}"
    );
    drop(page);
    assert!(TcpStream::connect(address).is_err());
    starling::metrics::serve("nonsense").expect_err("no address");
}
