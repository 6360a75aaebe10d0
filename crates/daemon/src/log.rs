//! The log: bounded, and never blocking.
//!
//! A separate thread writes the lines, so a log that is not read blocks no other thread. Lines for
//! which there is no room are counted. Each kind of line is limited to a burst and then to a low
//! rate, so that the actions of others, such as connecting, fill no disk. Once a minute, the log
//! reports how many lines were left out.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// Maximum number of lines that wait to be written, of some hundred bytes each.
const WAITING: usize = 4096;

/// Interval of the reports about lines left out.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// How long the program waits for the log when it ends.
const PATIENCE: Duration = Duration::from_millis(500);

/// The target of the lines that report what was left out.
const OWN: &str = "dimmer-log";

/// The limit for lines of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Allowance {
    /// Lines at once.
    burst: f64,
    /// Lines per second after that.
    rate: f64,
}

impl Allowance {
    /// The burst suits a machine's worth of starting programs, the rate some MB a day of all kinds.
    /// Guesses.
    const USUAL: Self = Self { burst: 200.0, rate: 0.1 };
    /// For each decision, which the user has asked to see.
    const VERBOSE: Self = Self { burst: 10_000.0, rate: 100.0 };
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Handle of a log: on drop, it waits a moment for lines that are not written yet.
#[derive(Debug)]
pub struct Log {
    lines: SyncSender<Message>,
}

/// Starts a log that is written to `to`, for the whole program.
///
/// # Errors
/// If the system cannot start a thread.
pub fn begin(format: Format, is_verbose: bool, to: impl Write + Send + 'static) -> io::Result<Log> {
    let (log, subscriber) = subscriber(format, is_verbose, to)?;
    // A subscriber that was set before stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(log)
}

fn subscriber(
    format: Format,
    is_verbose: bool,
    to: impl Write + Send + 'static,
) -> io::Result<(Log, Box<dyn Subscriber + Send + Sync>)> {
    let (lines, written) = sync_channel(WAITING);
    let (limits, lost) = (Limits::new(is_verbose), Arc::new(AtomicU64::new(0)));
    let writer = Lines { lines: lines.clone(), lost: Arc::clone(&lost) };
    // A log that cannot be written, as on a full disk, does not end the program. Reporting that
    // would fail as well, and panic.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let layer = layer.with_writer(writer);
    let registry = tracing_subscriber::registry();
    let subscriber: Box<dyn Subscriber + Send + Sync> = match format {
        Format::Text => Box::new(registry.with(layer.with_ansi(false).with_filter(limits.clone()))),
        Format::Json => Box::new(registry.with(layer.json().with_filter(limits.clone()))),
    };
    let write = move || write_all(&written, to, &limits, &lost);
    std::thread::Builder::new().name("log".to_owned()).spawn(write)?;
    Ok((Log { lines }, subscriber))
}

impl Drop for Log {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        let (written, is_written) = channel();
        let mut message = Message::End(written);
        // There may be no room for the end message either.
        while let Err(error) = self.lines.try_send(message) {
            let std::sync::mpsc::TrySendError::Full(full) = error else { return };
            message = full;
            if Instant::now() >= end {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = is_written.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

/// A message to the writing thread.
#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Requests an answer when everything before it is written.
    End(Sender<()>),
}

/// Passes lines to the writing thread.
#[derive(Clone, Debug)]
struct Lines {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for Lines {
    /// Each call writes one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Message::Line(line.to_vec())).is_err() {
            // Relaxed: a count that is reported sooner or later.
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(lines: &Receiver<Message>, mut to: impl Write, limits: &Limits, lost: &AtomicU64) {
    let mut told = Instant::now();
    loop {
        let left = (told + TOLD_EVERY).saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(Message::Line(line)) => drop(to.write_all(&line)),
            Ok(Message::End(written)) => {
                let _ = to.flush();
                let _ = written.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            // Relaxed: only a count that is reported, see `Lines::write`.
            tell_left_out(limits.take_left_out(), lost.swap(0, Ordering::Relaxed));
        }
    }
}

/// Logs what was left out.
fn tell_left_out(kinds: Vec<(String, u64)>, lost: u64) {
    for (kind, lines) in kinds {
        warn!(target: OWN, kind, lines, "left out, as there are too many of this kind");
    }
    if lost > 0 {
        warn!(target: OWN, lines = lost, "left out, as the log was not read");
    }
}

/// Line counts of each kind: a kind is a place in the code that logs.
#[derive(Clone, Debug)]
struct Limits {
    level: Level,
    kinds: Arc<Mutex<HashMap<Identifier, Kind>>>,
}

#[derive(Debug)]
struct Kind {
    /// Lines that may be logged now.
    left: f64,
    at: Instant,
    left_out: u64,
    /// The message of the first line that was left out.
    message: String,
}

impl Kind {
    /// Whether one more line may be logged.
    fn takes(&mut self, now: Instant, allowance: Allowance) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * allowance.rate).min(allowance.burst);
        self.at = now;
        let takes = self.left >= 1.0;
        self.left -= if takes { 1.0 } else { 0.0 };
        takes
    }
}

impl Limits {
    fn new(is_verbose: bool) -> Self {
        let level = if is_verbose { Level::DEBUG } else { Level::INFO };
        Self { level, kinds: Arc::default() }
    }

    /// Whether a line may be logged; if not, it is counted.
    fn take(&self, event: &Event<'_>, now: Instant) -> bool {
        let metadata = event.metadata();
        if metadata.target() == OWN {
            return true;
        }
        let is_verbose = *metadata.level() > Level::INFO;
        let allowance = if is_verbose { Allowance::VERBOSE } else { Allowance::USUAL };
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Kind { left: allowance.burst, at: now, left_out: 0, message: String::new() };
        let kind = kinds.entry(metadata.callsite()).or_insert_with(new);
        let takes = kind.takes(now, allowance);
        if !takes {
            if kind.left_out == 0 {
                kind.message.clear();
                event.record(&mut Said(&mut kind.message));
            }
            kind.left_out += 1;
        }
        takes
    }

    /// What was left out since the last call, by the message of the first line of each kind.
    fn take_left_out(&self) -> Vec<(String, u64)> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out: Vec<_> = kinds
            .values_mut()
            .filter(|kind| kind.left_out > 0)
            .map(|kind| (kind.message.clone(), std::mem::take(&mut kind.left_out)))
            .collect();
        left_out.sort();
        left_out
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Filter<S> for Limits {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        *metadata.level() <= self.level
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.take(event, Instant::now())
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(self.level.into())
    }
}

/// Receives an event's message.
struct Said<'a>(&'a mut String);

impl Visit for Said<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            *self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::info;

