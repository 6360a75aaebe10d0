//! The settings in the environment: where regions run.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dimmer_host::off;
use dimmer_host::root::parse_cpu_list;
use dimmer_processor::text::line_of;
use dimmer_processor::units::{CpuId, whole};
use dimmer_protocol::ticks_per_ns;
use toml::de::{DeTable, DeValue};

/// The environment variable with the policy for regions: a [`Decision`] for all of them,
/// `file:PATH`, or `server`. With `server`, and without the variable, a server decides, if there is
/// one.
pub const POLICY: &str = "DIMMER_POLICY";

/// The environment variable that lists the dedicated cores, as in `2-3,8`.
pub const CORES: &str = "DIMMER_CORES";

/// The environment variable with the file through which threads enter the cores of [`CORES`], if a
/// cpuset keeps other threads off these: the file of [`dimmer_host::cpusets::Dedicated::entrance`].
pub const ENTRANCE: &str = "DIMMER_ENTRANCE";

/// Limit of `minimum_stay_us`: a thread that lingers keeps other threads off a core.
const LONGEST_STAY_US: u32 = 1_000_000;

/// Where a region runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// Where the thread is.
    #[default]
    Stay,
    /// On a dedicated core: a closure on the worker's own stack, other regions as with
    /// [`Self::Migrate`].
    Delegate,
    /// On a dedicated core, with the thread's own stack and thread-local storage.
    Migrate,
}

impl Decision {
    /// All decisions, by name.
    const NAMES: [(&str, Self); 3] =
        [("stay", Self::Stay), ("delegate", Self::Delegate), ("migrate", Self::Migrate)];

    fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, decision)| *decision)
    }
}

/// Why settings cannot be followed. The program then runs without moving anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The policy does not exist.
    #[error("{POLICY}: `{0}` is none of `server`, `stay`, `delegate`, `migrate`, `file:PATH`")]
    Policy(String),
    /// The value is not a list of CPUs.
    #[error("{CORES}: `{0}` is no list of hardware threads as in `2-3,8`")]
    Cores(String),
    /// The policy moves work, but no core is named to move it to.
    #[error("{POLICY} moves work, but {CORES} names no core to move it to, as in `{CORES}=3`")]
    NoCores,
    /// The policy's file cannot be read.
    #[error("{POLICY}: cannot read {}", path.display())]
    Read {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The policy's file has an error.
    #[error("{}:{line}: {what}", path.display())]
    File {
        /// The file's path.
        path: PathBuf,
        /// Line of the error, from 1.
        line: usize,
        /// Description of the error, and of the accepted values.
        what: String,
    },
}

/// Where regions run, and which cores are dedicated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The decision for sites without a rule; `None`: a server decides.
    default: Option<Decision>,
    /// By the site's name.
    sites: BTreeMap<String, Rule>,
    cores: Vec<CpuId>,
    /// The file through which threads enter the cores, if affinity alone is not enough.
    entrance: Option<String>,
    /// Minimum time that a moved thread stays away, if its regions follow each other (us).
    minimum_stay_us: u32,
    /// The policy's file, if it has one.
    file: Option<PathBuf>,
}

/// The rule for a site in a policy's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    decision: Decision,
    /// Line of the rule, from 1.
    line: usize,
}

