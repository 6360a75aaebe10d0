//! Recordings: the policy's inputs and decisions as lines of JSON, and their replay under the same
//! policy or another. `docs/dimmerd.md` describes the keys.
//!
//! A recording starts with the settings and the clients present, so that another policy instance
//! can be fed with what follows. That instance starts from nothing: it decides as the server's did
//! if the server's started with the recording.

mod check;

use std::io::{self, BufRead};

use dimmer_policy::cost::{BetweenLong, CallCost};
use dimmer_policy::server::decision::Action;
use dimmer_policy::server::evidence::{Evidence, LEVELS};
use dimmer_policy::server::{ClientId, ProgramId, Server, SiteId, UserId, Window, settings};
use dimmer_processor::text::json_problem;
use dimmer_processor::units::{LicenseLevel, Time};
use serde::{Deserialize, Serialize};

use self::check::Introduced;

use crate::settings::Settings;

/// The schema, in the first line.
pub const SCHEMA: &str = "dimmer/record/1";

/// A line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// The first line.
    Begin(Begin),
    /// A client has connected.
    Join {
        /// Number of the client.
        client: u64,
        /// Number of its program.
        program: u64,
        /// Id of its user.
        #[serde(default)]
        user: u32,
        /// Its name.
        name: String,
        /// Whether it asks for cores.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asks: bool,
    },
    /// A client has left.
    Leave {
        /// Number of the client.
        client: u64,
    },
    /// What the policy has learnt about a site that no client has, or about a whole program, is
    /// forgotten.
    Forget {
        /// Number of the program.
        program: u64,
        /// Number of the site; `None`: the whole program.
        site: Option<u64>,
    },
    /// A site was seen for the first time.
    Site {
        /// Number of the site.
        site: u64,
        /// Its name.
        name: String,
    },
    /// What clients did, and what the policy decided then.
    Step(Step),
}

impl Line {
    /// Whether a written line is a [`Line::Step`]. Reads only the start of the line.
    #[must_use]
    pub fn is_step(written: &str) -> bool {
        written.starts_with("{\"step\":")
    }
}

/// The start of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// [`SCHEMA`].
    pub schema: String,
    /// The settings in force.
    pub settings: Box<Settings>,
    /// When it starts (ns since the server did).
    pub now_ns: u64,
    /// Whether the server's policy starts here, too.
    pub is_fresh: bool,
    /// The number of cores, and the number that may be dedicated.
    pub cores: (usize, usize),
    /// The clock of L1, L2, ... relative to that of L0.
    pub clocks: Vec<f64>,
    /// The cost of calls, if known.
    pub prices: Option<Prices>,
}

/// [`settings::Prices`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    hand_over_ns: f64,
    calls: Vec<Price>,
}

/// A [`CallCost`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Price {
    slower_ratio: f64,
    kept_below_ns: f64,
    episode_ns: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    between_long: Vec<PriceBetweenLong>,
}

/// A [`BetweenLong`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceBetweenLong {
    call_ns: f64,
    gap_ns: f64,
    slower_ratio: f64,
}

impl From<&settings::Prices> for Prices {
    fn from(prices: &settings::Prices) -> Self {
        let price = |cost: &CallCost| {
            let CallCost { slower, kept_below_ns, episode_ns, between_long } = cost;
            let between_long = between_long.iter().map(|long| {
                let BetweenLong { call_ns, gap_ns, slower } = *long;
                PriceBetweenLong { call_ns, gap_ns, slower_ratio: slower }
            });
            Price {
                slower_ratio: *slower,
                kept_below_ns: *kept_below_ns,
                episode_ns: *episode_ns,
                between_long: between_long.collect(),
            }
        };
        Self { hand_over_ns: prices.hand_over_ns, calls: prices.calls.iter().map(price).collect() }
    }
}

