//! The state as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.0 for a scraper that requests
//! it.
//!
//! The text is made in pieces as a connection takes them, so at most one piece of it is in memory,
//! however long it is. Sources: "Exposition formats" in Prometheus' documentation, and the
//! OpenMetrics specification 1.0.0.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use dimmer_watch::state::{Client, Site, Specialise, State};

/// A piece ends with the first client after this number of bytes.
const PIECE: usize = 32 * 1024;

/// The format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header prefers: OpenMetrics if the header names it with a higher
    /// weight than plain text, Prometheus' in all other cases (RFC 9110 §12.5.1).
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let weight_of = |wanted: &str| {
            let ranges = accept.unwrap_or_default().split(',');
            let weights = ranges.filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_wanted = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted));
                let weight = parts.find_map(|part| part.strip_prefix("q="));
                // An invalid weight counts as 0.
                is_wanted.then(|| weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0)))
            });
            weights.fold(0.0, f64::max)
        };
        if weight_of("application/openmetrics-text") > weight_of("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The format as HTTP names it.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The object that a metric describes.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// The server as a whole.
    Server(fn(&State) -> f64),
    /// Each license level above L0.
    Levels(fn(&State) -> &[f64]),
    /// Core specialisation in the kernel, if its module is loaded.
    Kernel(fn(&Specialise) -> Value),
    /// Each client that has a value.
    Client(fn(&Client) -> Option<Value>),
    /// Each site that has a value.
    Site(fn(&Site) -> Option<Value>),
}

/// A value as it is written.
#[derive(Clone, Copy, Debug)]
enum Value {
    Count(u64),
    Measure(f64),
}

/// A metric: a counter if `is_counter`, otherwise a gauge.
#[derive(Debug)]
struct Family {
    /// The name without `dimmer_`, and without the `_total` of a counter.
    name: &'static str,
    help: &'static str,
    is_counter: bool,
    of: Of,
}

impl Family {
    const fn gauge(name: &'static str, help: &'static str, of: Of) -> Self {
        Self { name, help, is_counter: false, of }
    }

    const fn counter(name: &'static str, help: &'static str, of: Of) -> Self {
        Self { name, help, is_counter: true, of }
    }
}

