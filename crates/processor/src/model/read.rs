//! Reads a model from TOML text into checked types. Every problem is reported with file, line and
//! key.

mod values;

use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::values::{
    Accept, DOMAINS, PATHS, SUPPLIES, a_class, a_cstate, a_level, count, count_or_none, divisor,
    divisor_step, instructions, kib, log_sd, mhz, mv, mw, mw_or_none, ns, per_cycle, share,
    share_above_zero, short_ns, slot_ns, word,
};
use super::keys::{KEYS, SCHEMA, unit_hint};
use super::{
    Bin, CState, Clock, Cluster, Identity, Level, LongRecurrence, Model, Move, PState, Power,
    Release, Request, Rule, Shape, Sourced, Supply, Transition, Upper,
};
use crate::class::InstructionClass;
use crate::text::line_of;

/// One problem in a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong and what is expected.
    pub message: String,
}

/// Error for a file that is not a valid model. The whole file is rejected and none of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    /// The file.
    pub path: PathBuf,
    /// All problems of the file, by line.
    pub problems: Vec<Problem>,
}

impl std::fmt::Display for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines = self.problems.iter();
        let lines: Vec<String> =
            lines.map(|p| format!("{}:{}: {}", self.path.display(), p.line, p.message)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ModelError {}

impl Model {
    /// Reads a model.
    ///
    /// * `path`: used only in errors.
    /// * `text`: the content of the file.
    ///
    /// # Errors
    /// [`ModelError`] with every problem: unknown keys, values of the wrong kind or without a
    /// source, and impossible processors.
    pub fn parse(path: &FilePath, text: &str) -> Result<Self, ModelError> {
        let refused = |problems| ModelError { path: path.to_owned(), problems };
        let document = DeTable::parse(text).map_err(|error| {
            let line = line_of(text, error.span().map_or(0, |span| span.start));
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            refused(vec![Problem { line, message }])
        })?;
        let mut reader =
            Reader { text, problems: Vec::new(), levels: Vec::new(), level_places: Vec::new() };
        let top = Section { name: "", table: document.get_ref(), span: 0..0 };
        let model = reader.model(&top);
        let mut problems = reader.problems;
        problems.sort_by_key(|problem| problem.line);
        if problems.is_empty() { Ok(model) } else { Err(refused(problems)) }
    }
}

type Table<'t> = DeTable<'t>;
type Value<'t> = Spanned<DeValue<'t>>;

/// A table with its name in [`KEYS`].
struct Section<'a, 't> {
    name: &'static str,
    table: &'a Table<'t>,
    span: Range<usize>,
}

/// Collects the problems found while reading.
pub(super) struct Reader<'a> {
    text: &'a str,
    problems: Vec<Problem>,
    levels: Vec<String>,
    /// Position in the text of each level of the model.
    pub(super) level_places: Vec<Range<usize>>,
}

