//! Sets how many of the dedicated CPUs are in use now, and keeps the program's own threads off
//! these, and off no others: a program whose calls stay has the whole machine.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_host::exclusion::{ByAffinity, Exclusion};
use dimmer_host::process::{self, Thread};
use dimmer_host::root::Root;
use dimmer_policy::server::cores::{Cores, Settings};
use dimmer_processor::units::{CpuId, Nanos, Time};

use crate::cache;

/// Interval of the scan for threads that still run on CPUs in use, because they were being started
/// when the others were kept off. A scan takes some 10 us a thread.
const AGAIN: Duration = Duration::from_secs(10);

/// Where no server decides, the program keeps off its cores for this long after calls last moved: a
/// pause does not let its threads back for a moment. A guess.
const UNUSED: Nanos = Nanos::from_ms(10_000);

/// How a program's cores follow its calls where no server decides. What workers do is not reported:
/// all cores are used, or none.
const UNSERVED: Settings = Settings { unused: Some(UNUSED), ..Settings::of(2) };

/// Shorter interval after a scan that changed an affinity: it is the most likely time that new
/// threads were being started.
const SOON: Duration = Duration::from_secs(1);

/// The dedicated CPUs, and the threads that are kept off them.
#[derive(Debug)]
pub(crate) struct UsedCores {
    root: Root,
    /// The CPUs that may be used, in the order of use.
    cpus: Vec<CpuId>,
    /// All sets of CPUs that might be used at some time.
    ever: BTreeSet<Vec<CpuId>>,
    used: usize,
    /// Whether threads are still kept off other CPUs than these.
    is_outdated: bool,
    /// Whether they are used, if no server decides.
    unserved: Cores,
    begun: Instant,
    exclusion: ByAffinity,
    /// Whether the last scan has changed an affinity.
    is_changed: bool,
    looked: Instant,
    /// This process, whose only child is the program. It watches the program all the time, so its
    /// own threads are kept off as well.
    own: u32,
    /// Processes of the program and their start times, since other processes may get their ids
    /// later; `None` for those that have ended.
    processes: BTreeMap<u32, Option<u64>>,
    /// Process ids from ledgers, with the ledgers' names, for which the owner has been looked up.
    asked: BTreeSet<(u32, OsString)>,
}

impl UsedCores {
    /// Starts with no CPU in use. `directory`: that of the run.
    pub(crate) fn new(root: &Root, cpus: &[CpuId], directory: &Path) -> Self {
        let now = Instant::now();
        Self {
            root: root.clone(),
            cpus: cpus.to_vec(),
            ever: BTreeSet::from([cpus.to_vec()]),
            used: 0,
            is_outdated: false,
            unserved: Cores::new(UNSERVED, Time::START),
            begun: now,
            exclusion: by_affinity(root, directory),
            is_changed: false,
            looked: now,
            own: std::process::id(),
            processes: BTreeMap::new(),
            asked: BTreeSet::new(),
        }
    }

    pub(crate) fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Replaces the CPUs that may be used, from the next step on.
    pub(crate) fn change(&mut self, cpus: &[CpuId]) {
        if self.cpus != cpus {
            self.cpus = cpus.to_vec();
            self.ever.insert(cpus.to_vec());
            self.is_outdated = true;
        }
    }

