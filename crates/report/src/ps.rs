//! Which processes use wide SIMD code. `docs/ps-json.md` describes the document.

use dimmer_processor::model::Model;
use dimmer_ps::code::Code;
use dimmer_ps::{GroupSum, Host, Process};
use serde::Serialize;

use crate::number::{counted, grouped, percent, time};
use crate::scan::{ModelEntry, level_name};
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/ps/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    lasted_s: f64,
    knows_avx512: bool,
    model: Option<ModelEntry>,
    processes: Vec<ProcessEntry>,
    groups: Vec<GroupEntry>,
    #[serde(skip)]
    is_shown: Vec<bool>,
}

#[derive(Debug, Serialize)]
struct ProcessEntry {
    pid: u32,
    name: String,
    user: u32,
    cgroup: Option<String>,
    unit: Option<String>,
    container: Option<String>,
    pod: Option<String>,
    #[serde(skip)]
    group: Option<String>,
    threads: usize,
    cpus: f64,
    avx512_threads: Option<usize>,
    avx512_ms_ago: Option<f64>,
    code: Option<CodeEntry>,
    code_unknown: Option<String>,
    unknown_files: usize,
}

#[derive(Debug, Serialize)]
struct CodeEntry {
    class: &'static str,
    level: Option<String>,
    file: String,
}

#[derive(Debug, Serialize)]
struct GroupEntry {
    name: Option<String>,
    processes: usize,
    threads: usize,
    cpus: f64,
    avx512_processes: usize,
    code: Option<CodeEntry>,
}

impl CodeEntry {
    fn new(code: &Code, model: Option<&Model>) -> Self {
        let level = model.and_then(|model| {
            level_name(model, dimmer_scan::level([code.class], code.uses_zmm, model))
        });
        Self { class: code.class.name(), level, file: code.file.clone() }
    }
}

impl ProcessEntry {
    fn new(process: &Process, model: Option<&Model>) -> Self {
        let group = process.group.clone().unwrap_or_default();
        let code = process.code.as_ref();
        Self {
            pid: process.pid,
            name: process.name.clone(),
            user: process.user,
            group: process.group.as_ref().map(dimmer_host::group::Group::name),
            cgroup: process.group.as_ref().map(|group| group.path.clone()),
            unit: group.unit,
            container: group.container,
            pod: group.pod,
            threads: process.threads,
            cpus: process.cpus,
            avx512_threads: process.avx512_threads,
            avx512_ms_ago: process.avx512_before.map(|before| before.as_secs_f64() * 1e3),
            code: code.and_then(|code| code.as_ref().ok()).map(|code| CodeEntry::new(code, model)),
            code_unknown: code.and_then(|code| code.as_ref().err()).cloned(),
            unknown_files: process.unknown_files,
        }
    }
}

impl GroupEntry {
    fn new(sum: GroupSum, model: Option<&Model>) -> Self {
        Self {
            name: sum.name,
            processes: sum.processes,
            threads: sum.threads,
            cpus: sum.cpus,
            avx512_processes: sum.avx512_processes,
            code: sum.code.as_ref().map(|code| CodeEntry::new(code, model)),
        }
    }
}

impl Report {
    /// What processes did, with the levels that their code may ask for by a model.
    ///
    /// * `is_shown`: whether the text has this process.
    pub fn new(
        host: &Host,
        model: Option<(&Model, &str)>,
        is_shown: impl Fn(&Process) -> bool,
    ) -> Self {
        let of = model.map(|(model, _)| model);
        let processes = host.processes.iter();
        Self {
            schema: "dimmer/ps/1",
            lasted_s: host.lasted.as_secs_f64(),
            knows_avx512: host.knows_avx512,
            model: model.map(|(model, from)| ModelEntry::new(model, from)),
            processes: processes.map(|process| ProcessEntry::new(process, of)).collect(),
            groups: host.groups().into_iter().map(|sum| GroupEntry::new(sum, of)).collect(),
            is_shown: host.processes.iter().map(is_shown).collect(),
        }
    }

    /// The processes as text, or their control groups.
    pub fn text(&self, by_group: bool, screen: Screen) -> String {
        let mut text = screen.fill(&self.summary());
        let shown = || self.processes.iter().zip(&self.is_shown).filter(|(_, shown)| **shown);
        let table = if by_group { self.groups() } else { self.table(shown().map(|(one, _)| one)) };
        if let Some(table) = table {
            text += "\n";
            text += &table.render(screen);
        }
        let unknown = shown().filter(|(one, _)| one.code_unknown.is_some()).count();
        if unknown > 0 {
            text += "\n";
            text += &screen.fill(&format!(
                "The code of {} is not known: reading the memory map of a process needs its user's \
                 rights, or root's.",
                counted(unknown, "process"),
            ));
        }
        let files: usize = shown().map(|(one, _)| one.unknown_files).sum();
        if files > 0 {
            text += "\n";
            text += &screen.fill(&format!(
                "The code of {} is not known: deleted since, as by an upgrade, not readable, or no \
                 ELF files.",
                counted(files, "mapped file"),
            ));
        }
        text
    }

