//! The configuration file: every parameter of the policy (paper 001 §6.2.3), and further settings
//! of the server. All keys are optional; `docs/dimmerd.md` describes them.

mod document;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_host::root::parse_cpu_list;
use dimmer_policy::moderation::{Limits, Share};
use dimmer_policy::server::performance::{Metric, Mixing};
use dimmer_policy::server::settings::{Prices, Unit};
use dimmer_policy::server::{canary, cores, loops, settings};
use dimmer_processor::text::toml_problem;
use dimmer_processor::units::{CpuId, Nanos};
use serde::{Deserialize, Serialize};

use self::document::{LoopName, LoopTables};
use crate::address::Address;

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] BoundedFileError),
    /// The content is wrong.
    #[error("{}: {what}", path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong, where, and what is accepted.
        what: String,
    },
}

/// A configuration file as written; also part of the start of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    policy: Policy,
    cores: Cores,
    loops: LoopTables,
    server: Server,
    metrics: Metrics,
    clocks: Clocks,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Policy {
    #[serde(rename = "loop")]
    decides: LoopName,
    unit: UnitName,
    metric: MetricName,
    mixing: MixingName,
    acting_pct: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum UnitName {
    Site,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MetricName {
    CallRate,
    RegionTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum MixingName {
    Fair,
    Sum,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Cores {
    #[serde(skip_serializing_if = "Option::is_none")]
    list: Option<String>,
    most: usize,
    period_ms: f64,
    saturated: f64,
    spare: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unused_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Server {
    period_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<PathBuf>,
    counters: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket_mode: Option<String>,
    clients_per_user: usize,
    sites_per_user: usize,
    sites: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    programs: usize,
    per_client: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        // With some ten series each, a small part of what one Prometheus server takes.
        Self { listen: None, programs: 500, per_client: false }
    }
}

/// What the server does about clocks that programs request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Clocks {
    moderate: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    most_boosted: Option<usize>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    users: BTreeMap<String, ClockShare>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClockShare {
    weight: f64,
    most_percent: u8,
    may_slow: bool,
}

impl Default for ClockShare {
    fn default() -> Self {
        let Share { weight, most_percent, may_slow } = Share::default();
        Self { weight, most_percent, may_slow }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            decides: LoopName::default(),
            unit: UnitName::Site,
            metric: MetricName::CallRate,
            mixing: MixingName::Fair,
            acting_pct: 100.0,
        }
    }
}

impl Default for Cores {
    fn default() -> Self {
        let usual = settings::Settings::usual(0).cores;
        Self {
            list: None,
            // Paper 001's prototype has one; more is the user's choice.
            most: 1,
            period_ms: ms(usual.period),
            saturated: usual.saturated,
            spare: usual.spare,
            // As the loop that decides is meant to.
            unused_ms: None,
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        // Short compared with the windows of the loops; reading 10 000 sites takes about a
        // millisecond.
        Self {
            period_ms: 50.0,
            model: None,
            counters: true,
            socket_group: None,
            socket_mode: None,
            clients_per_user: 4096,
            // Sixteen programs with as many sites as one may have.
            sites_per_user: 16_384,
            sites: 65_536,
        }
    }
}

impl Settings {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        /// A configuration with all keys has some 1.5 kB.
        const MOST: u64 = 1 << 20;
        let text = bounded_file::read_to_string(path, MOST)?;
        Self::parse(&text).map_err(|what| SettingsError::Wrong { path: path.to_owned(), what })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let settings: Self = toml::from_str(text).map_err(|error| toml_problem(text, &error))?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks that all numbers are in their ranges.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { cores, server, .. } = self;
        let ranges = [
            ("policy.acting_pct", self.policy.acting_pct, 0.0, 100.0),
            ("cores.period_ms", cores.period_ms, 1.0, loops::LONGEST_MS),
            ("cores.saturated", cores.saturated, 0.01, 1.0),
            ("cores.spare", cores.spare, 0.0, cores.saturated),
            ("cores.unused_ms", cores.unused_ms.unwrap_or(0.0), 0.0, loops::LONGEST_MS),
            ("server.period_ms", server.period_ms, 1.0, 10_000.0),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(format!("`{key}` is {value}, accepted are {least} to {most}"));
            }
        }
        if self.policy.decides.name() == loops::auto::DEFINITION.name
            && let Some(unused_ms) = cores.unused_ms.filter(|unused_ms| *unused_ms > 0.0)
        {
            let what = format!("`cores.unused_ms` is {unused_ms}");
            return Err(format!("{what}, accepted with `policy.loop = \"auto\"` is 0"));
        }
        self.listed_cores()?;
        self.mode()?;
        self.listen()?;
        self.limits()?;
        Ok(())
    }

    fn listed_cores(&self) -> Result<Option<Vec<CpuId>>, String> {
        let parse = |list: &String| {
            parse_cpu_list(list).filter(|cpus| !cpus.is_empty()).ok_or_else(|| {
                format!("`cores.list` is `{list}`, expected hardware threads as in \"2-3,8\"")
            })
        };
        self.cores.list.as_ref().map(parse).transpose()
    }

    fn mode(&self) -> Result<Option<u32>, String> {
        let parse = |text: &String| {
            let mode = u32::from_str_radix(text, 8).ok().filter(|_| text.len() <= 4);
            mode.filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600).ok_or_else(|| {
                format!(
                    "`server.socket_mode` is `{text}`, expected who may read and write in octal, as in \"0660\", the owner among them"
                )
            })
        };
        self.server.socket_mode.as_ref().map(parse).transpose()
    }

    /// The group of a socket that the server creates, by name or number, and its mode, as far as
    /// they are configured.
    #[must_use]
    pub fn socket_access(&self) -> (Option<&str>, Option<u32>) {
        (self.server.socket_group.as_deref(), self.mode().ok().flatten())
    }

    /// The address at which metrics are served, if any.
    ///
    /// # Errors
    /// If the value is not an address.
    pub fn listen(&self) -> Result<Option<Address>, String> {
        let parse = |text: &String| {
            Address::parse(text).ok_or_else(|| {
                format!(
                    "`metrics.listen` is `{text}`, expected an address as in \"127.0.0.1:9466\" or \"unix:/run/dimmerd/metrics\""
                )
            })
        };
        self.metrics.listen.as_ref().map(parse).transpose()
    }

    /// Whether the server moderates clocks.
    #[must_use]
    pub const fn moderates(&self) -> bool {
        self.clocks.moderate
    }

    /// Whether both say the same about clocks.
    #[must_use]
    pub fn has_clocks_of(&self, other: &Self) -> bool {
        self.clocks == other.clocks
    }

    /// What users may have of clocks.
    ///
    /// # Errors
    /// If a value is not accepted.
    pub fn limits(&self) -> Result<Limits, String> {
        let share = |(name, share): (&String, &ClockShare)| {
            let ClockShare { weight, most_percent, may_slow } = *share;
            let user: u32 = name.parse().map_err(|_| {
                format!("`clocks.users.{name}`: `{name}` is no user id, as in `clocks.users.1000`")
            })?;
            let key = format!("clocks.users.{name}");
            if !(0.001..=1000.0).contains(&weight) {
                return Err(format!("`{key}.weight` is {weight}, accepted are 0.001 to 1000"));
            }
            if most_percent > 100 {
                let what = format!("`{key}.most_percent` is {most_percent}");
                return Err(format!("{what}, accepted are 0 (no request is granted) to 100"));
            }
            Ok((user, Share { weight, most_percent, may_slow }))
        };
        let users = self.clocks.users.iter().map(share).collect::<Result<_, _>>()?;
        Ok(Limits { most_boosted: self.clocks.most_boosted, users })
    }

    /// Maximum number of programs, by name and unit, that have metrics of their own.
    #[must_use]
    pub const fn most_programs(&self) -> usize {
        self.metrics.programs
    }

    /// Whether there are metrics of each client and of its regions.
    #[must_use]
    pub const fn is_per_client(&self) -> bool {
        self.metrics.per_client
    }

    /// The hardware threads that may be dedicated, if the configuration names them.
    #[must_use]
    pub fn named_cores(&self) -> Option<Vec<CpuId>> {
        self.listed_cores().ok().flatten()
    }

    /// Maximum number of cores that may be dedicated.
    #[must_use]
    pub const fn most_cores(&self) -> usize {
        self.cores.most
    }

    /// Interval at which clients' sums are read.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_secs_f64(self.server.period_ms / 1000.0)
    }

    /// The processor model with the cost of calls, if the configuration names one.
    #[must_use]
    pub fn model(&self) -> Option<&Path> {
        self.server.model.as_deref()
    }

    /// Whether to count clients' cycles at license levels, or packed arithmetic, where possible.
    #[must_use]
    pub const fn counts(&self) -> bool {
        self.server.counters
    }

    /// Maximum number of sites of all programs together.
    #[must_use]
    pub const fn most_sites(&self) -> usize {
        self.server.sites
    }

    /// Maximum number of clients of one user, and of sites of all of them.
    #[must_use]
    pub const fn most_per_user(&self) -> (usize, usize) {
        (self.server.clients_per_user, self.server.sites_per_user)
    }

    /// Loop, unit, metric and mixing as words.
    #[must_use]
    pub fn words(&self) -> [&'static str; 4] {
        [
            self.policy.decides.name(),
            match self.policy.unit {
                UnitName::Site => "site",
                UnitName::Client => "client",
            },
            match self.policy.metric {
                MetricName::CallRate => "call-rate",
                MetricName::RegionTime => "region-time",
            },
            match self.policy.mixing {
                MixingName::Fair => "fair",
                MixingName::Sum => "sum",
            },
        ]
    }

    /// The share of programs whose calls may be moved (%); the others are only observed.
    #[must_use]
    pub const fn acting_pct(&self) -> f64 {
        self.policy.acting_pct
    }

    /// Whether calls of a program of this name may be moved; otherwise it is only observed.
    #[must_use]
    pub fn acts_on(&self, program: &str) -> bool {
        canary::acts_on(program, self.policy.acting_pct)
    }

    /// The policy's settings on a machine with `cores` cores, of which `most` may be dedicated,
    /// with these clocks of levels and these prices.
    #[must_use]
    pub fn policy(
        &self,
        cores: usize,
        most: usize,
        clocks: &[f64],
        prices: Option<Prices>,
    ) -> settings::Settings {
        let meant = (self.policy.decides.definition().settings)(cores, None).cores;
        settings::Settings {
            decides: self.loops.chosen(self.policy.decides),
            unit: match self.policy.unit {
                UnitName::Site => Unit::Site,
                UnitName::Client => Unit::Client,
            },
            metric: match self.policy.metric {
                MetricName::CallRate => Metric::CallRate,
                MetricName::RegionTime => Metric::RegionTime,
            },
            mixing: match self.policy.mixing {
                MixingName::Fair => Mixing::Fair,
                MixingName::Sum => Mixing::Sum,
            },
            cores: cores::Settings {
                cores,
                most,
                period: span(self.cores.period_ms),
                saturated: self.cores.saturated,
                spare: self.cores.spare,
                unused: self.cores.unused_ms.map_or(meant.unused, |ms| Some(span(ms))),
            },
            clocks: clocks.to_vec(),
            prices,
        }
    }
}