static FAMILIES: [Family; 30] = [
    Family::gauge("up_seconds", "For how long the server runs", Of::Server(|state| state.up_s)),
    Family::gauge(
        "clients",
        "Programs that are connected",
        Of::Server(|state| (state.clients.len() + state.hidden) as f64),
    ),
    Family::gauge(
        "clock_requests",
        "Threads that request a clock",
        Of::Server(|state| state.clocks.iter().map(|own| own.requests.requested as f64).sum()),
    ),
    Family::gauge(
        "clock_requests_granted",
        "Threads whose requested clock is in force",
        Of::Server(|state| state.clocks.iter().map(|own| own.requests.granted as f64).sum()),
    ),
    Family::gauge(
        "clock_requests_waiting",
        "Threads whose user waits for its turn to have a clock",
        Of::Server(|state| state.clocks.iter().map(|own| own.requests.waiting as f64).sum()),
    ),
    Family::gauge(
        "dedicated_threads",
        "Hardware threads that are dedicated",
        Of::Server(|state| state.cores.dedicated as f64),
    ),
    Family::gauge(
        "spare_threads",
        "Hardware threads that may be dedicated",
        Of::Server(|state| state.cores.may.len() as f64),
    ),
    Family::gauge(
        "threshold",
        "Density from which calls are moved",
        Of::Levels(|state| state.policy.thresholds.as_deref().unwrap_or_default()),
    ),
    Family::counter(
        "impossible",
        "How often a client said what cannot be",
        Of::Client(|client| Some(Value::Count(client.lies))),
    ),
    Family::gauge(
        "metric",
        "What a client gets done a second, by its own account",
        Of::Client(|client| client.metric.map(Value::Measure)),
    ),
    Family::gauge(
        "wide_threads",
        "Threads of a client that were on wide cores, if it asks for cores",
        Of::Client(|client| client.wide_threads.map(Value::Measure)),
    ),
    Family::counter(
        "calls",
        "Entries of a region since its program began",
        Of::Site(|site| Some(Value::Count(site.calls))),
    ),
    Family::counter(
        "moved_calls",
        "Entries that ran on dedicated cores",
        Of::Site(|site| Some(Value::Count(site.moved))),
    ),
    Family::gauge(
        "region_share",
        "The part of one CPU's time in a region",
        Of::Site(|site| Some(Value::Measure(site.share))),
    ),
    Family::gauge(
        "clock_ratio",
        "The clock right after a region, as a part of the highest",
        Of::Site(|site| site.clock.map(Value::Measure)),
    ),
    Family::gauge(
        "is_moved",
        "Whether a region's entries are moved (1) or stay (0)",
        Of::Site(|site| Some(Value::Count(u64::from(site.action == "move")))),
    ),
    Family::gauge(
        "specialise_narrow_cpus",
        "CPUs on which wide code faults",
        Of::Kernel(|kernel| Value::Count(kernel.narrow.len() as u64)),
    ),
    Family::gauge(
        "specialise_wide_cpus",
        "CPUs online that may run wide code",
        Of::Kernel(|kernel| Value::Count(kernel.wide.len() as u64)),
    ),
    Family::gauge(
        "specialise_is_scheduled",
        "Whether Dimmer's scheduler moves threads (1), or their affinity does (0)",
        Of::Kernel(|kernel| Value::Count(u64::from(kernel.is_scheduled))),
    ),
    Family::counter(
        "specialise_faults",
        "Wide code that met a narrow CPU",
        Of::Kernel(|kernel| Value::Count(kernel.faults)),
    ),
    Family::counter(
        "specialise_moves",
        "Threads that ran on a wide CPU after that",
        Of::Kernel(|kernel| Value::Count(kernel.moves)),
    ),
    Family::counter(
        "specialise_move_seconds",
        "Time until they did",
        Of::Kernel(|kernel| Value::Measure(kernel.move_ns as f64 / 1e9)),
    ),
    Family::counter(
        "specialise_returns",
        "Threads that came back to a narrow CPU",
        Of::Kernel(|kernel| Value::Count(kernel.returns)),
    ),
    Family::counter(
        "specialise_ended_by_calls",
        "Phases of wide code that a system call ended",
        Of::Kernel(|kernel| Value::Count(kernel.ended_by_calls)),
    ),
    Family::counter(
        "specialise_ended_by_time",
        "Phases of wide code that time ended",
        Of::Kernel(|kernel| Value::Count(kernel.ended_by_time)),
    ),
    Family::counter(
        "specialise_allowed",
        "Wide code that ran on a narrow CPU, as its thread may run on no other",
        Of::Kernel(|kernel| Value::Count(kernel.allowed)),
    ),
    Family::counter(
        "specialise_limits",
        "Wide code that ran on a narrow CPU, as its thread faulted too often at one place",
        Of::Kernel(|kernel| Value::Count(kernel.limits)),
    ),
    Family::counter(
        "specialise_without_scheduler",
        "Moves by affinity",
        Of::Kernel(|kernel| Value::Count(kernel.without_scheduler)),
    ),
    Family::counter(
        "specialise_switches",
        "Writes of the register XCR0",
        Of::Kernel(|kernel| Value::Count(kernel.switches)),
    ),
    Family::counter(
        "specialise_missed",
        "Times that a narrow CPU stayed wide until its next switch",
        Of::Kernel(|kernel| Value::Count(kernel.missed)),
    ),
];

/// A state as text, piece by piece.
#[derive(Clone, Debug)]
pub struct Text {
    state: Arc<State>,
    format: Format,
    /// The next metric, and the next client of those that it describes.
    family: usize,
    client: usize,
    has_ended: bool,
}

impl Text {
    /// A state as text.
    #[must_use]
    pub const fn new(state: Arc<State>, format: Format) -> Self {
        Self { state, format, family: 0, client: 0, has_ended: false }
    }
}

