//! The result of `dimmer daemon replay`: a recording of the policy daemon under its policy or
//! another one. `docs/dimmerd.md` describes the keys.

use dimmer_watch::record::{Begin, Replayed};
use dimmer_watch::settings::Settings;
use serde::Serialize;

use crate::number::{counted, grouped, length, percent};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/replay/1`.
#[derive(Debug, Serialize)]
pub struct Document {
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

impl Document {
    /// `settings`: those of the other policy; without, it has the recorded ones.
    pub fn new(begin: &Begin, settings: Option<&Settings>, replayed: &Replayed) -> Self {
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

    /// Whether there is a difference, and that is a fault.
    pub const fn is_wrong(&self) -> bool {
        self.must_be_same() && self.different_steps > 0
    }

    /// The comparison as text.
    pub fn text(&self, screen: Screen) -> String {
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
                "It is the same policy, but the server's policy had run before the recording began, so they may differ."
            }
            (false, ..) => {
                "It is another policy. The programs ran under the server's decisions, and no recording shows how they would have run under \
                 others: this compares the decisions, not their effect."
            }
        };
        format!("{differ} {why}")
    }
}

#[cfg(test)]
mod tests {
    use dimmer_watch::record;

    use super::*;

    /// The replay of a recording of one step, after which the server moved the region of its only
    /// client.
    fn replay(is_fresh: bool, settings: Option<Settings>) -> Document {
        let lines = [
            &format!(
                r#"{{"begin":{{"schema":"dimmer/record/1","settings":{{"policy":{{"loop":"thresholds"}}}},"now_ns":0,"is_fresh":{is_fresh},"cores":[2,1],"clocks":[],"prices":null}}}}"#
            ),
            r#"{"join":{"client":1,"program":1,"name":"client"}}"#,
            r#"{"site":{"site":0,"name":"work"}}"#,
            r#"{"step":{"now_ns":50000000,"seen":[[1,0,{"span_ns":50000000,"calls":1000,"in_region_ns":20000000,"moved_calls":0,"moved_ns":0,"evidence":{"class":1}}]],"metrics":[],"changes":[[1,0,true]],"cores":1}}"#,
        ];
        let recording = lines.join("\n") + "\n";
        let (begin, replayed) = record::replay(recording.as_bytes(), settings.as_ref()).unwrap();
        Document::new(&begin, settings.as_ref(), &replayed)
    }

    #[test]
    fn the_same_policy_is_told_from_another() {
        let same = replay(true, None);
        assert!(same.must_be_same());
        assert_eq!((same.steps, same.clients, same.recorded.changes), (1, 1, 1));
        assert_eq!((same.different_steps, same.replayed.changes), (0, 1));
        assert!(same.meaning().contains("decides as the server did"));
        let later = replay(false, None);
        assert!(!later.must_be_same() && later.meaning().contains("before the recording began"));
        let other = replay(true, Some(Settings::default()));
        assert!(!other.must_be_same() && other.meaning().contains("compares the decisions"));
        assert_eq!((other.recorded.decides, other.replayed.decides), ("thresholds", "trials"));
    }
}