impl Settings {
    /// Reads [`POLICY`], [`CORES`] and [`ENTRANCE`]. Without the first two, a server decides, if
    /// there is one. Empty variables count as not set. All variables count as not set in a program
    /// with more rights than its parent. If Dimmer is switched off ([`off::OFF`]), all regions
    /// stay.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn from_environment() -> Result<Self, SettingsError> {
        if off::is_off() {
            return Ok(Self::staying());
        }
        let text = |name| {
            dimmer_protocol::variable(name).map(|value| value.to_string_lossy().into_owned())
        };
        let settings = Self::new(text(POLICY).as_deref(), text(CORES).as_deref())?;
        Ok(Self { entrance: text(ENTRANCE), ..settings })
    }

    /// All regions stay.
    pub(crate) fn staying() -> Self {
        Self { default: Some(Decision::Stay), ..Self::default() }
    }

    fn new(policy: Option<&str>, cores: Option<&str>) -> Result<Self, SettingsError> {
        // An empty variable counts as not set, for programs that pass on the environment of others.
        let [policy, cores] = [policy, cores].map(|text| text.filter(|text| !text.is_empty()));
        let mut settings = match policy.map(|policy| (policy, policy.split_once(':'))) {
            None | Some(("server", _)) => Self::default(),
            Some((_, Some(("file", path)))) => Self::read(Path::new(path))?,
            Some((policy, _)) => {
                let decision = Decision::parse(policy);
                let default = decision.ok_or_else(|| SettingsError::Policy(policy.to_owned()))?;
                Self { default: Some(default), ..Self::default() }
            }
        };
        if let Some(cores) = cores {
            settings.cores =
                parse_cpu_list(cores).ok_or_else(|| SettingsError::Cores(cores.to_owned()))?;
        }
        if settings.cores.is_empty() && settings.moves() {
            return Err(SettingsError::NoCores);
        }
        Ok(settings)
    }

    fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
        let settings = Self::parse(&text).map_err(|(at, what)| SettingsError::File {
            path: path.to_owned(),
            line: line_of(&text, at),
            what,
        })?;
        Ok(Self { file: Some(path.to_owned()), ..settings })
    }

    /// Parses a policy's text. The error is its position in the text, and its description.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let document = DeTable::parse(text).map_err(|error| {
            (error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        let mut settings = Self::staying();
        let decision = |value: &toml::Spanned<DeValue<'_>>| {
            value.get_ref().as_str().and_then(Decision::parse).ok_or_else(|| {
                (value.span().start, "expected \"stay\", \"delegate\" or \"migrate\"".to_owned())
            })
        };
        for (key, value) in document.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("default", _) => settings.default = Some(decision(value)?),
                ("sites", DeValue::Table(sites)) => {
                    for (name, value) in sites {
                        let line = line_of(text, name.span().start);
                        let rule = Rule { decision: decision(value)?, line };
                        settings.sites.insert(name.get_ref().clone().into_owned(), rule);
                    }
                }
                ("sites", _) => {
                    return Err((value.span().start, "`sites`: expected a table".to_owned()));
                }
                ("minimum_stay_us", value_of) => {
                    let number =
                        value_of.as_integer().and_then(|number| number.as_str().parse().ok());
                    let number = number.filter(|number| *number <= LONGEST_STAY_US);
                    settings.minimum_stay_us = number.ok_or_else(|| {
                        let what = format!("`minimum_stay_us`: expected 0 to {LONGEST_STAY_US}");
                        (value.span().start, what)
                    })?;
                }
                (other, _) => {
                    let what = format!(
                        "unknown key `{other}`, accepted are `default`, `minimum_stay_us` and `sites`"
                    );
                    return Err((key.span().start, what));
                }
            }
        }
        Ok(settings)
    }

    /// The decision for the site whose name `is_called` knows; `None`: a server decides. Allocates
    /// nothing.
    pub(crate) fn decision(&self, is_called: impl Fn(&[u8]) -> bool) -> Option<Decision> {
        let rule = self.sites.iter().find(|(name, _)| is_called(name.as_bytes()));
        rule.map_or(self.default, |(_, rule)| Some(rule.decision))
    }

    /// Minimum time that a moved thread stays away, if its regions follow each other (ticks).
    pub(crate) fn minimum_stay(&self) -> u64 {
        if self.minimum_stay_us == 0 {
            return 0;
        }
        whole(f64::from(self.minimum_stay_us) * 1000.0 * ticks_per_ns())
    }

    /// Whether any region is to be moved.
    fn moves(&self) -> bool {
        let of_sites = self.sites.values().map(|rule| rule.decision);
        of_sites.chain(self.default).any(|decision| decision != Decision::Stay)
    }

    /// For each rule of the policy's file whose site is not in `entered`: a message with the rule's
    /// line, and with the sites that were entered.
    fn unknown(&self, entered: &[String]) -> Vec<String> {
        let Some(path) = &self.file else { return Vec::new() };
        let unknown = self.sites.iter().filter(|(name, _)| !entered.contains(name));
        let known = if entered.is_empty() {
            "none was entered".to_owned()
        } else {
            format!("entered were {}", entered.join(", "))
        };
        let tell = |(name, rule): (&String, &Rule)| {
            format!("{}:{}: no region `{name}` was entered; {known}", path.display(), rule.line)
        };
        unknown.map(tell).collect()
    }

    /// The decision for sites without a rule; `None`: a server decides.
    #[must_use]
    pub fn policy(&self) -> Option<Decision> {
        self.default
    }

    /// The named cores, and the file through which threads enter them.
    pub(crate) fn cores(&self) -> (&[CpuId], Option<&str>) {
        (&self.cores, self.entrance.as_deref())
    }

    /// Whether the server determines how many cores are used.
    pub(crate) fn leaves_cores_to_server(&self) -> bool {
        self.default.is_none() && self.cores.is_empty()
    }
}

/// Names the sites that were entered.
static ENTERED: OnceLock<fn() -> Vec<String>> = OnceLock::new();