impl From<&Prices> for settings::Prices {
    fn from(prices: &Prices) -> Self {
        let cost = |price: &Price| {
            let Price { slower_ratio, kept_below_ns, episode_ns, between_long } = price;
            let between_long = between_long.iter().map(|long| {
                let PriceBetweenLong { call_ns, gap_ns, slower_ratio } = *long;
                BetweenLong { call_ns, gap_ns, slower: slower_ratio }
            });
            CallCost {
                slower: *slower_ratio,
                kept_below_ns: *kept_below_ns,
                episode_ns: *episode_ns,
                between_long: between_long.collect(),
            }
        };
        Self { hand_over_ns: prices.hand_over_ns, calls: prices.calls.iter().map(cost).collect() }
    }
}

/// A look at all clients, and the decision after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Time of the look (ns since the server started).
    pub now_ns: u64,
    /// Client, site, and what was seen of it.
    pub seen: Vec<(u64, u64, Seen)>,
    /// Client, and its reported work per second.
    pub metrics: Vec<(u64, f64)>,
    /// Client that asks for cores, and how long its threads were on wide ones (ns).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wide: Vec<(u64, u64)>,
    /// The server's changes: client, site (`None`: all), whether it is moved.
    pub changes: Vec<(u64, Option<u64>, bool)>,
    /// The number of cores that the server has dedicated.
    pub cores: usize,
    /// Idle time of the last period, in hardware threads, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<f64>,
}

/// A [`Window`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    span_ns: u64,
    calls: u64,
    in_region_ns: u64,
    moved_calls: u64,
    moved_ns: u64,
    evidence: SeenEvidence,
}

/// An [`Evidence`], of the kinds that the server has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SeenEvidence {
    LicenseCycles { all: u64, at: [u64; LEVELS] },
    Clock(f64),
    Class(u32),
    None,
}

impl From<&Window> for Seen {
    fn from(window: &Window) -> Self {
        let Window { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence } = *window;
        let evidence = match evidence {
            Evidence::LicenseCycles { all, at } => SeenEvidence::LicenseCycles { all, at },
            Evidence::Clock(ratio) => SeenEvidence::Clock(ratio),
            Evidence::Class(level) => SeenEvidence::Class(level.index()),
            _ => SeenEvidence::None,
        };
        Self { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence }
    }
}

impl From<&Seen> for Window {
    fn from(seen: &Seen) -> Self {
        let Seen { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence } = *seen;
        let evidence = match evidence {
            SeenEvidence::LicenseCycles { all, at } => Evidence::LicenseCycles { all, at },
            SeenEvidence::Clock(ratio) => Evidence::Clock(ratio),
            SeenEvidence::Class(level) => Evidence::Class(LicenseLevel::new(level)),
            SeenEvidence::None => Evidence::None,
        };
        Self { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence }
    }
}

/// The extent of a recording while it is being written.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Number of looks at clients.
    pub steps: usize,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether the policy started with this recording; `None` before the first line.
    pub is_fresh: Option<bool>,
}

impl Recorded {
    /// Counts lines that are added: whole lines.
    ///
    /// # Errors
    /// The first one is none of a recording.
    pub fn add(&mut self, text: &str) -> serde_json::Result<()> {
        if self.is_fresh.is_none() {
            let first: Line = serde_json::from_str(text.lines().next().unwrap_or_default())?;
            self.is_fresh = Some(matches!(first, Line::Begin(begin) if begin.is_fresh));
        }
        self.steps += text.lines().filter(|line| Line::is_step(line)).count();
        self.bytes += text.len() as u64;
        Ok(())
    }
}

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A line cannot be read.
    #[error("cannot read line {line}")]
    Read {
        /// Number of the line, from 1.
        line: usize,
        /// The error of the read.
        source: io::Error,
    },
    /// A line has another form than those of recordings; the text begins with its number.
    #[error("{0}")]
    Form(String),
    /// A line cannot follow those before it.
    #[error("line {line}: {what}")]
    Wrong {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with the line.
        what: String,
    },
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Length of the recording (ns).
    pub span_ns: u64,
    /// Number of looks at clients.
    pub steps: usize,
    /// Number of clients that were ever present.
    pub clients: usize,
    /// Whether the server's policy started with the recording, and the replay had the same
    /// settings: then both must decide the same.
    pub is_same_policy: bool,
    /// Number of looks after which the two differed, in changes or in cores.
    pub different: usize,
    /// Changed decisions, by the server and by this policy.
    pub changes: [usize; 2],
    /// The share of all calls that came while their decision was to move, by the server and by this
    /// policy.
    pub moved: [f64; 2],
    /// The mean number of dedicated cores, by the server and by this policy.
    pub cores: [f64; 2],
}

