//! Which processes of this host use wide SIMD code now.
//!
//! | module | what |
//! |---|---|
//! | [`look`] | what `/proc` has of all processes at one moment |
//! | [`code`] | the instruction classes of the files that a process runs code from |
//!
//! [`Host`] compares two looks. `AVX512_elapsed_ms` of `/proc/PID/arch_status` is the time since
//! the kernel last saw that a thread had values in AVX-512's registers: the upper halves of ZMM0 to
//! ZMM15, or ZMM16 to ZMM31. It looks when it takes a CPU from the thread (Linux,
//! `arch/x86/kernel/fpu/core.c`, `save_fpregs_to_fpstate`). So code of 128 and 256 bits counts as
//! well if it uses registers 16 to 31, as that of glibc's string functions does. Code that leaves
//! nothing in these registers, or is not interrupted, does not. No rights are needed.
#![forbid(unsafe_code)]

pub mod code;
pub mod look;

use std::collections::BTreeMap;
use std::time::Duration;

use dimmer_host::group::Group;
use dimmer_host::libraries;
use dimmer_host::root::Root;

use self::code::{Code, Codes, Files};
use self::look::Look;

/// The least share of a CPU of a process that counts as busy.
const BUSY: f64 = 0.01;

/// A process, and what it did between two looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name, as the kernel has it: at most 15 bytes.
    pub name: String,
    /// The user whose rights it has.
    pub user: u32,
    /// Its control group, if that is known.
    pub group: Option<Group>,
    /// The number of its threads.
    pub threads: usize,
    /// CPU time of its threads over the time between the looks: 2.0 for two whole CPUs.
    pub cpus: f64,
    /// Threads whose AVX-512 registers held values when the kernel looked last, if that was between
    /// the looks. `None` if the kernel does not say.
    pub avx512_threads: Option<usize>,
    /// Time since the kernel last saw values in AVX-512 registers of any of its threads.
    pub avx512_before: Option<Duration>,
    /// The most demanding code that it may run. `None` if that was not looked at; an error if its
    /// files cannot be read.
    pub code: Option<Result<Code, String>>,
    /// Files that it runs code from and whose code is not known: they were deleted since, as by an
    /// upgrade, or cannot be read or scanned.
    pub unknown_files: usize,
}

impl Process {
    /// Whether any thread had values in AVX-512 registers between the looks.
    #[must_use]
    pub fn uses_avx512(&self) -> bool {
        self.avx512_threads.is_some_and(|threads| threads > 0)
    }

    /// Whether it used a CPU for a noticeable time between the looks.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.cpus >= BUSY
    }
}

/// What the processes of a group did together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSum {
    /// The group's name ([`Group::name`]).
    pub name: Option<String>,
    /// The number of its processes.
    pub processes: usize,
    /// The number of their threads.
    pub threads: usize,
    /// Their CPU time over the time between the looks.
    pub cpus: f64,
    /// Processes with a thread whose AVX-512 registers held values.
    pub avx512_processes: usize,
    /// The most demanding code of those whose code was looked at.
    pub code: Option<Code>,
}

impl GroupSum {
    fn add(&mut self, process: &Process) {
        self.processes += 1;
        self.threads += process.threads;
        self.cpus += process.cpus;
        self.avx512_processes += usize::from(process.uses_avx512());
        let code = process.code.iter().flatten().next();
        if let Some(code) = code
            && self.code.as_ref().is_none_or(|most| code.class > most.class)
        {
            self.code = Some(code.clone());
        }
    }
}

/// The processes of a host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Those that use AVX-512 registers first, then by CPU time, then by number.
    pub processes: Vec<Process>,
    /// The time between the two looks.
    pub lasted: Duration,
    /// Whether the kernel says who has values in AVX-512 registers.
    pub knows_avx512: bool,
}

impl Host {
    /// What processes did between two looks. Those that ended before the second one are missing;
    /// so is the time of threads that ended.
    #[must_use]
    pub fn between(before: &Look, after: &Look) -> Self {
        let lasted = after.at.saturating_duration_since(before.at);
        let mut processes: Vec<Process> = after
            .processes
            .iter()
            .map(|(pid, seen)| {
                let earlier = before.processes.get(pid);
                let on_cpu = seen.threads.iter().map(|(thread, now)| {
                    let then = earlier.and_then(|earlier| earlier.threads.get(thread));
                    now.on_cpu.saturating_sub(then.map_or(Duration::ZERO, |then| then.on_cpu))
                });
                let on_cpu: Duration = on_cpu.sum();
                let known = seen.threads.values().any(|thread| thread.says_avx512);
                let ages = || seen.threads.values().filter_map(|thread| thread.avx512_before);
                Process {
                    pid: *pid,
                    name: seen.name.clone(),
                    user: seen.user,
                    group: seen.group.clone(),
                    threads: seen.threads.len(),
                    cpus: on_cpu.as_secs_f64() / lasted.as_secs_f64().max(1e-9),
                    avx512_threads: known.then(|| ages().filter(|age| *age <= lasted).count()),
                    avx512_before: ages().min(),
                    code: None,
                    unknown_files: 0,
                }
            })
            .collect();
        processes.sort_by(|a, b| {
            let wide = b.uses_avx512().cmp(&a.uses_avx512());
            wide.then(b.cpus.total_cmp(&a.cpus)).then(a.pid.cmp(&b.pid))
        });
        let knows_avx512 = processes.iter().any(|process| process.avx512_threads.is_some());
        Self { processes, lasted, knows_avx512 }
    }

    /// The sums over the processes of each group, in the same order. Processes without a known
    /// group are one.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupSum> {
        let mut sums: BTreeMap<Option<String>, GroupSum> = BTreeMap::new();
        for process in &self.processes {
            let name = process.group.as_ref().map(Group::name);
            sums.entry(name.clone())
                .or_insert_with(|| GroupSum { name, ..GroupSum::default() })
                .add(process);
        }
        let mut sums: Vec<GroupSum> = sums.into_values().collect();
        sums.sort_by(|a, b| {
            let wide = (b.avx512_processes > 0).cmp(&(a.avx512_processes > 0));
            wide.then(b.cpus.total_cmp(&a.cpus)).then(a.name.cmp(&b.name))
        });
        sums
    }

    /// Finds the code of the processes for which `is_wanted` holds, from files that `codes` does
    /// not know yet by scanning them on all CPUs.
    ///
    /// * `on_file`: called with each file before it is scanned; `false` ends scanning, and what is
    ///   not known then stays so.
    pub fn find_code(
        &mut self,
        root: &Root,
        codes: &mut Codes,
        is_wanted: impl Fn(&Process) -> bool,
        on_file: impl Fn(&str) -> bool + Sync,
    ) {
        let mut mapped = BTreeMap::new();
        for process in self.processes.iter().filter(|process| is_wanted(process)) {
            let files = libraries::mapped_and_deleted(root, process.pid);
            let files = files.map(|(mapped, deleted)| Files::of(mapped, deleted.len()));
            mapped.insert(process.pid, files);
        }
        codes.learn(mapped.values().flatten(), on_file);
        for process in &mut self.processes {
            match mapped.get(&process.pid) {
                None => {}
                Some(Ok(files)) => {
                    process.code = codes.most_demanding(files).map(Ok);
                    process.unknown_files = codes.unknown(files);
                }
                Some(Err(error)) => process.code = Some(Err(error.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests;