    fn summary(&self) -> String {
        let lasted = time(self.lasted_s * 1e9);
        let all = counted(self.processes.len(), "process");
        if !self.knows_avx512 {
            return format!(
                "{all}, for {lasted}. Who uses AVX-512 registers is not known: this kernel has no \
                 /proc/PID/arch_status, or this processor no AVX-512.",
            );
        }
        let threads = self.processes.iter().filter_map(|process| process.avx512_threads);
        let wide = threads.clone().filter(|threads| *threads > 0).count();
        format!(
            "{all}, for {lasted}. AVX-512 registers held values in {} of {}.",
            counted(threads.sum(), "thread"),
            counted(wide, "process"),
        )
    }

    fn table<'a>(&self, shown: impl Iterator<Item = &'a ProcessEntry>) -> Option<Table> {
        let mut table =
            Table::new(self.columns(["PID", "program", "unit", "CPU"], "AVX-512 threads"));
        let mut is_empty = true;
        for one in shown {
            is_empty = false;
            let wide = one.avx512_threads.map(|wide| {
                format!("{} of {}", grouped(wide as f64, 0), grouped(one.threads as f64, 0))
            });
            let unknown = one.code_unknown.as_ref().map(|_| "not known");
            table.row(self.row(
                [
                    Cell::right(one.pid.to_string()),
                    one.name.as_str().into(),
                    short(one.group.as_deref().unwrap_or_default()).into(),
                    Cell::right(percent(one.cpus)),
                ],
                wide.unwrap_or_default(),
                one.code.as_ref(),
                unknown.unwrap_or_default(),
            ));
        }
        (!is_empty).then_some(table)
    }

    fn groups(&self) -> Option<Table> {
        let head = ["unit", "processes", "threads", "CPU"];
        let mut table = Table::new(self.columns(head, "AVX-512 processes"));
        for one in &self.groups {
            table.row(self.row(
                [
                    short(one.name.as_deref().unwrap_or("(none)")).into(),
                    Cell::right(grouped(one.processes as f64, 0)),
                    Cell::right(grouped(one.threads as f64, 0)),
                    Cell::right(percent(one.cpus)),
                ],
                grouped(one.avx512_processes as f64, 0),
                one.code.as_ref(),
                "",
            ));
        }
        (!self.groups.is_empty()).then_some(table)
    }

    /// The headings: some first, then those of what is known here.
    fn columns<'a>(&self, first: [&'a str; 4], avx512: &'a str) -> Vec<Cell> {
        let first = first.into_iter().map(|name| match name {
            "program" | "unit" => Cell::from(name),
            number => Cell::right(number),
        });
        let avx512 = self.knows_avx512.then(|| Cell::right(avx512));
        let level = self.model.is_some().then(|| Cell::from("level"));
        first.chain(avx512).chain(["widest code".into(), "in".into()]).chain(level).collect()
    }

    fn row(
        &self,
        first: [Cell; 4],
        avx512: String,
        code: Option<&CodeEntry>,
        otherwise: &str,
    ) -> Vec<Cell> {
        let avx512 = self.knows_avx512.then(|| Cell::right(avx512));
        let class = code.map_or(otherwise, |code| code.class);
        let file = code.map_or("", |code| code.file.rsplit('/').next().unwrap_or_default());
        let level = code.and_then(|code| code.level.as_deref()).unwrap_or_default();
        let level = self.model.is_some().then(|| Cell::from(level));
        let code = [Cell::from(class), Cell::from(file)];
        first.into_iter().chain(avx512).chain(code).chain(level).collect()
    }
}

/// Longest name of a group in a table (characters).
const LONGEST_NAME: usize = 24;

/// Digits of a container's identifier, as tools for containers show.
const SHOWN_DIGITS: usize = 12;

/// The end of a long path, which differs where its start does not; else the start of a name.
fn short(name: &str) -> String {
    let name = if name.chars().count() > LONGEST_NAME { name.rsplit('/').next() } else { None }
        .filter(|last| !last.is_empty())
        .unwrap_or(name);
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    let is_identifier = name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shown = if is_identifier { SHOWN_DIGITS } else { LONGEST_NAME };
    name.chars().take(shown).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_where_they_differ_least() {
        assert_eq!(short("nginx.service"), "nginx.service");
        assert_eq!(short("/a/b"), "/a/b");
        assert_eq!(short("/some/long/path/of/a/group/last"), "last");
        assert_eq!(short(&"é".repeat(25)), "é".repeat(24) + "…");
        assert_eq!(short(&format!("{}/", "x".repeat(30))), "x".repeat(24) + "…");
        assert_eq!(short(&format!("/docker/{}", "0a".repeat(32))), "0a".repeat(6) + "…");
    }
}