/// Which calls are moved: by site, and by client as a whole.
type Moved = std::collections::BTreeMap<(u64, Option<u64>), bool>;

/// Replays a recording under the policy that it was made under, or under that of other settings.
/// Returns its start as well.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    mut lines: impl BufRead,
    other: Option<&Settings>,
) -> Result<(Begin, Replayed), ReplayError> {
    let mut replayed = Replayed::default();
    let mut policy: Option<(Server, Begin, Introduced)> = None;
    let mut settings = Settings::default();
    let mut begun = 0;
    let (mut calls, mut moved_calls, mut cores) = (0.0, [0.0; 2], [0; 2]);
    let mut moved = [Moved::new(), Moved::new()];
    for line_number in 1.. {
        let wrong = |what: String| ReplayError::Wrong { line: line_number, what };
        let line = next_line(&mut lines)
            .map_err(|source| ReplayError::Read { line: line_number, source })?;
        let Some(line) = line else { break };
        let line: Line = serde_json::from_str(line.trim_end())
            .map_err(|error| ReplayError::Form(json_problem(&error, line_number - 1)))?;
        let Some((policy, _, introduced)) = &mut policy else {
            let Line::Begin(begin) = line else {
                return Err(wrong("a recording begins with `begin`".to_owned()));
            };
            let introduced = Introduced::new(&begin).map_err(wrong)?;
            settings = other.cloned().unwrap_or_else(|| (*begin.settings).clone());
            replayed.is_same_policy = begin.is_fresh && settings == *begin.settings;
            begun = begin.now_ns;
            let server = Server::new(begin.policy(&settings), Time::from_ns(begin.now_ns));
            policy = Some((server, begin, introduced));
            continue;
        };
        introduced.add(&line).map_err(wrong)?;
        match line {
            Line::Begin(_) | Line::Site { .. } => {}
            Line::Join { client, program, user, asks, name } => {
                replayed.clients += 1;
                policy.join_of(UserId(user), ClientId(client), ProgramId(program));
                if asks {
                    policy.ask(ClientId(client));
                }
                if !settings.acts_on(&name) {
                    policy.hold(ClientId(client));
                }
            }
            Line::Leave { client } => {
                policy.leave(ClientId(client));
                moved.iter_mut().for_each(|moved| moved.retain(|(of, _), _| *of != client));
            }
            Line::Forget { program, site } => policy.forget(ProgramId(program), site.map(SiteId)),
            Line::Step(step) => {
                for (client, site, seen) in &step.seen {
                    calls += seen.calls as f64;
                    for (moved, moved_calls) in moved.iter().zip(&mut moved_calls) {
                        let is_moved = [Some(*site), None]
                            .iter()
                            .any(|site| moved.get(&(*client, *site)).is_some_and(|moved| *moved));
                        *moved_calls += if is_moved { seen.calls as f64 } else { 0.0 };
                    }
                    policy.observe(ClientId(*client), SiteId(*site), &Window::from(seen));
                }
                for (client, metric) in &step.metrics {
                    policy.metric(ClientId(*client), *metric);
                }
                for (client, ns) in &step.wide {
                    policy.was_wide(ClientId(*client), *ns);
                }
                policy.idle(step.idle);
                let said = policy.step(Time::from_ns(step.now_ns));
                let changes = changes(&said.changes);
                replayed.steps += 1;
                replayed.span_ns = step.now_ns - begun;
                replayed.different +=
                    usize::from(changes != step.changes || said.cores != step.cores);
                for (which, (changes, now)) in
                    [(&step.changes, step.cores), (&changes, said.cores)].into_iter().enumerate()
                {
                    replayed.changes[which] += changes.len();
                    cores[which] += now;
                    let changed =
                        changes.iter().map(|(client, site, moved)| ((*client, *site), *moved));
                    moved[which].extend(changed);
                }
            }
        }
    }
    let Some((_, begin, _)) = policy else {
        return Err(ReplayError::Wrong { line: 1, what: "it is empty".to_owned() });
    };
    let steps = replayed.steps.max(1) as f64;
    replayed.cores = cores.map(|cores| cores as f64 / steps);
    replayed.moved = moved_calls.map(|moved| if calls > 0.0 { moved / calls } else { 0.0 });
    Ok((begin, replayed))
}