    /// Applies the number of CPUs that a server has dedicated. If no server decides (`None`), all
    /// are used while calls move, and for [`UNUSED`] after. Returns the number in use from now on;
    /// the program keeps off these.
    pub(crate) fn step(&mut self, dedicated: Option<usize>, is_wanted: bool) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_nanos()).map_or(Time::MAX, Time::from_ns);
        let is_used = self.unserved.step(now, is_wanted) > 0;
        let used = dedicated.unwrap_or(if is_used { self.cpus.len() } else { 0 });
        self.keep_off(used.min(self.cpus.len()));
        self.used
    }

    /// Lets the remaining threads of the program back onto all CPUs.
    pub(crate) fn end(&mut self) {
        // The second pass catches threads that were being started during the first.
        for _ in 0..2 {
            if self.used > 0 || self.is_changed {
                self.look(0);
            }
        }
    }

    /// Adds a process that, according to a ledger, has called a function that may move. It may no
    /// longer be a descendant of the program. In a PID namespace of its own its id is another
    /// process's here, and the writer of the ledger may write any id. So the process counts only if
    /// it has mapped the ledger.
    pub(crate) fn know(&mut self, process: u32, ledger: &Path) {
        let name = ledger.file_name().unwrap_or_default().to_owned();
        if self.asked.insert((process, name)) {
            // In this order: if the id belongs to another process by then, that one has not mapped
            // the ledger.
            let began = process::began(&self.root, process);
            if process::has_mapped(&self.root, process, ledger) {
                self.processes.insert(process, began);
            }
        }
    }

    /// CPU time of each process of the program that is known, but not of this one. Reads one file
    /// for each that has not ended.
    pub(crate) fn on_cpu(&mut self) -> BTreeMap<u32, Nanos> {
        let mut all = BTreeMap::new();
        for (process, began) in &mut self.processes {
            if began.is_none() || *process == self.own {
                continue;
            }
            match process::on_cpu_since(&self.root, *process) {
                Some((since, on_cpu)) if Some(since) == *began => {
                    all.insert(*process, on_cpu.into());
                }
                // It has ended, and another one may have its number.
                _ => *began = None,
            }
        }
        all
    }

    fn keep_off(&mut self, used: usize) {
        // Threads that were missed when all were let back are found later: scans continue until one
        // changes nothing.
        let after = if self.is_changed { SOON } else { AGAIN };
        let is_due = (used > 0 || self.is_changed) && self.looked.elapsed() >= after;
        if used != self.used || is_due || self.is_outdated {
            self.look(used);
        }
    }

    fn look(&mut self, used: usize) {
        (self.used, self.looked, self.is_outdated) = (used, Instant::now(), false);
        let threads = self.threads();
        // Those that may run on one of the sets alone stay, unless they were kept off the others:
        // they have chosen that, or are wide for the time being. What they had before is known by
        // what they will have then.
        let is_there = |thread: &u32| {
            let may = affinity::allowed_to(*thread).unwrap_or_default();
            let is_in = |set: &Vec<CpuId>| may.iter().all(|cpu| set.contains(cpu));
            !may.is_empty()
                && !self.exclusion.is_as_left(*thread, &may)
                && self.ever.iter().any(is_in)
        };
        let threads = threads.into_iter().map(|(_, thread)| thread);
        let threads: Vec<u32> = threads.filter(|thread| !is_there(thread)).collect();
        // By affinity, nothing fails: a thread that may not be changed stays.
        let change = self.exclusion.keep_off(&self.cpus[..used], &threads);
        self.is_changed = change.is_ok_and(|change| change.is_changed);
    }

    /// The threads of this process, of the program and its descendants, and of processes found
    /// before, whose parent may have ended since.
    fn threads(&mut self) -> BTreeSet<Thread> {
        let mut threads = process::family(&self.root, self.own);
        for (process, began) in &mut self.processes {
            if threads.range((*process, 0)..=(*process, u32::MAX)).next().is_some() {
                continue;
            }
            if began.is_some() && process::began(&self.root, *process) == *began {
                threads.extend(process::family(&self.root, *process));
            } else {
                *began = None;
            }
        }
        let found: BTreeSet<u32> = threads.iter().map(|(process, _)| *process).collect();
        let began = |process| (process, process::began(&self.root, process));
        self.processes.extend(found.into_iter().map(began));
        threads
    }
}

