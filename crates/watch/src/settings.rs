//! The configuration file: every parameter of the policy (paper 001 §6.2.3), and further settings
//! of the server. All keys are optional; `docs/dimmerd.md` describes them.

mod document;

use std::path::{Path, PathBuf};
use std::time::Duration;

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_host::root::parse_cpu_list;
use dimmer_policy::server::performance::{Metric, Mixing};
use dimmer_policy::server::settings::{Prices, Unit};
use dimmer_policy::server::{cores, loops, settings};
use dimmer_processor::text::line_of;
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
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Policy {
    #[serde(rename = "loop")]
    decides: LoopName,
    unit: UnitName,
    metric: MetricName,
    mixing: MixingName,
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
    unused_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Server {
    period_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<PathBuf>,
    counters: bool,
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

impl Default for Policy {
    fn default() -> Self {
        Self {
            decides: LoopName::default(),
            unit: UnitName::Site,
            metric: MetricName::CallRate,
            mixing: MixingName::Fair,
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
            unused_ms: ms(usual.unused),
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
        let settings: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| line_of(text, span.start));
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            format!("{place}{}", error.message().replace('\n', " "))
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks that all numbers are in their ranges.
    fn check(&self) -> Result<(), String> {
        let Self { cores, server, .. } = self;
        let ranges = [
            ("cores.period_ms", cores.period_ms, 1.0, loops::LONGEST_MS),
            ("cores.saturated", cores.saturated, 0.01, 1.0),
            ("cores.spare", cores.spare, 0.0, cores.saturated),
            ("cores.unused_ms", cores.unused_ms, 0.0, loops::LONGEST_MS),
            ("server.period_ms", server.period_ms, 1.0, 10_000.0),
        ];
        for (key, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return Err(format!("`{key}` is {value}, accepted are {least} to {most}"));
            }
        }
        self.listed_cores()?;
        self.listen()?;
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
                unused: span(self.cores.unused_ms),
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
            "[policy]\nloop = \"thresholds\"\nunit = \"client\"\nmixing = \"sum\"\n[cores]\nunused_ms = 10000\n",
        );
        assert_eq!(paper.unwrap().policy(8, 1, &[], None), settings::Settings::paper(8));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_is_accepted() {
        refused("[policy]\n\nlop = 3\n", "line 3: unknown field `lop`, expected one of `loop`");
        refused("[policy]\nloop = \"bandit\"\n", "line 2: unknown variant `bandit`, expected");
        refused("[trials]\nwindow_ms = \"long\"\n", "line 2: invalid type");
        refused("[trials]\nwindow_ms = 0\n", "`trials.window_ms` is 0, accepted are 1 to");
        refused("[trials]\ndiscount = nan\n", "`trials.discount` is NaN");
        refused("[cores]\nlist = \"many\"\n", "as in \"2-3,8\"");
        refused("[cores]\nspare = 0.95\n", "`cores.spare` is 0.95, accepted are 0 to 0.9");
        refused("[metrics]\nlisten = \"here\"\n", "127.0.0.1:9466");
        refused("[server\n", "line 1: ");
        assert!(Settings::read(Path::new("/no/such")).is_err());
    }

    #[test]
    fn the_file_that_is_installed_says_what_holds_without_it() {
        let installed = Settings::parse(include_str!("../../daemon/package/dimmerd.toml")).unwrap();
        assert_eq!(installed, Settings::default());
        // The file has all keys.
        let all = serde_json::to_value(Settings {
            cores: Cores { list: Some(String::new()), ..Cores::default() },
            server: Server { model: Some(PathBuf::new()), ..Server::default() },
            metrics: Metrics { listen: Some(String::new()), ..Metrics::default() },
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
