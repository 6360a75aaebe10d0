//! The state as text: Prometheus' format 0.0.4, or OpenMetrics 1.0.0 for a scraper that requests
//! it. Names follow Prometheus' rules: base units, and the unit and `_total` at the end.
//!
//! The text is made in pieces as a connection takes them, so at most one piece of it is in memory,
//! however long it is. Sources: "Exposition formats" in Prometheus' documentation, and the
//! OpenMetrics specification 1.0.0.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use dimmer_watch::state::{Client, Mechanism, Program, Site, Specialise, State};

use super::measured::{Connected, Measured};

/// A piece ends with the first program or client after this number of bytes.
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
    /// The server's version.
    Version,
    /// Each license level above L0.
    Levels(fn(&State) -> &[f64]),
    /// Each mechanism that has a value, if the loop compares mechanisms.
    Mechanisms(fn(&Mechanism) -> Option<Value>),
    /// Core specialisation in the kernel, if its module is loaded.
    Kernel(fn(&Specialise) -> Value),
    /// Each program and unit.
    Program(fn(&Program) -> Value),
    /// What is connected of each program and unit, if it has a value.
    Connected(fn(&Connected) -> Option<Value>),
    /// The regions of each program and unit, by what happens to their calls.
    Regions,
    /// Each client that has a value, if there are metrics of clients.
    Client(fn(&Client) -> Option<Value>),
    /// Each site that has a value, if there are metrics of clients.
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