impl Iterator for Text {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        while let Some(family) = FAMILIES.get(self.family) {
            if text.len() >= PIECE {
                return Some(text);
            }
            if self.client == 0 {
                self.format.head(&mut text, family);
                family.of_server(&mut text, &self.state);
            }
            if let Some(client) = self.state.clients.get(self.client) {
                family.of_client(&mut text, client);
                self.client += 1;
            }
            if self.client >= self.state.clients.len() {
                (self.family, self.client) = (self.family + 1, 0);
            }
        }
        if self.format == Format::OpenMetrics && !self.has_ended {
            text.push_str("# EOF\n");
        }
        self.has_ended = true;
        (!text.is_empty()).then_some(text)
    }
}

impl Format {
    /// Writes the header of a metric. A counter's name ends in `_total` here in one format, and
    /// only with its values in the other.
    fn head(self, text: &mut String, family: &Family) {
        let Family { name, help, is_counter, .. } = family;
        let total = if *is_counter && self == Self::Prometheus { "_total" } else { "" };
        let kind = if *is_counter { "counter" } else { "gauge" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP dimmer_{name}{total} {help}");
        let _ = writeln!(text, "# TYPE dimmer_{name}{total} {kind}");
    }
}

impl Family {
    fn of_server(&self, text: &mut String, state: &State) {
        match self.of {
            Of::Server(value) => self.sample(text, "", Value::Measure(value(state))),
            Of::Levels(values) => {
                for (level, value) in (1..).zip(values(state)) {
                    let labels = format!("{{level=\"L{level}\"}}");
                    self.sample(text, &labels, Value::Measure(*value));
                }
            }
            Of::Kernel(value) => {
                if let Some(specialise) = &state.specialise {
                    self.sample(text, "", value(specialise));
                }
            }
            Of::Client(_) | Of::Site(_) => {}
        }
    }

    /// Writes its values of a client. The client's number comes first: the ids of processes
    /// that the server does not see are all 0, and names may be anything. No two series may have
    /// the same labels, or Prometheus refuses the scrape.
    fn of_client(&self, text: &mut String, client: &Client) {
        let Client { client: number, pid, .. } = client;
        let program = escaped(&client.name);
        let of_client = format!("client=\"{number}\",pid=\"{pid}\",program=\"{program}\"");
        match self.of {
            Of::Client(value) => {
                if let Some(value) = value(client) {
                    self.sample(text, &format!("{{{of_client}}}"), value);
                }
            }
            Of::Site(value) => {
                for (place, site) in client.sites.iter().enumerate() {
                    let Some(value) = value(site) else { continue };
                    let (name, line) = (escaped(&site.name), site.line);
                    let labels = format!(
                        "{{{of_client},site=\"{name}\",line=\"{line}\",place=\"{place}\"}}"
                    );
                    self.sample(text, &labels, value);
                }
            }
            Of::Server(_) | Of::Levels(_) | Of::Kernel(_) => {}
        }
    }

