//! `dimmer daemon replay`: replays a recording of the policy server with its policy or another one.

use std::io::{BufRead as _, Cursor, Read as _};
use std::path::Path;
use std::process::ExitCode;

use dimmer_daemon::record::{self, Begin, Line, Replayed};
use dimmer_daemon::settings::Settings;
use dimmer_report::Screen;
use dimmer_report::number::{counted, grouped, length, percent};
use dimmer_report::table::{Cell, Table};
use serde::Serialize;

use crate::{args, bad_input, input};
use crate::{exit, output};

/// The results; `docs/dimmerd.md` describes every key.
#[derive(Debug, Serialize)]
struct Document {
    schema: &'static str,
    span_s: f64,
    steps: usize,
    clients: usize,
    /// Whether the server's policy started with the recording.
    is_fresh: bool,
    /// Whether both policies have the same settings.
    is_same_settings: bool,
    different_steps: usize,
    recorded: Policy,
    replayed: Policy,
}

/// A policy, and its decisions.
#[derive(Debug, Serialize)]
struct Policy {
    #[serde(rename = "loop")]
    decides: &'static str,
    unit: &'static str,
    metric: &'static str,
    mixing: &'static str,
    changes: usize,
    moved_ratio: f64,
    mean_cores: f64,
}

pub(crate) fn run(arguments: &args::Replay) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let settings =
        arguments.config.as_deref().map(Settings::read).transpose().map_err(bad_input)?;
    let document = replay(&arguments.file, settings)?;
    output::show(json, &document, &document.text(output::screen()))?;
    Ok(if document.must_be_same() && document.different_steps > 0 {
        ExitCode::from(exit::NO)
    } else {
        ExitCode::SUCCESS
    })
}

fn replay(file: &Path, settings: Option<Settings>) -> anyhow::Result<Document> {
    let wrong = |what: String| bad_input(format!("{}: {what}", file.display()));
    let cannot = |error| bad_input(format!("cannot read {}: {error}", file.display()));
    let mut lines = input::lines(file).map_err(cannot)?;
    let mut first = String::new();
    lines.read_line(&mut first).map_err(cannot)?;
    let replayed = record::replay(Cursor::new(&first).chain(lines), settings.as_ref());
    let replayed = replayed.map_err(|error| wrong(format!("{:#}", anyhow::Error::from(error))))?;
    match serde_json::from_str(&first) {
        Ok(Line::Begin(begin)) => Ok(Document::new(&begin, settings.as_ref(), &replayed)),
        _ => Err(wrong("line 1: a recording begins with `begin`".to_owned())),
    }
}

impl Document {
    fn new(begin: &Begin, settings: Option<&Settings>, replayed: &Replayed) -> Self {
        let settings = settings.unwrap_or(&begin.settings);
        let policy = |settings: &Settings, which: usize| {
            let [decides, unit, metric, mixing] = settings.words();
            let (changes, moved_ratio) = (replayed.changes[which], replayed.moved[which]);
            let mean_cores = replayed.cores[which];
            Policy { decides, unit, metric, mixing, changes, moved_ratio, mean_cores }
        };
        Self {
            schema: "dimmer/replay/1",
            span_s: replayed.span_ns as f64 / 1e9,
            steps: replayed.steps,
            clients: replayed.clients,
            is_fresh: begin.is_fresh,
            is_same_settings: *settings == *begin.settings,
            different_steps: replayed.different,
            recorded: policy(&begin.settings, 0),
            replayed: policy(settings, 1),
        }
    }

    /// Whether any difference is a fault.
    const fn must_be_same(&self) -> bool {
        self.is_fresh && self.is_same_settings
    }

    fn text(&self, screen: Screen) -> String {
        let mut table = Table::new(["", "the server's policy", "replayed"]);
        let mut row = |what: &str, cells: [String; 2]| {
            table.row(std::iter::once(Cell::from(what)).chain(cells.map(Cell::right)));
        };
        let both = [&self.recorded, &self.replayed];
        let words = |of: &Policy| format!("{}, a {} at a time", of.decides, of.unit);
        row("decides by", both.map(words));
        row("performance is", both.map(|of| format!("{}, {}", of.metric, of.mixing)));
        row("decisions changed", both.map(|of| length(of.changes)));
        row("calls moved", both.map(|of| percent(of.moved_ratio)));
        row("cores, on average", both.map(|of| grouped(of.mean_cores, 2)));
        let head = format!(
            "{} s: {} of {}.\n\n",
            grouped(self.span_s, 1),
            counted(self.steps, "step"),
            counted(self.clients, "program"),
        );
        let meaning = screen.fill(&self.meaning());
        format!("{}{}\n{meaning}", screen.shown(&head), table.render(screen))
    }

    /// The meaning of the result, in words.
    fn meaning(&self) -> String {
        let differ = if self.different_steps == 0 {
            "Both said the same after every step.".to_owned()
        } else {
            let (different, steps) = (length(self.different_steps), length(self.steps));
            format!("After {different} of {steps} steps they said something else.")
        };
        let why = match (self.is_same_settings, self.is_fresh, self.different_steps) {
            (true, true, 0) => {
                "It is the same policy from its begin, so it decides as the server did."
            }
            (true, true, _) => {
                "It is the same policy from its begin, so this is a fault: of Dimmer, of another version of it, or of the file."
            }
            (true, false, _) => {
                "It is the same policy, but the server's knew what was before the recording, so they may differ."
            }
            (false, ..) => {
                "It is another policy. The programs did what they did under the server's decisions; what they would have done under \
                 others no recording knows, so this tells what the other policy would have said to that, not what it would have brought."
            }
        };
        format!("{differ} {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording of one step, after which the server moved the region of its only client.
    fn recording(is_fresh: bool) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = [
            &format!(
                r#"{{"begin":{{"schema":"dimmer/record/1","settings":{{"policy":{{"loop":"thresholds"}}}},"now_ns":0,"is_fresh":{is_fresh},"cores":[2,1],"clocks":[],"prices":null}}}}"#
            ),
            r#"{"join":{"client":1,"program":1,"name":"client"}}"#,
            r#"{"site":{"site":0,"name":"work"}}"#,
            r#"{"step":{"now_ns":50000000,"seen":[[1,0,{"span_ns":50000000,"calls":1000,"in_region_ns":20000000,"moved_calls":0,"moved_ns":0,"evidence":{"class":1}}]],"metrics":[],"changes":[[1,0,true]],"cores":1}}"#,
        ];
        std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
        file
    }

    #[test]
    fn the_same_policy_is_told_from_another() {
        let same = replay(recording(true).path(), None).unwrap();
        assert!(same.must_be_same());
        assert_eq!((same.steps, same.clients, same.recorded.changes), (1, 1, 1));
        assert_eq!((same.different_steps, same.replayed.changes), (0, 1));
        assert!(same.meaning().contains("decides as the server did"));
        let later = replay(recording(false).path(), None).unwrap();
        assert!(!later.must_be_same() && later.meaning().contains("before the recording"));
        let other = replay(recording(true).path(), Some(Settings::default())).unwrap();
        assert!(!other.must_be_same() && other.meaning().contains("no recording knows"));
        assert_eq!((other.recorded.decides, other.replayed.decides), ("thresholds", "trials"));
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}\n").unwrap();
        let said = replay(file.path(), None).unwrap_err().to_string();
        assert!(said.contains(": line 1: "), "{said}");
        assert!(replay(Path::new("/no/such"), None).unwrap_err().is::<crate::BadInput>());
    }
}
