//! The connection to the collector, and the task that sends metrics by it.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use starling::metrics::{snapshot, threads};
use tokio::sync::Notify;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::metrics::{requests, unix_ns};

/// How long one export may take.
pub(crate) const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects when it is used first, and again if the connection is lost.
pub(crate) fn connect(endpoint: Endpoint) -> Channel {
    // The timeout of an export begins when there is a connection.
    let endpoint = endpoint.connect_timeout(EXPORT_TIMEOUT);
    endpoint.timeout(EXPORT_TIMEOUT).connect_lazy()
}

/// Whether the collector takes the metrics, as far as the program was told.
struct Reception {
    address: String,
    is_good: bool,
}

impl Reception {
    /// Takes in how an export ended, and tells the program if that is new.
    fn handle(&mut self, failure: Option<&Status>) {
        let was_good = std::mem::replace(&mut self.is_good, failure.is_none());
        let address = &self.address;
        match failure {
            Some(failure) if was_good => tracing::warn!(
                "the collector at {address} does not take the metrics: {failure}; see that it runs there and \
                 receives OTLP over gRPC, whose port is 4317 unless set. Starling goes on trying; counts are sums, \
                 and lose nothing meanwhile"
            ),
            None if !was_good => {
                tracing::info!("the collector at {address} takes the metrics again")
            }
            _ => {}
        }
    }
}

/// Sends all metrics now and then, and once more at the end.
pub(crate) async fn push(
    channel: Channel,
    address: String,
    service_name: String,
    interval: Duration,
    end: Arc<Notify>,
) {
    let begun = unix_ns();
    let mut client = MetricsServiceClient::new(channel);
    let is_good = true;
    let mut reception = Reception { address, is_good };
    let mut is_last = false;
    while !is_last {
        is_last = tokio::time::timeout(interval, end.notified()).await.is_ok();
        // Threads are asked, which blocks.
        let collected = tokio::task::spawn_blocking(|| (snapshot(), threads())).await;
        let Ok((calls, threads)) = collected else {
            continue;
        };
        let mut failure = None;
        for request in requests(&service_name, begun, &calls, &threads) {
            // Sums are cumulative: what is lost now is in the next one.
            let Err(status) = client.export(request).await else {
                continue;
            };
            // The others will not arrive either. What else it says may be of this request alone.
            let is_lost = matches!(
                status.code(),
                Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded
            );
            failure = Some(status);
            if is_lost {
                break;
            }
        }
        reception.handle(failure.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};

    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A listener whose queue is full: the kernel leaves whoever connects to it without an answer.
    fn silent() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = "127.0.0.1:0".parse().expect("an address");
        socket.bind(any).expect("a free port");
        let listener = socket.listen(1).expect("it is bound");
        let address = listener.local_addr().expect("it is bound");
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok();
        let queue = (0..100).map_while(connect).collect();
        (listener, address, queue)
    }

    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_silent_while_it_is_connected_to_ends_the_export() {
        let (_listener, address, _queue) = silent();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let mut client = MetricsServiceClient::new(connect(endpoint));
        // Time passes at once while nothing else can happen.
        let export = client.export(ExportMetricsServiceRequest::default());
        let export = tokio::time::timeout(3 * EXPORT_TIMEOUT, export).await;
        export.expect("it ends").expect_err("it cannot connect");
    }
}