    fn sample(&self, text: &mut String, labels: &str, value: Value) {
        let (name, total) = (self.name, if self.is_counter { "_total" } else { "" });
        let _ = write!(text, "dimmer_{name}{total}{labels} ");
        let _ = match value {
            Value::Count(count) => writeln!(text, "{count}"),
            Value::Measure(value) if value.is_infinite() => {
                writeln!(text, "{}Inf", if value > 0.0 { '+' } else { '-' })
            }
            Value::Measure(value) => writeln!(text, "{value}"),
        };
    }
}

/// A label's value with backslash, quote and newline escaped.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(state: State, format: Format) -> String {
        Text::new(Arc::new(state), format).collect()
    }

    #[test]
    fn names_cannot_break_the_format() {
        let name = "a\"b\\\n# EOF\nc".into();
        let site = Site { name, calls: 7, ..Site::default() };
        let client =
            Client { pid: 3, name: "x".to_owned(), sites: vec![site], ..Client::default() };
        let state = State { clients: vec![client], ..State::default() };
        let line = "dimmer_calls_total{client=\"0\",pid=\"3\",program=\"x\",site=\"a\\\"b\\\\\\n# EOF\\nc\",line=\"0\",place=\"0\"} 7";
        for (format, ends) in [(Format::Prometheus, 0), (Format::OpenMetrics, 1)] {
            let text = text(state.clone(), format);
            assert!(text.lines().any(|found| found == line), "{text}");
            assert_eq!(text.matches("\n# EOF\n").count(), ends, "{text}");
            assert_eq!(text.ends_with("\n# EOF\n"), ends == 1);
        }
    }

    #[test]
    fn each_format_names_counters_in_its_own_way() {
        let head = |format| {
            let text = text(State::default(), format);
            text.lines().find(|line| line.contains("counter")).unwrap().to_owned()
        };
        assert_eq!(head(Format::Prometheus), "# TYPE dimmer_impossible_total counter");
        assert_eq!(head(Format::OpenMetrics), "# TYPE dimmer_impossible counter");
    }

    #[test]
    fn counters_of_the_kernel_are_there_with_its_module() {
        let specialise = Specialise {
            narrow: vec![2, 3],
            faults: u64::MAX,
            move_ns: 2_500_000_000,
            ..Specialise::default()
        };
        let state = State { specialise: Some(specialise), ..State::default() };
        let with = text(state, Format::Prometheus);
        for line in [
            "dimmer_specialise_narrow_cpus 2",
            "dimmer_specialise_faults_total 18446744073709551615",
            "dimmer_specialise_move_seconds_total 2.5",
        ] {
            assert!(with.lines().any(|found| found == line), "{with}");
        }
        let samples =
            |text: &str| text.lines().filter(|line| line.starts_with("dimmer_specialise_")).count();
        assert_eq!((samples(&with), samples(&text(State::default(), Format::Prometheus))), (14, 0));
    }

    #[test]
    fn no_two_series_have_the_same_labels() {
        // The same region twice, as when a header is compiled into two files, and two processes
        // that the server does not see.
        let site = Site { name: "parse".into(), line: 7, clock: Some(1.0), ..Site::default() };
        let metric = Some(1.0);
        let client = |client| Client {
            client,
            metric,
            wide_threads: metric,
            sites: vec![site.clone(); 2],
            ..Client::default()
        };
        let state = State { clients: vec![client(5), client(6)], ..State::default() };
        let text = text(state, Format::Prometheus);
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let series: Vec<_> = samples.filter_map(|line| line.rsplit_once(' ')).collect();
        let names: std::collections::BTreeSet<_> = series.iter().map(|(name, _)| *name).collect();
        assert!(series.len() > 20 && names.len() == series.len(), "{text}");
        // Each metric has one header.
        let kinds = text.lines().filter(|line| line.starts_with("# TYPE "));
        assert_eq!(kinds.count(), FAMILIES.len());
    }

    #[test]
    fn a_piece_is_bounded_and_all_of_them_are_the_text() {
        let site = Site { name: "x".repeat(100).into(), ..Site::default() };
        let client = |client| Client { client, sites: vec![site.clone(); 20], ..Client::default() };
        let state = State { clients: (0..200).map(client).collect(), ..State::default() };
        let pieces: Vec<String> = Text::new(Arc::new(state), Format::OpenMetrics).collect();
        let longest = pieces.iter().map(String::len).max().unwrap();
        assert!(pieces.len() > 10 && longest < 2 * PIECE, "{} {longest}", pieces.len());
        let text = pieces.concat();
        assert_eq!(text.matches("\ndimmer_calls_total{").count(), 4000);
        assert_eq!(text.matches("# TYPE dimmer_calls ").count(), 1);
    }

    #[test]
    fn openmetrics_is_for_those_who_prefer_it() {
        #[track_caller]
        fn check(accept: &str, expected: Format) {
            assert_eq!(Format::accepted(Some(accept)), expected);
        }
        assert_eq!(Format::accepted(None), Format::Prometheus);
        check("*/*", Format::Prometheus);
        check("text/html", Format::Prometheus);
        check("text/plain, application/openmetrics-text", Format::Prometheus);
        check("application/openmetrics-text;q=0, text/plain;q=0", Format::Prometheus);
        check("application/openmetrics-text;q=x", Format::Prometheus);
        check("application/openmetrics-text", Format::OpenMetrics);
        // The headers of Prometheus 2 and 3.
        check(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            Format::OpenMetrics,
        );
        check(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;escaping=allow-utf-8;q=0.2,*/*;q=0.1",
            Format::OpenMetrics,
        );
    }
}