    use super::*;

    /// The destination of the log in a test: writes block while this is locked.
    #[derive(Clone, Debug, Default)]
    struct Slow(Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_is_not_waited_for() {
        let to = Slow::default();
        let (log, subscriber) = subscriber(Format::Json, true, to.clone()).unwrap();
        let held = to.0.lock().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            // More than may wait, and fewer than the limit allows.
            (0..2 * WAITING).for_each(|number| tracing::debug!(number, "decision"));
            drop(held);
            drop(log);
        });
        let text = String::from_utf8(to.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().count();
        assert!((WAITING..2 * WAITING).contains(&lines), "{lines}");
        assert!(text.lines().all(|line| line.starts_with('{')));
    }

    #[test]
    fn too_many_lines_of_a_kind_are_counted_and_others_come() {
        let to = Slow::default();
        let (log, subscriber) = subscriber(Format::Text, false, to.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            (0..1000).for_each(|_| info!("client"));
            info!("another");
            tracing::debug!("not asked for");
            tell_left_out(vec![("client".to_owned(), 800)], 3);
            drop(log);
        });
        let text = String::from_utf8(to.0.lock().unwrap().clone()).unwrap();
        let clients = text.lines().filter(|line| line.ends_with(" client")).count();
        // On a slow machine, the limit may allow some more.
        assert!((200..400).contains(&clients), "{clients}");
        assert!(text.contains("another") && !text.contains("not asked for"));
        assert!(text.contains("too many of this kind kind=\"client\" lines=800"), "{text}");
        assert!(text.contains("as the log was not read lines=3"), "{text}");
    }

    #[test]
    fn lines_of_a_kind_come_again_with_time() {
        let now = Instant::now();
        let mut kind = Kind { left: 2.0, at: now, left_out: 0, message: String::new() };
        let mut takes = |seconds| kind.takes(now + Duration::from_secs(seconds), Allowance::USUAL);
        assert_eq!([takes(0), takes(0), takes(0)], [true, true, false]);
        assert_eq!([takes(5), takes(10), takes(10)], [false, true, false]);
        let later = 86_400;
        assert_eq!((0..300).filter(|_| takes(later)).count(), 200);
    }

    #[test]
    fn what_was_left_out_is_told_by_its_message_once() {
        let limits = Limits::new(false);
        let counting = tracing_subscriber::fmt::layer().with_writer(io::sink);
        let counting = tracing_subscriber::registry().with(counting.with_filter(limits.clone()));
        tracing::subscriber::with_default(counting, || {
            (0..1000).for_each(|number| info!("client {number}"));
        });
        let left_out = limits.take_left_out();
        assert_eq!(left_out.len(), 1);
        assert!(left_out[0].0.starts_with("client ") && left_out[0].1 > 500, "{left_out:?}");
        assert_eq!(limits.take_left_out(), []);
    }
}