/// Keeps off all threads but workers. The note that lists them lies in this directory: others let
/// them back if this process is killed.
fn by_affinity(root: &Root, directory: &Path) -> ByAffinity {
    let is_worker =
        |root: &Root, thread| process::name(root, thread).starts_with(dimmer_runtime::WORKERS);
    let path = directory.join(dimmer_observe::KEPT_OFF);
    let note = move |text: &str| {
        // If the note cannot be written, the threads are kept off all the same.
        let _ =
            if text.is_empty() { std::fs::remove_file(&path) } else { cache::replace(&path, text) };
    };
    ByAffinity::new(root, is_worker, Box::new(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a process with one thread, these children and this start time.
    fn write(directory: &Path, process: u32, children: &str, began: u64) {
        let proc = directory.join(format!("proc/{process}"));
        let task = proc.join(format!("task/{process}"));
        std::fs::create_dir_all(&task).unwrap();
        std::fs::write(task.join("children"), children).unwrap();
        let fields = ["0"; 18].join(" ");
        std::fs::write(proc.join("stat"), format!("{process} (a) S {fields} {began} 0")).unwrap();
    }

    #[test]
    fn cpu_time_is_that_of_the_programs_processes_until_they_have_ended() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut clear = on(root);
        write(root, 1, "20 30", 1);
        write(root, 20, "", 2);
        write(root, 30, "", 3);
        clear.threads();
        let processes = |clear: &mut UsedCores| clear.on_cpu().into_keys().collect::<Vec<_>>();
        assert_eq!(processes(&mut clear), [20, 30], "not the own one");
        std::fs::remove_dir_all(root.join("proc/20")).unwrap();
        // Another process with the same number.
        write(root, 30, "", 4);
        assert_eq!(processes(&mut clear), [0; 0]);
        write(root, 20, "", 2);
        write(root, 30, "", 3);
        assert_eq!(processes(&mut clear), [0; 0], "they are not read again");
    }

    #[test]
    fn without_a_server_cores_stay_in_use_for_a_while_after_calls_have_moved() {
        let mut cores = Cores::new(UNSERVED, Time::START);
        let mut used_at =
            |ms, is_wanted| cores.step(Time::START + Nanos::from_ms(ms), is_wanted) > 0;
        assert!(!used_at(0, false));
        assert!(used_at(100, true));
        assert!((1..100).all(|step| used_at(100 + 100 * step, false)));
        assert!(used_at(10_050, true), "again, after a pause");
        assert!((1..100).all(|step| used_at(10_050 + 100 * step, false)));
        assert!(!used_at(20_050, false));
    }

    /// The processes that are found, except this one.
    fn found(exclusion: &mut UsedCores) -> Vec<u32> {
        exclusion
            .threads()
            .into_iter()
            .map(|(process, _)| process)
            .filter(|one| *one != 1)
            .collect()
    }

    fn on(directory: &Path) -> UsedCores {
        UsedCores { own: 1, ..UsedCores::new(&Root::new(directory), &[], directory) }
    }

    #[test]
    fn what_was_found_once_is_found_without_its_parent_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut clear = on(root);
        write(root, 1, "20", 1);
        write(root, 20, "30", 2);
        write(root, 30, "", 3);
        assert_eq!(found(&mut clear), [20, 30]);
        write(root, 1, "", 1);
        std::fs::remove_dir_all(root.join("proc/20")).unwrap();
        write(root, 30, "50", 3);
        write(root, 50, "", 6);
        assert_eq!(found(&mut clear), [30, 50]);
        write(root, 30, "", 3);
        assert_eq!(found(&mut clear), [30, 50]);
        std::fs::remove_dir_all(root.join("proc/50")).unwrap();
        // Another process with the same id.
        write(root, 30, "", 4);
        assert_eq!(found(&mut clear), [0; 0]);
        write(root, 30, "", 3);
        assert_eq!(found(&mut clear), [0; 0]);
        write(root, 1, "30", 1);
        assert_eq!(found(&mut clear), [30]);
    }

    #[test]
    fn a_number_in_a_ledger_counts_only_for_who_has_that_in_its_memory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let mut clear = on(root);
        write(root, 1, "", 1);
        let ledger = Path::new("/dev/shm/dimmer-a1/7-0.ledger");
        for (process, maps) in [
            (40, "00400000-00452000 r-xp 00000000 08:02 173521 /bin/dash\n"),
            (41, "7f00-7f01 rw-s 00000000 00:1b 12 /dev/shm/dimmer-a1/7-0.ledger\n"),
            (42, "7f00-7f01 rw-s 00000000 00:1b 12 /dimmer-a1/7-0.ledger (deleted)\n"),
            (43, "7f00-7f01 rw-s 00000000 00:1b 12 /dev/shm/dimmer-b2/7-0.ledger\n"),
        ] {
            write(root, process, "", 5);
            std::fs::write(root.join(format!("proc/{process}/maps")), maps).unwrap();
            clear.know(process, ledger);
        }
        clear.know(44, ledger);
        assert_eq!(found(&mut clear), [41, 42]);
    }
}
