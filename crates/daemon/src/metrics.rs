//! What goes on, for Prometheus: a thread that asks the server as anybody who watches would, and answers over HTTP.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::state::{Client, Site, State};
use crate::watch::Watch;

/// What the text is, as HTTP names it.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// For how long each attempt to write an answer lasts if who has asked reads nothing; others wait meanwhile. A guess: there are some
/// attempts on the way out of the library, which together are to take less than Prometheus waits (10 s, `scrape_timeout`).
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers at that address from now on, until the process ends.
///
/// # Errors
/// If nobody can listen there.
pub fn serve(address: SocketAddr, socket: PathBuf) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    // Connections have it from the socket that they came to.
    set_socket_timeout(&listener, Timeout::Send, Some(PATIENCE))?;
    let server = tiny_http::Server::from_listener(listener, None).map_err(io::Error::other)?;
    let answer = move || {
        for request in server.incoming_requests() {
            let is_known = request.url() == "/metrics";
            let state = is_known.then(|| Watch::new(Some(&socket)).and_then(|watch| watch.state()));
            let (status, text) = match state {
                Some(Ok(state)) => (200, text(state)),
                Some(Err(error)) => (503, error.to_string()),
                None => (404, "there is nothing but /metrics".to_owned()),
            };
            let mut response = tiny_http::Response::from_string(text).with_status_code(status);
            if status == 200
                && let Ok(header) =
                    tiny_http::Header::from_bytes(b"Content-Type", CONTENT_TYPE.as_bytes())
            {
                response.add_header(header);
            }
            // Who has asked may have gone.
            let _ = request.respond(response);
        }
    };
    std::thread::Builder::new().name("metrics".to_owned()).spawn(answer).map(|_| ())
}

/// A state in the format of OpenMetrics.
#[must_use]
pub fn text(state: State) -> String {
    let mut registry = Registry::with_prefix("dimmer");
    registry.register_collector(Box::new(Told(state)));
    let mut text = String::new();
    // A string takes whatever is written.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Told(State);

/// Whose a value is.
type Labels = Vec<(&'static str, String)>;

impl Told {
    fn gauge(
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), std::fmt::Error> {
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) -> Result<(), std::fmt::Error> {
        let kind = prometheus_client::metrics::MetricType::Counter;
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn clients(&self) -> impl Iterator<Item = (Labels, &Client)> {
        self.0.clients.iter().map(|client| (of_client(client), client))
    }

    fn sites(&self) -> impl Iterator<Item = (Labels, &Site)> {
        self.clients().flat_map(|(labels, client)| {
            client.sites.iter().enumerate().map(move |(place, site)| {
                let mut labels = labels.clone();
                labels.push(("site", site.name.clone()));
                labels.push(("line", site.line.to_string()));
                labels.push(("place", place.to_string()));
                (labels, site)
            })
        })
    }
}

/// Its number comes first: processes that the server does not see are all 0, and names may be anything. No two series may have the same
/// labels, or a scrape is refused.
fn of_client(client: &Client) -> Labels {
    vec![
        ("client", client.client.to_string()),
        ("pid", client.pid.to_string()),
        ("program", client.name.clone()),
    ]
}

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let encoder = &mut encoder;
        let one = |value: usize| [(Labels::new(), value as f64)];
        Self::gauge(
            encoder,
            ("up_seconds", "For how long the server runs"),
            [(Labels::new(), self.0.up_s)],
        )?;
        Self::gauge(
            encoder,
            ("clients", "Programs that are connected"),
            one(self.0.clients.len() + self.0.hidden),
        )?;
        Self::gauge(
            encoder,
            ("dedicated_threads", "Hardware threads that are dedicated"),
            one(self.0.cores.dedicated),
        )?;
        Self::gauge(
            encoder,
            ("spare_threads", "Hardware threads that may be dedicated"),
            one(self.0.cores.may.len()),
        )?;
        let thresholds = self.0.policy.thresholds.iter().flatten().enumerate();
        let thresholds =
            thresholds.map(|(level, value)| (vec![("level", format!("L{}", level + 1))], *value));
        Self::gauge(encoder, ("threshold", "Density from which calls are moved"), thresholds)?;
        Self::counter(
            encoder,
            ("impossible", "How often a client said what cannot be"),
            self.clients().map(|(labels, client)| (labels, client.lies)),
        )?;
        Self::gauge(
            encoder,
            ("metric", "What a client gets done a second, by its own account"),
            self.clients().filter_map(|(labels, client)| Some((labels, client.metric?))),
        )?;
        Self::counter(
            encoder,
            ("calls", "Entries of a region since its program began"),
            self.sites().map(|(labels, site)| (labels, site.calls)),
        )?;
        Self::counter(
            encoder,
            ("moved_calls", "Entries that ran on dedicated cores"),
            self.sites().map(|(labels, site)| (labels, site.moved)),
        )?;
        Self::gauge(
            encoder,
            ("region_share", "The part of one CPU's time in a region"),
            self.sites().map(|(labels, site)| (labels, site.share)),
        )?;
        Self::gauge(
            encoder,
            ("clock_ratio", "The clock right after a region, as a part of the highest"),
            self.sites().filter_map(|(labels, site)| Some((labels, site.clock?))),
        )?;
        Self::gauge(
            encoder,
            ("is_moved", "Whether a region's entries are moved (1) or stay (0)"),
            self.sites()
                .map(|(labels, site)| (labels, f64::from(u8::from(site.action == "offload")))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_format() {
        let site = Site { name: "a\"b\n# EOF\nc".to_owned(), calls: 7, ..Site::default() };
        let client =
            Client { pid: 3, name: "x".to_owned(), sites: vec![site], ..Client::default() };
        let text = text(State { clients: vec![client], ..State::default() });
        let line = "dimmer_calls_total{client=\"0\",pid=\"3\",program=\"x\",site=\"a\\\"b\\n# EOF\\nc\",line=\"0\",place=\"0\"} 7";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(text.ends_with("# EOF\n") && text.matches("\n# EOF\n").count() == 1);
    }

    #[test]
    fn no_two_series_have_the_same_labels() {
        // The same region twice, as where a header is compiled into two files, and two processes that the server does not see.
        let site = Site { name: "parse".to_owned(), line: 7, clock: Some(1.0), ..Site::default() };
        let metric = Some(1.0);
        let client =
            |client| Client { client, metric, sites: vec![site.clone(); 2], ..Client::default() };
        let text = text(State { clients: vec![client(5), client(6)], ..State::default() });
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let series: Vec<_> = samples.filter_map(|line| line.rsplit_once(' ')).collect();
        let names: std::collections::BTreeSet<_> = series.iter().map(|(name, _)| *name).collect();
        assert!(series.len() > 20 && names.len() == series.len(), "{text}");
    }
}