fn ms(span: Nanos) -> f64 {
    span.as_f64() / 1e6
}

fn span(ms: f64) -> Nanos {
    Nanos::rounded(ms * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, said: &str) {
        let error = Settings::parse(text).unwrap_err();
        assert!(error.contains(said), "{error}");
    }

    #[test]
    fn without_a_word_all_is_as_usual() {
        let settings = Settings::parse("").unwrap();
        assert_eq!(settings, Settings::default());
        let policy = settings.policy(8, 1, &[], None);
        let usual = settings::Settings::usual(8);
        assert_eq!((policy.decides, policy.unit), (usual.decides, usual.unit));
        assert_eq!(policy.cores, cores::Settings { most: 1, ..usual.cores });
        let paper = Settings::parse(
            "[policy]\nloop = \"thresholds\"\nunit = \"client\"\nmixing = \"sum\"\n",
        );
        assert_eq!(paper.unwrap().policy(8, 1, &[], None), settings::Settings::paper(8));
        for name in ["thresholds", "trials"] {
            let told = format!("[policy]\nloop = \"{name}\"\n[cores]\nunused_ms = 10000\n");
            let unused = Settings::parse(&told).unwrap().policy(8, 1, &[], None).cores.unused;
            assert_eq!(unused, Some(Nanos::from_ms(10_000)));
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_is_accepted() {
        refused("[policy]\n\nlop = 3\n", "line 3: unknown field `lop`, expected one of `loop`");
        refused("[policy]\nloop = \"bandit\"\n", "line 2: `loop`: unknown name `bandit`, expected");
        refused("[trials]\nwindow_ms = \"long\"\n", "line 2: `window_ms`: found string");
        refused("[trials]\nwindow_ms = 0\n", "`trials.window_ms` is 0, accepted are 1 to");
        refused("[trials]\ndiscount = nan\n", "`trials.discount` is NaN");
        let never = "`trials.discount` is 1, accepted are 0.5 to 0.9999";
        refused("[trials]\ndiscount = 1\n", never);
        let factor = "line 1: `thresholds.factor` is 1, accepted are 1.1 to 1000";
        refused("[thresholds]\nfactor = 1\n", factor);
        refused("[cores]\nlist = \"many\"\n", "as in \"2-3,8\"");
        refused("[cores]\nspare = 0.95\n", "`cores.spare` is 0.95, accepted are 0 to 0.9");
        refused(
            "[policy]\nloop = \"auto\"\n[cores]\nunused_ms = 10\n",
            "`cores.unused_ms` is 10, accepted with `policy.loop = \"auto\"` is 0",
        );
        refused("[auto]\nwindow_ms = 0\n", "`auto.window_ms` is 0, accepted are 1 to");
        refused("[metrics]\nlisten = \"here\"\n", "127.0.0.1:9466");
        refused("[clocks]\nmoderate = 1\n", "line 2: `moderate`: found integer");
        refused("[clocks]\nmost = 1\n", "line 2: unknown field `most`, expected one of `moderate`");
        refused("[clocks]\nmost_boosted = -1\n", "line 2: `most_boosted`: found integer");
        refused("[clocks.users.bob]\n", "`bob` is no user id, as in `clocks.users.1000`");
        refused("[clocks.users.4294967296]\n", "is no user id");
        let user = |key: &str| format!("[clocks.users.7]\n{key}\n");
        for weight in ["0", "-1", "1000.5", "nan", "inf"] {
            let said = "accepted are 0.001 to 1000";
            refused(&user(&format!("weight = {weight}")), said);
        }
        refused(&user("most_percent = 101"), "`clocks.users.7.most_percent` is 101, accepted");
        refused(
            &user("most_percent = 256"),
            "found integer `256`, expected an integer from 0 to 255",
        );
        refused(&user("may_slow = 1"), "found integer `1`");
        refused(&user("least = 1"), "line 2: unknown field `least`");
        refused(
            "[policy]\nacting_pct = 101\n",
            "`policy.acting_pct` is 101, accepted are 0 to 100",
        );
        for mode in ["0777", "660 ", "1666", "0066", "rw", "00660", ""] {
            let text = format!("[server]\nsocket_mode = \"{mode}\"\n");
            refused(&text, "expected who may read and write in octal");
        }
        let settings = "[server]\nsocket_mode = \"0660\"\nsocket_group = \"dimmer\"\n";
        let settings = Settings::parse(settings).unwrap();
        assert_eq!(settings.socket_access(), (Some("dimmer"), Some(0o660)));
        refused("[server\n", "line 1: ");
        assert!(Settings::read(Path::new("/no/such")).is_err());
    }

    #[test]
    fn users_have_the_shares_of_clocks_that_the_file_says() {
        let text = "[clocks]\nmost_boosted = 2\nusers.7 = { weight = 2, most_percent = 90 }\n\
                    [clocks.users.8]\n[clocks.users.9]\nmay_slow = true\n";
        let settings = Settings::parse(text).unwrap();
        let limits = settings.limits().unwrap();
        assert!(!settings.moderates() && limits.most_boosted == Some(2));
        let share = Share { weight: 2.0, most_percent: 90, may_slow: false };
        let slows = Share { may_slow: true, ..Share::default() };
        assert_eq!(
            limits.users.into_iter().collect::<Vec<_>>(),
            [(7, share), (8, Share::default()), (9, slows)]
        );
        assert!(!settings.has_clocks_of(&Settings::default()));
        assert!(settings.has_clocks_of(&Settings::parse(text).unwrap()));
    }

    #[test]
    fn the_file_that_is_installed_observes_only_and_else_says_what_holds_without_it() {
        let installed = Settings::parse(include_str!("../../daemon/package/dimmerd.toml")).unwrap();
        let policy = Policy { acting_pct: 0.0, ..Policy::default() };
        assert_eq!(installed, Settings { policy, ..Settings::default() });
        assert!(!installed.acts_on("nginx") && Settings::default().acts_on("nginx"));
        // The file has all keys.
        let all = serde_json::to_value(Settings {
            cores: Cores { list: Some(String::new()), unused_ms: Some(0.0), ..Cores::default() },
            server: Server {
                model: Some(PathBuf::new()),
                socket_group: Some(String::new()),
                socket_mode: Some(String::new()),
                ..Server::default()
            },
            metrics: Metrics { listen: Some(String::new()), ..Metrics::default() },
            clocks: Clocks { most_boosted: Some(1), ..Clocks::default() },
            ..Settings::default()
        });
        let text = include_str!("../../daemon/package/dimmerd.toml").replace("# ", "");
        let has = |begin: String| text.lines().any(|line| line.starts_with(&begin));
        for (table, keys) in all.unwrap().as_object().unwrap() {
            assert!(has(format!("[{table}]")), "{table}");
            for (key, _) in keys.as_object().unwrap() {
                assert!(has(format!("{key} = ")), "{table}.{key}");
            }
        }
    }
}
