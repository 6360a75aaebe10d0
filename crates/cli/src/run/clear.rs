//! How many of the dedicated hardware threads are used now, and that the program keeps off these, and off no others: a program whose calls stay has the
//! whole machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dimmer_host::clear::KeptOff;
use dimmer_host::process::{self, Thread};
use dimmer_host::root::Root;
use dimmer_policy::server::cores::{Cores, Settings};
use dimmer_processor::units::CpuId;

/// How often it is looked for threads that got onto used cores all the same: as they were being started when the others were kept off. Looking
/// takes some 10 us a thread.
const AGAIN: Duration = Duration::from_secs(10);

/// The dedicated hardware threads, and who is kept off them.
#[derive(Debug)]
pub(super) struct Clear {
    root: Root,
    /// Those that may be used, in the order in which they are.
    cpus: Vec<CpuId>,
    used: usize,
    /// Whether they are used, where no server says so.
    own: Cores,
    begun: Instant,
    kept_off: KeptOff,
    looked: Instant,
    /// The program, once it runs.
    program: Option<u32>,
    /// Its processes, and when they began: others may have their numbers later.
    processes: BTreeMap<u32, Option<u64>>,
}

impl Clear {
    /// None is used.
    pub(super) fn new(root: &Root, cpus: &[CpuId]) -> Self {
        let now = Instant::now();
        Self {
            root: root.clone(),
            cpus: cpus.to_vec(),
            used: 0,
            own: Cores::new(Settings::of(2), 0),
            begun: now,
            kept_off: KeptOff::new(),
            looked: now,
            program: None,
            processes: BTreeMap::new(),
        }
    }

    /// The program runs, as this process.
    pub(super) fn begin(&mut self, program: u32) {
        self.program = Some(program);
    }

    pub(super) fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// So many are dedicated by a server; where none has a say (`None`), all as long as calls move, and for a while after. How many are used from now on:
    /// the program keeps off them.
    pub(super) fn step(&mut self, dedicated: Option<usize>, is_wanted: bool) -> usize {
        let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let is_used = self.own.step(now, is_wanted) > 0;
        let used = dedicated.unwrap_or(if is_used { self.cpus.len() } else { 0 });
        self.keep_off(used.min(self.cpus.len()));
        self.used
    }

    /// Lets on all of them what is left of the program.
    pub(super) fn end(&mut self) {
        self.keep_off(0);
    }

    /// Processes of the program have called what may move: they may be no children of it any more.
    pub(super) fn know(&mut self, processes: BTreeSet<u32>) {
        for process in processes {
            let began = || process::began(&self.root, process);
            self.processes.entry(process).or_insert_with(began);
        }
    }

    fn keep_off(&mut self, used: usize) {
        let is_due = used > 0 && self.looked.elapsed() >= AGAIN;
        if used == self.used && !is_due {
            return;
        }
        (self.used, self.looked) = (used, Instant::now());
        let threads: Vec<u32> = self.threads().into_iter().map(|(_, thread)| thread).collect();
        let is_worker =
            |thread| process::name(&self.root, thread).starts_with(dimmer_runtime::WORKERS);
        self.kept_off.keep_off(&threads, &self.cpus[..used], is_worker);
    }

    fn threads(&self) -> BTreeSet<Thread> {
        let mut threads = BTreeSet::new();
        if let Some(program) = self.program {
            threads.extend(process::family(&self.root, program));
        }
        for (process, began) in &self.processes {
            if began.is_some() && process::began(&self.root, *process) == *began {
                let of_it = process::threads(&self.root, *process);
                threads.extend(of_it.into_iter().map(|thread| (*process, thread)));
            }
        }
        threads
    }
}
