//! The configuration as tables of keys: those of the daemon, and one for each policy loop with its
//! constants. A wrong key or value is an error at its own place.

use std::fmt;

use dimmer_policy::server::loops::{Chosen, Definition, LOOPS, USUAL};
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Settings;

/// The constants of all loops, in the order of [`LOOPS`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoopTables(Vec<Chosen>);

impl LoopTables {
    /// A loop with its constants.
    pub(super) fn chosen(&self, name: LoopName) -> Chosen {
        let chosen = self.0.iter().find(|chosen| chosen.definition() == name.0);
        chosen.cloned().unwrap_or_else(|| Chosen::usual(name.0))
    }

    fn table(&mut self, name: &str) -> Option<&mut Chosen> {
        self.0.iter_mut().find(|chosen| chosen.definition().name == name)
    }
}

impl Default for LoopTables {
    fn default() -> Self {
        Self(LOOPS.map(Chosen::usual).into())
    }
}

/// The name of a loop, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoopName(&'static Definition);

impl LoopName {
    pub(super) const fn name(self) -> &'static str {
        self.0.name
    }

    pub(super) const fn definition(self) -> &'static Definition {
        self.0
    }
}

impl Default for LoopName {
    fn default() -> Self {
        Self(USUAL)
    }
}

impl Serialize for LoopName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for LoopName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = LOOPS.map(|definition| definition.name);
        let name = OneOf { what: "name", names: &names }.deserialize(deserializer)?;
        let unknown = || D::Error::custom(format_args!("no loop has the name `{name}`"));
        Definition::named(name).map(Self).ok_or_else(unknown)
    }
}

/// Reads one of these names.
#[derive(Clone, Copy)]
struct OneOf<'a> {
    /// The noun in the error message.
    what: &'static str,
    names: &'a [&'static str],
}

impl<'de> DeserializeSeed<'de> for OneOf<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Self { what, names } = self;
        let read = String::deserialize(deserializer)?;
        let unknown = || {
            let known: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let known = known.join(", ");
            D::Error::custom(format_args!("unknown {what} `{read}`, expected one of {known}"))
        };
        names.iter().find(|name| **name == read).copied().ok_or_else(unknown)
    }
}

/// Reads the constants of a loop into its table.
struct Constants<'a>(&'a mut Chosen);

impl<'de> DeserializeSeed<'de> for Constants<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Constants<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the constants of the loop `{}`", self.0.definition().name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let names: Vec<&'static str> = self.0.values().into_iter().map(|(name, _)| name).collect();
        let mut values = Vec::new();
        while let Some(name) = map.next_key_seed(OneOf { what: "field", names: &names })? {
            values.push((name, map.next_value::<f64>()?));
        }
        self.0.set(&values).map_err(A::Error::custom)
    }
}

/// The names of the daemon's own tables.
const POLICY: &str = "policy";
const CORES: &str = "cores";
const SERVER: &str = "server";
const METRICS: &str = "metrics";
const CLOCKS: &str = "clocks";

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// The table of a loop.
        struct Table<'a>(&'a Chosen);
        impl Serialize for Table<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.values())
            }
        }
        let Self { policy, cores, loops, server, metrics, clocks } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(POLICY, policy)?;
        map.serialize_entry(CORES, cores)?;
        for chosen in &loops.0 {
            map.serialize_entry(chosen.definition().name, &Table(chosen))?;
        }
        map.serialize_entry(SERVER, server)?;
        map.serialize_entry(METRICS, metrics)?;
        map.serialize_entry(CLOCKS, clocks)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Tables)
    }
}

/// Reads all tables.
struct Tables;

impl<'de> Visitor<'de> for Tables {
    type Value = Settings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tables of a configuration")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Settings, A::Error> {
        let loops = LOOPS.map(|definition| definition.name);
        let names: Vec<&'static str> =
            [POLICY, CORES, SERVER, METRICS, CLOCKS].into_iter().chain(loops).collect();
        let mut settings = Settings::default();
        while let Some(name) = map.next_key_seed(OneOf { what: "field", names: &names })? {
            match name {
                POLICY => settings.policy = map.next_value()?,
                CORES => settings.cores = map.next_value()?,
                SERVER => settings.server = map.next_value()?,
                METRICS => settings.metrics = map.next_value()?,
                CLOCKS => settings.clocks = map.next_value()?,
                of_a_loop => {
                    if let Some(chosen) = settings.loops.table(of_a_loop) {
                        map.next_value_seed(Constants(chosen))?;
                    }
                }
            }
        }
        Ok(settings)
    }
}