impl Reader<'_> {
    /// Records a problem at a position in the text.
    pub(super) fn problem(&mut self, at: &Range<usize>, message: impl Into<String>) {
        let line = line_of(self.text, at.start);
        self.problems.push(Problem { line, message: message.into() });
    }

    fn model(&mut self, top: &Section<'_, '_>) -> Model {
        self.keys(top);
        let schema = self.text_of(top, "schema", true);
        if schema.as_deref().is_some_and(|schema| schema != SCHEMA) {
            self.problem(&top.at("schema"), format!("`schema`: expected \"{SCHEMA}\""));
        }
        // A missing name is already recorded as a problem; the other problems are reported as well.
        let identity = Identity {
            name: self.text_of(top, "name", true).unwrap_or_default(),
            vendor: self.text_of(top, "vendor", true).unwrap_or_default(),
            microarchitecture: self.text_of(top, "microarchitecture", true).unwrap_or_default(),
            note: self.text_of(top, "note", false),
        };
        let mut model = Model::new(identity);
        if let Some(table) = self.table(top, "topology", "topology") {
            model.shape = Shape {
                packages: self.sourced(&table, "packages", count),
                cores: self.sourced(&table, "cores", count),
                threads_per_core: self.sourced(&table, "threads_per_core", count),
                l2_kib: self.sourced(&table, "l2_kib", kib),
                l3_kib: self.sourced(&table, "l3_kib", kib),
            };
        }
        if let Some(table) = self.table(top, "clock", "clock") {
            model.clock = Clock {
                domain: self.sourced(&table, "domain", word(&DOMAINS)),
                tsc_mhz: self.sourced(&table, "tsc_mhz", mhz),
                min_mhz: self.sourced(&table, "min_mhz", mhz),
                base_mhz: self.sourced(&table, "base_mhz", mhz),
                max_mhz: self.sourced(&table, "max_mhz", mhz),
                tdp_mw: self.sourced(&table, "tdp_mw", mw),
                raise_period_ns: self.sourced(&table, "raise_period_ns", slot_ns),
                divisor_step: self.sourced(&table, "divisor_step", divisor_step),
                divisor_most: self.sourced(&table, "divisor_most", divisor),
            };
            self.check_clock(&model.clock, &table.span);
        }
        for table in self.tables(top, "cluster", "cluster") {
            let cluster = self.cluster(&table);
            model.clusters.extend(cluster);
        }
        self.check_domain(&model, &top.at("clock"));
        self.read_levels(top, &mut model);
        self.check_cores(&model);
        let rules = self.tables(top, "rule", "rule");
        let written = rules.len();
        for table in rules {
            let rule = self.rule(&table);
            model.rules.extend(rule);
        }
        // An unreadable rule may be the one that a level needs.
        if model.rules.len() == written {
            self.check_rules(&model);
        }
        self.read_changes(top, &mut model);
        self.read_points(top, &mut model);
        model
    }

    fn cluster(&mut self, table: &Section<'_, '_>) -> Option<Cluster> {
        let name = self.text_of(table, "name", true);
        let cores = self.required(table, "cores", count);
        Some(Cluster {
            max_mhz: self.sourced(table, "max_mhz", mhz),
            capacity_ratio: self.sourced(table, "capacity_ratio", share_above_zero),
            power_ratio: self.sourced(table, "power_ratio", share_above_zero),
            name: name?,
            cores: cores?,
        })
    }

    fn read_levels(&mut self, top: &Section<'_, '_>, model: &mut Model) {
        let tables = self.tables(top, "level", "level");
        if tables.is_empty() {
            self.problem(
                &top.span,
                "no `[[level]]`: a processor has at least the unrestricted one",
            );
            return;
        }
        model.levels.clear();
        for table in tables {
            let Some(name) = self.text_of(&table, "name", true) else { continue };
            if self.levels.contains(&name) {
                self.problem(&table.at("name"), format!("level `{name}` stands twice"));
            }
            self.levels.push(name.clone());
            let mut level = Level::named(&name);
            level.clock_ratio = self.sourced(&table, "clock_ratio", share_above_zero);
            level.issue_ratio = self.sourced(&table, "issue_ratio", share_above_zero);
            level.reduced_mhz = self.sourced(&table, "reduced_mhz", mhz);
            for bin in self.tables(&table, "bins", "level.bins") {
                let cores = self.plain(&bin, "cores", count);
                let mhz = self.required(&bin, "mhz", mhz);
                let next = level.bins.last().map_or(1, |bin| bin.cores + 1);
                let from_cores = if bin.table.contains_key("from_cores") {
                    self.plain(&bin, "from_cores", count)
                } else {
                    Some(next)
                };
                if let (Some(from_cores), Some(cores), Some(mhz)) = (from_cores, cores, mhz) {
                    if from_cores < next || cores < from_cores {
                        let message = format!(
                            "level `{name}`: {from_cores} to {cores} cores do not follow the bins \
                             before, which end at {}",
                            next - 1
                        );
                        self.problem(&bin.span, message);
                    }
                    level.bins.push(Bin { from_cores, cores, mhz });
                }
            }
            self.level_places.push(table.span.clone());
            model.levels.push(level);
        }
        self.check_levels(&model.levels);
    }

    fn rule(&mut self, table: &Section<'_, '_>) -> Option<Rule> {
        let class = self.text_of(table, "class", true).and_then(|name| {
            let class = InstructionClass::from_str(&name);
            class.map_err(|error| self.problem(&table.at("class"), error.to_string())).ok()
        });
        let upper = match self.text_of(table, "upper", false).as_deref() {
            None | Some("any") => Upper::Any,
            Some("dirty") => Upper::Dirty,
            Some(other) => {
                let message = format!("`upper`: found \"{other}\", expected \"any\" or \"dirty\"");
                self.problem(&table.at("upper"), message);
                Upper::Any
            }
        };
        let level = self.required(table, "level", a_level(self.levels.clone()));
        Some(Rule {
            upper,
            instructions: self.sourced(table, "instructions", instructions),
            instructions_log_sd: self.sourced(table, "instructions_log_sd", log_sd),
            density_per_cycle: self.sourced(table, "density_per_cycle", per_cycle),
            grant_ns: self.sourced(table, "grant_ns", ns),
            grant_log_sd: self.sourced(table, "grant_log_sd", log_sd),
            class: class?,
            level: level?,
        })
    }

    fn read_changes(&mut self, top: &Section<'_, '_>, model: &mut Model) {
        if let Some(table) = self.table(top, "request", "request") {
            model.request = Request {
                throttle_factor: self.sourced(&table, "throttle_factor", share_above_zero),
                chained_throttle_factor: self.sourced(
                    &table,
                    "chained_throttle_factor",
                    share_above_zero,
                ),
                throttled_ns: self.sourced(&table, "throttled_ns", ns),
                voltage_ns: self.sourced(&table, "voltage_ns", ns),
                stall_ns: self.sourced(&table, "stall_ns", ns),
                slot_ns: self.sourced(&table, "slot_ns", slot_ns),
                missed_share: self.sourced(&table, "missed_share", share),
                path: self.sourced(&table, "path", word(&PATHS)),
            };
        }
        if let Some(table) = self.table(top, "release", "release") {
            let level = a_level(self.levels.clone());
            model.release = Release {
                hold_ns: self.sourced(&table, "hold_ns", ns),
                extended_share: self.sourced(&table, "extended_share", share),
                extended_share_beside: self.sourced(&table, "extended_share_beside", share),
                extended_ns: self.sourced(&table, "extended_ns", ns),
                extended_level: self.sourced(&table, "extended_level", level),
                extended_class: self.sourced(&table, "extended_class", a_class),
                stall_ns: self.sourced(&table, "stall_ns", ns),
                recurrence_ns: self.sourced(&table, "recurrence_ns", ns),
                recurrence_after_ns: self.sourced(&table, "recurrence_after_ns", ns),
                recurrence_slowdown: self.sourced(&table, "recurrence_slowdown", share),
                episode_ns: self.sourced(&table, "episode_ns", ns),
            };
            let of = |value: &Option<Sourced<u64>>| value.as_ref().map(|sourced| sourced.value);
            let release = &model.release;
            if of(&release.extended_ns).zip(of(&release.hold_ns)).is_some_and(|(e, h)| e < h) {
                self.problem(&table.at("extended_ns"), "`extended_ns` is below `hold_ns`");
            }
        }
        for table in self.tables(top, "long_recurrence", "long_recurrence") {
            let level = self.required(&table, "level", a_level(self.levels.clone()));
            let burst_ns = self.required(&table, "burst_ns", ns);
            let gap_ns = self.required(&table, "gap_ns", ns);
            let slowdown = self.required(&table, "slowdown", share);
            let (burst, code) = (burst_ns.zip(gap_ns), level.zip(slowdown));
            let all = burst.zip(code);
            model.long_recurrences.extend(all.map(|((burst_ns, gap_ns), (level, slowdown))| {
                LongRecurrence { level, burst_ns, gap_ns, slowdown }
            }));
        }
    }

    fn read_points(&mut self, top: &Section<'_, '_>, model: &mut Model) {
        for table in self.tables(top, "cstate", "cstate") {
            let name = self.text_of(&table, "name", true);
            let exit_ns = self.required(&table, "exit_ns", ns);
            let residency_ns = self.sourced(&table, "residency_ns", ns);
            let both = name.zip(exit_ns);
            model.cstates.extend(both.map(|(name, exit_ns)| CState {
                name,
                exit_ns,
                residency_ns,
            }));
        }
        let idle: Vec<String> = model.cstates.iter().map(|state| state.name.clone()).collect();
        for table in self.tables(top, "pstate", "pstate") {
            let (name, mhz) =
                (self.text_of(&table, "name", true), self.required(&table, "mhz", mhz));
            let mv = self.sourced(&table, "mv", mv);
            let needs_idle = self.sourced(&table, "needs_idle", a_cstate(&idle));
            let before = model.pstates.last().map(|state| state.needs_idle.as_ref());
            if let (Some(before), Some(needs)) = (before, &needs_idle)
                && before.is_none_or(|before| before.value != needs.value)
            {
                let message = "`needs_idle`: expected in the first P-states only, with one name";
                self.problem(&table.at("needs_idle"), message);
            }
            let known = |state: &PState| Some(&state.name) == name.as_ref();
            if model.pstates.iter().any(known) {
                self.problem(&table.at("name"), "this P-state stands twice");
            }
            model.pstates.extend(name.zip(mhz).map(|(name, mhz)| PState {
                name,
                mhz,
                mv,
                needs_idle,
            }));
        }
        if model.pstates.last().is_some_and(|state| state.needs_idle.is_some()) {
            self.problem(&top.at("pstate"), "`needs_idle`: the last P-state must need none");
        }
        self.read_supply(top, model);
        let names: Vec<String> = model.pstates.iter().map(|state| state.name.clone()).collect();
        for table in self.tables(top, "power", "power") {
            let power = self.power(&table, &names);
            if let Some(power) = &power {
                self.check_power(model, power, &table.span);
            }
            model.power.extend(power);
        }
        for table in self.tables(top, "transition", "transition") {
            let (from, to) = (self.named(&table, "from", &names), self.named(&table, "to", &names));
            let request_ns = self.sourced(&table, "request_ns", ns);
            let total_ns = self.sourced(&table, "total_ns", ns);
            let of = |value: &Option<Sourced<u64>>| value.as_ref().map(|sourced| sourced.value);
            if of(&request_ns).zip(of(&total_ns)).is_some_and(|(request, total)| request > total) {
                self.problem(&table.at("request_ns"), "`request_ns` is above `total_ns`");
            }
            let ends = from.zip(to);
            model.transitions.extend(ends.map(|(from, to)| Transition {
                from,
                to,
                request_ns,
                total_ns,
            }));
        }
        let kinds: Vec<String> = Move::KINDS.map(str::to_owned).to_vec();
        for table in self.tables(top, "move", "move") {
            let kind = self.named(&table, "kind", &kinds);
            let ns = self.required(&table, "ns", short_ns);
            model.moves.extend(kind.zip(ns).map(|(kind, ns)| Move { kind, ns }));
        }
    }

    fn read_supply(&mut self, top: &Section<'_, '_>, model: &mut Model) {
        let Some(table) = self.table(top, "supply", "supply") else { return };
        model.supply = Supply {
            domain: self.sourced(&table, "domain", word(&SUPPLIES)),
            awake_mw: self.sourced(&table, "awake_mw", mw_or_none),
            core_mw: self.sourced(&table, "core_mw", mw),
            stalled_ratio: self.sourced(&table, "stalled_ratio", share),
            waiting_mw: self.sourced(&table, "waiting_mw", mw_or_none),
        };
    }

    fn power(&mut self, table: &Section<'_, '_>, names: &[String]) -> Option<Power> {
        let load = self.text_of(table, "load", true);
        let pstate = self.named(table, "pstate", names);
        let has = |key: &str| table.table.contains_key(key);
        let busy_cores =
            if has("busy_cores") { self.plain(table, "busy_cores", count_or_none) } else { None };
        let slow = if has("slow_cores") || has("slow_pstate") {
            let slow_cores = self.plain(table, "slow_cores", count);
            let slow_pstate = self.named(table, "slow_pstate", names);
            if !has("slow_pstate") {
                self.problem(&table.span, "`slow_cores` needs `slow_pstate`");
            }
            if !has("busy_cores") {
                self.problem(&table.span, "`slow_cores` needs `busy_cores`");
            }
            slow_cores.zip(slow_pstate)
        } else {
            None
        };
        let package_mw = self.required(table, "package_mw", mw);
        Some(Power { load: load?, pstate: pstate?, busy_cores, slow, package_mw: package_mw? })
    }

    /// Reads a text that must be one of `names`.
    fn named(&mut self, table: &Section<'_, '_>, key: &str, names: &[String]) -> Option<String> {
        let found = self.text_of(table, key, true)?;
        if names.contains(&found) {
            return Some(found);
        }
        let accepted =
            if names.is_empty() { "none is defined".to_owned() } else { names.join(", ") };
        self.problem(&table.at(key), format!("`{key}`: found \"{found}\", expected: {accepted}"));
        None
    }

    /// Records keys that do not belong in the section.
    fn keys(&mut self, section: &Section<'_, '_>) {
        let list = KEYS.iter().find(|(name, _)| *name == section.name);
        let accepted = list.map_or(&[][..], |(_, keys)| *keys);
        for key in section.table.keys() {
            let name = key.get_ref();
            if accepted.contains(&name.as_ref()) {
                continue;
            }
            let place = match section.name {
                "" => String::new(),
                name => format!(" in `{name}`"),
            };
            let hint = unit_hint(name, accepted);
            let message = format!(
                "unknown key `{name}`{place}{hint}, expected one of {}",
                accepted.join(", ")
            );
            self.problem(&key.span(), message);
        }
    }

    fn text_of(&mut self, section: &Section<'_, '_>, key: &str, needed: bool) -> Option<String> {
        match section.table.get(key) {
            Some(value) => match value.get_ref().as_str() {
                Some(text) if !text.trim().is_empty() => Some(text.to_owned()),
                _ => {
                    self.problem(&value.span(), format!("`{key}`: expected a text"));
                    None
                }
            },
            None => {
                if needed {
                    self.missing(section, key);
                }
                None
            }
        }
    }

    fn missing(&mut self, section: &Section<'_, '_>, key: &str) {
        let of = if section.name.is_empty() { "the model" } else { section.name };
        self.problem(&section.span, format!("`{key}` is missing in {of}"));
    }

    fn table<'s, 't>(
        &mut self,
        section: &'s Section<'_, 't>,
        key: &str,
        name: &'static str,
    ) -> Option<Section<'s, 't>> {
        let value = section.table.get(key)?;
        self.as_table(value, name)
    }

    fn as_table<'s, 't>(
        &mut self,
        value: &'s Value<'t>,
        name: &'static str,
    ) -> Option<Section<'s, 't>> {
        let DeValue::Table(table) = value.get_ref() else {
            self.problem(&value.span(), format!("`{name}`: expected a table"));
            return None;
        };
        let section = Section { name, table, span: value.span() };
        self.keys(&section);
        Some(section)
    }

    fn tables<'s, 't>(
        &mut self,
        section: &'s Section<'_, 't>,
        key: &str,
        name: &'static str,
    ) -> Vec<Section<'s, 't>> {
        match section.table.get(key).map(|value| (value.get_ref(), value.span())) {
            None => Vec::new(),
            Some((DeValue::Array(values), _)) => {
                values.iter().filter_map(|value| self.as_table(value, name)).collect()
            }
            Some((_, span)) => {
                self.problem(&span, format!("`{key}`: expected `[[{key}]]`, a list of tables"));
                Vec::new()
            }
        }
    }

    /// Reads a number without a source of its own, which is part of another value's position.
    fn plain<T>(&mut self, section: &Section<'_, '_>, key: &str, read: Accept<T>) -> Option<T> {
        let Some(value) = section.table.get(key) else {
            self.missing(section, key);
            return None;
        };
        read(value.get_ref())
            .map_err(|expected| {
                self.problem(&value.span(), format!("`{key}`: expected {expected}"))
            })
            .ok()
    }

    fn required<T: PartialOrd>(
        &mut self,
        section: &Section<'_, '_>,
        key: &str,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Sourced<T>> {
        if !section.table.contains_key(key) {
            self.missing(section, key);
        }
        self.sourced(section, key, read)
    }

    /// `key = { value = ..., source = "...", guess = true, ci95 = [low, high] }`.
    fn sourced<T: PartialOrd>(
        &mut self,
        section: &Section<'_, '_>,
        key: &str,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Sourced<T>> {
        let value = section.table.get(key)?;
        let span = value.span();
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("`{key}`: expected {{ value = ..., source = \"...\" }}");
            self.problem(&span, message);
            return None;
        };
        let inner = Section { name: "a value", table, span: span.clone() };
        self.keys(&inner);
        let source = self.text_of(&inner, "source", false);
        if source.is_none() {
            self.problem(
                &span,
                format!("`{key}` has no `source`: where does the value come from?"),
            );
        }
        let guess = match table.get("guess").map(|value| (value.get_ref(), value.span())) {
            None => false,
            Some((DeValue::Boolean(guess), _)) => *guess,
            Some((_, span)) => {
                self.problem(&span, "`guess`: expected true or false");
                false
            }
        };
        let accept = |reader: &mut Self, value: &Value<'_>| {
            let found = read(value.get_ref());
            let refused =
                |expected| reader.problem(&value.span(), format!("`{key}`: expected {expected}"));
            found.map_err(refused).ok()
        };
        let ci95 = match table.get("ci95").map(|value| (value.get_ref(), value.span())) {
            None => None,
            Some((DeValue::Array(ends), _)) if ends.len() == 2 => {
                let ends: Vec<T> = ends.iter().filter_map(|end| accept(self, end)).collect();
                let mut ends = ends.into_iter();
                ends.next().zip(ends.next())
            }
            Some((_, span)) => {
                self.problem(&span, "`ci95`: expected [low, high]");
                None
            }
        };
        let Some(value) = table.get("value") else {
            self.problem(&span, format!("`{key}` has no `value`"));
            return None;
        };
        let value = accept(self, value)?;
        if ci95.as_ref().is_some_and(|(low, high)| !(*low <= value && value <= *high)) {
            self.problem(&span, format!("`{key}`: `value` does not lie within `ci95`"));
        }
        Some(Sourced { value, source: source?, guess, ci95 })
    }
}

impl Section<'_, '_> {
    /// The position of a key's value; that of the whole section if the key is missing.
    fn at(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or(self.span.clone(), Spanned::span)
    }
}