/// Lets `entered` name the sites that were entered, once there is one.
pub(crate) fn name_entered_by(entered: fn() -> Vec<String>) {
    // It is always the same function.
    let _ = ENTERED.set(entered);
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The process's settings, once they were read. Async-signal-safe.
pub(crate) fn known() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// The process's settings, read once. If they are wrong, prints the error once, and nothing is
/// moved.
pub fn of_process() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let settings = Settings::from_environment().unwrap_or_else(|error| {
            complain(&error);
            Settings::staying()
        });
        if settings.file.is_some() {
            // Without memory for the registration, the messages are omitted.
            // SAFETY: the handler takes no arguments, and the code of a program that ends still
            // exists.
            unsafe { libc::atexit(tell_unknown) };
        }
        settings
    })
}

/// Prints, at the program's end, the rules of the policy's file that no region matched.
extern "C" fn tell_unknown() {
    let entered = ENTERED.get().map_or_else(Vec::new, |entered| entered());
    for line in of_process().unknown(&entered) {
        let _ = writeln!(io::stderr(), "dimmer: {line}");
    }
}

/// Prints what is wrong with the settings: a running program has no other way to inform the user.
pub(crate) fn complain(error: &dyn std::error::Error) {
    let mut text = format!("dimmer: {error}");
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    let _ = writeln!(io::stderr(), "{text}; regions stay where they are");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The decision for the site of this name.
    fn decided(settings: &Settings, own: &str) -> Option<Decision> {
        settings.decision(|name| name == own.as_bytes())
    }

    #[track_caller]
    fn refused(policy: &str, cores: Option<&str>) -> String {
        Settings::new(Some(policy), cores).unwrap_err().to_string()
    }

    #[test]
    fn without_anything_a_server_decides_if_there_is_one() {
        let settings = Settings::new(None, None).unwrap();
        assert_eq!(settings, Settings::new(Some("server"), None).unwrap());
        assert_eq!(settings, Settings::new(Some(""), Some("")).unwrap());
        assert_eq!((decided(&settings, "any"), settings.policy()), (None, None));
        assert!(settings.leaves_cores_to_server());
        let settings = Settings::new(Some("stay"), None).unwrap();
        assert_eq!(decided(&settings, "any"), Some(Decision::Stay));
        assert!(!settings.leaves_cores_to_server());
    }

    #[test]
    fn one_decision_is_for_all_sites() {
        let settings = Settings::new(Some("delegate"), Some("2-3")).unwrap();
        assert_eq!(decided(&settings, "any"), Some(Decision::Delegate));
        assert_eq!(settings.cores, [CpuId::new(2), CpuId::new(3)]);
    }

    #[test]
    fn a_file_decides_site_by_site() {
        let text = "default = \"stay\"\nminimum_stay_us = 50\n[sites]\nparse = \"migrate\"\n\"codec.c:12\" = \"delegate\"\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(decided(&settings, "parse"), Some(Decision::Migrate));
        assert!(settings.minimum_stay() > 0);
        assert_eq!(decided(&settings, "codec.c:12"), Some(Decision::Delegate));
        assert_eq!(decided(&settings, "other"), Some(Decision::Stay));
        let settings = Settings { file: Some("p.toml".into()), ..settings };
        let told = settings.unknown(&["parse".to_owned(), "b".to_owned()]);
        assert_eq!(told, ["p.toml:5: no region `codec.c:12` was entered; entered were parse, b"]);
        assert!(settings.unknown(&["parse".to_owned(), "codec.c:12".to_owned()]).is_empty());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_what_is_accepted() {
        assert!(
            refused("everywhere", None).contains("none of `server`, `stay`, `delegate`, `migrate`")
        );
        assert!(refused("migrate", None).contains("DIMMER_CORES names no core"));
        assert!(refused("migrate", Some("x")).contains("`x` is no list"));
        assert!(refused("file:/no/such", None).contains("/no/such"));
        let file = |text: &str| {
            let directory =
                std::env::temp_dir().join(format!("dimmer-policy-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let path = directory.join("policy.toml");
            std::fs::write(&path, text).unwrap();
            let said = refused(&format!("file:{}", path.display()), Some("1"));
            std::fs::remove_dir_all(&directory).unwrap();
            said
        };
        let said = file("default = \"stay\"\n\n[sites]\nparse = \"move\"\n");
        assert!(
            said.ends_with("policy.toml:4: expected \"stay\", \"delegate\" or \"migrate\""),
            "{said}"
        );
        let said = file("defaults = \"stay\"\n");
        assert!(said.contains(":1: unknown key `defaults`, accepted are `default`"), "{said}");
        let said = file("minimum_stay_us = -1\n");
        assert!(said.contains(":1: `minimum_stay_us`: expected 0 to 1000000"), "{said}");
        assert!(file("sites = 3\n").contains(":1: `sites`: expected a table"));
        assert!(file("a = \n").contains(":1: "));
    }
}