/// The next line; `None` after the last one.
fn next_line(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    /// Maximum length of a line in bytes. A step of all sites that a server may have, all of them
    /// active, has some 13 MB.
    const MOST: u64 = 1 << 26;
    let mut line = String::new();
    if io::Read::take(lines, MOST).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    if line.len() as u64 >= MOST && !line.ends_with('\n') {
        let what = format!("it is longer than {MOST} bytes, the most accepted");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Some(line))
}

/// Changes in the form of a recording.
#[must_use]
pub fn changes(
    changes: &[dimmer_policy::server::decision::Change],
) -> Vec<(u64, Option<u64>, bool)> {
    let write = |change: &dimmer_policy::server::decision::Change| {
        let site = change.site.map(|site| site.0);
        (change.client.0, site, change.action == Action::Move)
    };
    changes.iter().map(write).collect()
}

impl Begin {
    fn policy(&self, settings: &Settings) -> settings::Settings {
        let (cores, most) = self.cores;
        let prices = self.prices.as_ref().map(settings::Prices::from);
        settings.policy(cores, most, &self.clocks, prices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_from_other_lines_as_they_are_written() {
        let is_step = |line: Line| Line::is_step(&serde_json::to_string(&line).unwrap());
        assert!(is_step(Line::Step(Step::default())));
        assert!(!is_step(Line::Site { site: 1, name: "step".to_owned() }));
    }

    #[test]
    fn steps_and_the_start_are_counted_while_they_are_written() {
        let begin = |is_fresh: bool| {
            format!(
                r#"{{"begin":{{"schema":"dimmer/record/1","settings":{{}},"now_ns":0,"is_fresh":{is_fresh},"cores":[2,1],"clocks":[],"prices":null}}}}"#
            )
        };
        let step = r#"{"step":{"now_ns":1,"seen":[],"metrics":[],"changes":[],"cores":0}}"#;
        for is_fresh in [true, false] {
            let mut recorded = Recorded::default();
            recorded.add(&(begin(is_fresh) + "\n")).unwrap();
            recorded.add(&format!("{step}\n{step}\n")).unwrap();
            assert_eq!((recorded.steps, recorded.is_fresh), (2, Some(is_fresh)));
        }
        assert!(Recorded::default().add("nonsense\n").is_err());
    }

    #[test]
    fn windows_are_the_same_when_they_are_read_back() {
        let cycles = Evidence::LicenseCycles { all: 10, at: [3, 2, 0, 0] };
        let class = Evidence::Class(LicenseLevel::new(2));
        for evidence in [cycles, Evidence::Clock(0.9), class, Evidence::None] {
            let window = Window { span_ns: 1, calls: 2, evidence, ..Window::default() };
            let text = serde_json::to_string(&Seen::from(&window)).unwrap();
            let seen: Seen = serde_json::from_str(&text).unwrap();
            assert_eq!(Window::from(&seen), window, "{text}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_read_up_to_a_limit() {
        let endless = std::io::BufReader::new(std::io::repeat(b'x'));
        let ReplayError::Read { line: 1, source } = replay(endless, None).unwrap_err() else {
            panic!()
        };
        assert_eq!(source.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_is_no_recording_is_named_with_its_line() {
        let refused = |text: &str| replay(text.as_bytes(), None).unwrap_err().to_string();
        assert_eq!(refused(""), "line 1: it is empty");
        assert_eq!(refused("{}\n"), "line 1, column 2: expected a value");
        assert!(refused("{\"leave\":{\"client\":3}}\n").contains("begins with `begin`"));
    }
}