static FAMILIES: [Family; 43] = [
    Family::gauge("build_info", "The version of the running daemon", Of::Version),
    Family::gauge(
        "uptime_seconds",
        "Time since the daemon started",
        Of::Server(|state| state.up_s),
    ),
    Family::gauge(
        "clients",
        "Processes that are connected",
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
        "dedicated_cpus",
        "CPUs that are dedicated now",
        Of::Server(|state| state.cores.dedicated as f64),
    ),
    Family::gauge(
        "dedicable_cpus",
        "CPUs that may be dedicated",
        Of::Server(|state| state.cores.may.len() as f64),
    ),
    Family::gauge(
        "move_threshold_ratio",
        "Density of wide code from which calls are moved, if the loop has thresholds",
        Of::Levels(|state| state.policy.thresholds.as_deref().unwrap_or_default()),
    ),
    Family::gauge(
        "mechanism_in_force",
        "Whether a mechanism is in force (1) or not (0), if the loop compares mechanisms",
        Of::Mechanisms(|of| Some(Value::Count(u64::from(of.is_in_force)))),
    ),
    Family::gauge(
        "mechanism_gain_ratio",
        "How much more work is done under a mechanism than under none, by trials",
        Of::Mechanisms(|of| of.gain_ratio.map(Value::Measure)),
    ),
    Family::gauge(
        "program_clients",
        "Processes of a program that are connected",
        Of::Connected(|connected| Some(Value::Count(connected.clients))),
    ),
    Family::gauge(
        "program_regions",
        "Marked regions of connected processes, by whether their calls stay or are moved",
        Of::Regions,
    ),
    Family::gauge(
        "program_clock_ratio",
        "The lowest clock right after a region of a program, as a part of the highest clock",
        Of::Connected(|connected| connected.clock.map(Value::Measure)),
    ),
    Family::counter(
        "program_connections",
        "Processes of a program that have connected",
        Of::Program(|program| Value::Count(program.connections)),
    ),
    Family::counter(
        "program_calls",
        "Calls of marked regions",
        Of::Program(|program| Value::Count(program.calls)),
    ),
    Family::counter(
        "program_moved_calls",
        "Calls of marked regions that ran on dedicated cores",
        Of::Program(|program| Value::Count(program.moved)),
    ),
    Family::counter(
        "program_region_seconds",
        "Time in marked regions, estimated from a sample of their calls",
        Of::Program(|program| Value::Measure(program.region_ns as f64 / 1e9)),
    ),
    Family::counter(
        "program_dedicated_seconds",
        "Time of threads on dedicated cores, of programs that ask for cores",
        Of::Program(|program| Value::Measure(program.dedicated_ns as f64 / 1e9)),
    ),
    Family::counter(
        "program_progress",
        "Work done, in the unit that the program itself reports",
        Of::Program(|program| Value::Count(program.done)),
    ),
    Family::counter(
        "program_invalid_reports",
        "Impossible values that processes of a program have reported",
        Of::Program(|program| Value::Count(program.lies)),
    ),
    Family::counter(
        "client_invalid_reports",
        "Impossible values that a client has reported",
        Of::Client(|client| Some(Value::Count(client.lies))),
    ),
    Family::gauge(
        "client_progress_per_second",
        "Work that a client does, in the unit that it reports itself",
        Of::Client(|client| client.metric.map(Value::Measure)),
    ),
    Family::gauge(
        "client_dedicated_threads",
        "Threads of a client on dedicated cores, if it asks for cores",
        Of::Client(|client| client.wide_threads.map(Value::Measure)),
    ),
    Family::counter(
        "region_calls",
        "Calls of a client's region since its program started",
        Of::Site(|site| Some(Value::Count(site.calls))),
    ),
    Family::counter(
        "region_moved_calls",
        "Calls of a client's region that ran on dedicated cores",
        Of::Site(|site| Some(Value::Count(site.moved))),
    ),
    Family::gauge(
        "region_cpu_ratio",
        "Time in a client's region, as a part of one CPU's time",
        Of::Site(|site| Some(Value::Measure(site.share))),
    ),
    Family::gauge(
        "region_clock_ratio",
        "The clock right after a client's region, as a part of the highest clock",
        Of::Site(|site| site.clock.map(Value::Measure)),
    ),
    Family::gauge(
        "region_moved",
        "Whether the calls of a client's region are moved (1) or stay (0)",
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
    measured: Arc<Measured>,
    format: Format,
    /// The next metric, and the next of the programs or clients that it describes.
    family: usize,
    item: usize,
    has_ended: bool,
}

impl Text {
    /// A state as text.
    #[must_use]
    pub const fn new(measured: Arc<Measured>, format: Format) -> Self {
        Self { measured, format, family: 0, item: 0, has_ended: false }
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
            if !self.measured.is_per_client && family.is_per_client() {
                self.family += 1;
                continue;
            }
            if self.item == 0 {
                self.format.head(&mut text, family);
                family.of_server(&mut text, &self.measured.state);
            }
            if family.item(&mut text, &self.measured, self.item).is_some() {
                self.item += 1;
            } else {
                (self.family, self.item) = (self.family + 1, 0);
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
    const fn is_per_client(&self) -> bool {
        matches!(self.of, Of::Client(_) | Of::Site(_))
    }

    fn of_server(&self, text: &mut String, state: &State) {
        match self.of {
            Of::Server(value) => self.sample(text, "", Value::Measure(value(state))),
            Of::Version => {
                let labels = format!("{{version=\"{}\"}}", escaped(&state.version));
                self.sample(text, &labels, Value::Count(1));
            }
            Of::Levels(values) => {
                for (level, value) in (1..).zip(values(state)) {
                    let labels = format!("{{level=\"L{level}\"}}");
                    self.sample(text, &labels, Value::Measure(*value));
                }
            }
            Of::Mechanisms(value) => {
                for of in &state.policy.mechanisms {
                    let Some(value) = value(of) else { continue };
                    let labels = format!("{{mechanism=\"{}\"}}", escaped(&of.mechanism));
                    self.sample(text, &labels, value);
                }
            }
            Of::Kernel(value) => {
                if let Some(specialise) = &state.specialise {
                    self.sample(text, "", value(specialise));
                }
            }
            _ => {}
        }
    }

    /// Writes its values of the program or client at this place; `None` if there is none.
    fn item(&self, text: &mut String, measured: &Measured, place: usize) -> Option<()> {
        let state = &measured.state;
        match self.of {
            Of::Program(_) | Of::Connected(_) | Of::Regions => {
                self.of_program(text, state.programs.get(place)?, measured.connected.get(place)?);
            }
            Of::Client(_) | Of::Site(_) => self.of_client(text, state.clients.get(place)?),
            _ => return None,
        }
        Some(())
    }

    fn of_program(&self, text: &mut String, program: &Program, connected: &Connected) {
        let labels = of_program(&program.program, &program.unit);
        match self.of {
            Of::Program(value) => self.sample(text, &format!("{{{labels}}}"), value(program)),
            Of::Connected(value) => {
                if let Some(value) = value(connected) {
                    self.sample(text, &format!("{{{labels}}}"), value);
                }
            }
            Of::Regions => {
                for (action, count) in [("move", connected.moved), ("stay", connected.staying)] {
                    let labels = format!("{{{labels},action=\"{action}\"}}");
                    self.sample(text, &labels, Value::Count(count));
                }
            }
            _ => {}
        }
    }

    /// Writes its values of a client. The client's number comes first: the ids of processes
    /// that the server does not see are all 0, and names may be anything. No two series may have
    /// the same labels, or Prometheus refuses the scrape.
    fn of_client(&self, text: &mut String, client: &Client) {
        let Client { client: number, pid, .. } = client;
        let program = of_program(&client.name, &client.unit);
        let of_client = format!("client=\"{number}\",pid=\"{pid}\",{program}");
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
                        "{{{of_client},region=\"{name}\",line=\"{line}\",place=\"{place}\"}}"
                    );
                    self.sample(text, &labels, value);
                }
            }
            _ => {}
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

/// The labels of a program in a unit.
fn of_program(program: &str, unit: &str) -> String {
    format!("program=\"{}\",unit=\"{}\"", escaped(program), escaped(unit))
}

/// A label's value with backslash, quote and newline escaped.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests;
