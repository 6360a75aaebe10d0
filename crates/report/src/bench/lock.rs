//! `dimmer bench dev lock`: locks of this project beside others. `docs/bench-json.md` describes the
//! keys.

use dimmer_bench::lock::{Contended, LINES, Lock, Locks, OfLock, Pictures};
use dimmer_host::root::format_cpu_list;
use dimmer_probe::stats::Samples;
use serde::Serialize;

use crate::estimate::Measured;
use crate::number::grouped;
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/bench-lock/1`.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    cpus: String,
    worker_cpu: Option<u32>,
    fast_cpu: Option<u32>,
    asks_by: Option<&'static str>,
    rounds: u32,
    locks: Vec<LockJson>,
}

/// One lock.
#[derive(Debug, Serialize)]
struct LockJson {
    lock: &'static str,
    uncontended_ns: Option<Measured>,
    uncontended_ratio: Option<Measured>,
    contended: Vec<ContendedJson>,
    raytrace: Vec<RaytraceJson>,
}

/// The ray tracer with a number of threads.
#[derive(Debug, Serialize)]
struct RaytraceJson {
    threads: u32,
    picture_ms: Option<Measured>,
    picture_ratio: Option<Measured>,
}

/// A number of threads and what they do.
#[derive(Debug, Serialize)]
struct ContendedJson {
    threads: u32,
    hold_ns: u32,
    gap_ns: u32,
    sections_per_s: Option<Measured>,
    sections_ratio: Option<Measured>,
    least_ratio: Option<Measured>,
    most_ratio: Option<Measured>,
}

/// The name in documents and JSON.
const fn name(lock: Lock) -> &'static str {
    match lock {
        Lock::Pthread => "pthread",
        Lock::Std => "std",
        Lock::ParkingLot => "parking_lot",
        Lock::Word => "mutex",
        Lock::Decorated => "decorated",
        Lock::Migrated => "mgrt",
        Lock::Neighbour => "dlgt",
        Lock::Mcs => "mcs",
        Lock::Delegated => "delegated",
        Lock::Batched => "batched",
        Lock::Combining => "combining",
    }
}

/// What it is.
const fn description(lock: Lock) -> &'static str {
    match lock {
        Lock::Pthread => "pthread_mutex_t of the C library",
        Lock::Std => "std::sync::Mutex",
        Lock::ParkingLot => "parking_lot::Mutex",
        Lock::Word => "dimmer_locks::Mutex, without decoration",
        Lock::Decorated => "the same with the strategy ownr, whose acts do nothing here",
        Lock::Migrated => "the same with the strategy mgrt: the owner goes to another CPU and back",
        Lock::Neighbour => "the same with the strategy dlgt: another thread makes the requests",
        Lock::Mcs => "dimmer_locks::McsMutex, a fair queue",
        Lock::Delegated => "dimmer_locks::Delegated: a worker executes the sections",
        Lock::Batched => "the same, and all answers to a group of threads are written at once",
        Lock::Combining => "dimmer_locks::Combining: one thread executes those of all that wait",
    }
}

fn measured(values: impl Iterator<Item = f64>) -> Option<Measured> {
    values.collect::<Samples>().estimate().map(Measured::new)
}

impl Report {
    /// `rounds`: the number that was asked for.
    pub fn new(locks: &Locks, rounds: u32) -> Self {
        let of = |lock| locks.locks.iter().find(|own| own.lock == lock);
        let (rival, usual) = (of(Lock::ParkingLot), of(Lock::Pthread));
        Self {
            schema: "dimmer/bench-lock/1",
            cpus: format_cpu_list(&locks.cpus),
            worker_cpu: locks.worker.map(|cpu| cpu.index()),
            fast_cpu: locks.fast.map(|cpu| cpu.index()),
            asks_by: locks.asks_by,
            rounds,
            locks: locks.locks.iter().map(|own| LockJson::new(own, rival, usual)).collect(),
        }
    }

    /// The results as text.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = format!(
            "Threads on CPUs {}, {} rounds; [..] holds the true median with 95 %.\n",
            self.cpus, self.rounds
        );
        text += &match self.worker_cpu {
            Some(cpu) => format!(
                "The worker of delegated sections runs on CPU {cpu}, their callers on the others.\n"
            ),
            None => "No worker runs here, so delegated sections run where they are.\n".to_owned(),
        };
        text += &match self.fast_cpu {
            Some(cpu) => format!(
                "With mgrt, threads run on the other CPUs, and the owner goes to CPU {cpu} and back.\n"
            ),
            None => "There is one CPU, so with mgrt the owner stays.\n".to_owned(),
        };
        text += &match self.asks_by {
            Some(by) => format!("With dlgt and mgrt, clocks are requested by {by}.\n"),
            None => "No clock can be requested here: mgrt is the way there and back alone,\n\
                 and dlgt what a request costs that nothing takes.\n"
                .to_owned(),
        };
        text += "\nA thread without others; the section is empty:\n\n";
        text += &self.alone(screen);
        for ContendedJson { threads, hold_ns, gap_ns, .. } in
            self.locks.first().iter().flat_map(|lock| &lock.contended)
        {
            let whose = if *threads == 1 { "thread whose" } else { "threads whose" };
            let computes = match (hold_ns, gap_ns) {
                (0, 0) => String::new(),
                (hold, gap) => format!(", and compute {hold} ns, then {gap} ns without the lock"),
            };
            text +=
                &format!("\n{threads} {whose} sections write {LINES} cache lines{computes}:\n\n");
            text += &self.contended((*threads, *hold_ns, *gap_ns), screen);
        }
        text += "\nA ray tracer, whose threads share a queue, a counter and a histogram; each picture was\n\
                 checked:\n\n";
        text += &self.raytrace(screen);
        text += "\n";
        for lock in Lock::ALL {
            text += &format!("{:<13}{}\n", name(lock), description(lock));
        }
        text
    }

    fn alone(&self, screen: Screen) -> String {
        let heads = ["lock", "ns", "of parking_lot"];
        let mut table = Table::new(heads);
        for lock in &self.locks {
            let cells = [interval(lock.uncontended_ns, 1.0, 1), ratio(lock.uncontended_ratio)];
            table.row([Cell::from(lock.lock)].into_iter().chain(cells.map(Cell::from)));
        }
        table.render(screen)
    }

    fn raytrace(&self, screen: Screen) -> String {
        let threads = |lock: &LockJson| lock.raytrace.iter().map(|own| own.threads).collect();
        let threads: Vec<u32> = self
            .locks
            .iter()
            .find_map(|lock| Some(threads(lock)).filter(|threads: &Vec<u32>| !threads.is_empty()))
            .unwrap_or_default();
        let of_threads = |threads: &u32| {
            let plural = if *threads == 1 { "" } else { "s" };
            [format!("{threads} thread{plural}, ms"), "of pthread".to_owned()]
        };
        let heads = threads.iter().flat_map(of_threads);
        let mut table = Table::new(["lock".to_owned()].into_iter().chain(heads));
        for lock in self.locks.iter().filter(|lock| !lock.raytrace.is_empty()) {
            let cells = lock.raytrace.iter().flat_map(|own| {
                [interval(own.picture_ms, 1.0, 2), ratio(own.picture_ratio)].map(Cell::from)
            });
            table.row([Cell::from(lock.lock)].into_iter().chain(cells));
        }
        table.render(screen)
    }

    fn contended(&self, of: (u32, u32, u32), screen: Screen) -> String {
        let heads = ["lock", "million/s", "of parking_lot", "least", "most"];
        let mut table = Table::new(heads);
        for lock in &self.locks {
            let is_of = |own: &&ContendedJson| (own.threads, own.hold_ns, own.gap_ns) == of;
            let Some(own) = lock.contended.iter().find(is_of) else { continue };
            let of_mean = |part: Option<Measured>| {
                part.map_or_else(|| "-".to_owned(), |part| grouped(part.median, 2))
            };
            let cells = [
                interval(own.sections_per_s, 1e-6, decimals(own.sections_per_s, 0.1e6)),
                ratio(own.sections_ratio),
                of_mean(own.least_ratio),
                of_mean(own.most_ratio),
            ];
            table.row([Cell::from(lock.lock)].into_iter().chain(cells.map(Cell::from)));
        }
        table.render(screen)
    }
}

impl LockJson {
    /// `rival`: what it is compared with. `usual`: what the ray tracer has without Dimmer.
    fn new(own: &OfLock, rival: Option<&OfLock>, usual: Option<&OfLock>) -> Self {
        let ratios = rival.and_then(|rival| {
            measured(own.alone_ns.iter().zip(&rival.alone_ns).map(|(own, other)| own / other))
        });
        let contended = own.contended.iter().map(|own| {
            let rival = rival.and_then(|rival| {
                let is_like =
                    |other: &&Contended| (other.threads, other.load) == (own.threads, own.load);
                rival.contended.iter().find(is_like)
            });
            ContendedJson::new(own, rival)
        });
        let raytrace = own.pictures.iter().map(|own| {
            let is_like = |other: &&Pictures| other.threads == own.threads;
            RaytraceJson::new(own, usual.and_then(|usual| usual.pictures.iter().find(is_like)))
        });
        Self {
            lock: name(own.lock),
            uncontended_ns: measured(own.alone_ns.iter().copied()),
            uncontended_ratio: ratios,
            contended: contended.collect(),
            raytrace: raytrace.collect(),
        }
    }
}

impl RaytraceJson {
    fn new(own: &Pictures, usual: Option<&Pictures>) -> Self {
        let ratio = usual.and_then(|usual| {
            measured(own.ms.iter().zip(&usual.ms).map(|(own, other)| own / other))
        });
        let picture_ms = measured(own.ms.iter().copied());
        Self { threads: own.threads, picture_ms, picture_ratio: ratio }
    }
}

impl ContendedJson {
    fn new(own: &Contended, rival: Option<&Contended>) -> Self {
        let estimate = |samples: Samples| samples.estimate().map(Measured::new);
        let ratio = rival.and_then(|rival| {
            let pairs = own.turns.iter().zip(&rival.turns);
            measured(pairs.map(|(own, other)| own.per_second / other.per_second))
        });
        Self {
            threads: own.threads,
            hold_ns: own.load.hold_ns,
            gap_ns: own.load.gap_ns,
            sections_per_s: estimate(own.each(|turn| turn.per_second)),
            sections_ratio: ratio,
            least_ratio: estimate(own.each(|turn| turn.least)),
            most_ratio: estimate(own.each(|turn| turn.most)),
        }
    }
}

/// A median with its interval.
fn interval(measured: Option<Measured>, scale: f64, decimals: usize) -> String {
    measured.map_or_else(
        || "-".to_owned(),
        |Measured { median, ci95: (low, high) }| {
            let [median, low, high] =
                [median, low, high].map(|value| grouped(value * scale, decimals));
            format!("{median} [{low}, {high}]")
        },
    )
}

fn ratio(measured: Option<Measured>) -> String {
    interval(measured, 1.0, decimals(measured, 0.1))
}

/// More decimals for what is smaller than this.
fn decimals(measured: Option<Measured>, small: f64) -> usize {
    if measured.is_some_and(|measured| measured.median < small) { 4 } else { 2 }
}

#[cfg(test)]
mod tests {
    use dimmer_bench::lock::{Load, Turn};
    use dimmer_processor::units::CpuId;
    use expect_test::{Expect, expect};

    use super::*;

    /// Three locks, three rounds, one and two threads.
    fn locks(worker: Option<u32>) -> Locks {
        let own = |lock, ns: f64, per_second: f64, least: f64| OfLock {
            lock,
            alone_ns: vec![ns, ns + 1.0, ns + 2.0],
            contended: [1, 2]
                .map(|threads| {
                    let turn = |more| Turn {
                        per_second: per_second / f64::from(threads) + more,
                        least: if threads == 1 { 1.0 } else { least },
                        most: if threads == 1 { 1.0 } else { 2.0 - least },
                    };
                    let load = Load { hold_ns: 0, gap_ns: 100 * (threads - 1) };
                    Contended { threads, load, turns: [0.0, 1e5, 2e5].map(turn).to_vec() }
                })
                .to_vec(),
            pictures: [1, 2]
                .map(|threads| Pictures { threads, ms: vec![ns / f64::from(threads); 3] })
                .to_vec(),
        };
        Locks {
            cpus: vec![CpuId::new(0), CpuId::new(1)],
            worker: worker.map(CpuId::new),
            fast: worker.map(CpuId::new),
            asks_by: worker.map(|_| "cpufreq"),
            locks: vec![
                own(Lock::Pthread, 10.0, 40e6, 0.5),
                own(Lock::ParkingLot, 10.0, 40e6, 0.5),
                own(Lock::Mcs, 20.0, 10e6, 1.0),
            ],
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &Expect) {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        expected.assert_eq(&(lines.join("\n") + "\n"));
    }

    #[test]
    fn the_text_has_each_lock_beside_parking_lot() {
        check(
            &Report::new(&locks(Some(1)), 3).text(Screen::file(100)),
            &expect![[r#"
                Threads on CPUs 0-1, 3 rounds; [..] holds the true median with 95 %.
                The worker of delegated sections runs on CPU 1, their callers on the others.
                With mgrt, threads run on the other CPUs, and the owner goes to CPU 1 and back.
                With dlgt and mgrt, clocks are requested by cpufreq.

                A thread without others; the section is empty:

                lock         ns                 of parking_lot
                pthread      11.0 [10.0, 12.0]  1.00 [1.00, 1.00]
                parking_lot  11.0 [10.0, 12.0]  1.00 [1.00, 1.00]
                mcs          21.0 [20.0, 22.0]  1.91 [1.83, 2.00]

                1 thread whose sections write 4 cache lines:

                lock         million/s             of parking_lot     least  most
                pthread      40.10 [40.00, 40.20]  1.00 [1.00, 1.00]  1.00   1.00
                parking_lot  40.10 [40.00, 40.20]  1.00 [1.00, 1.00]  1.00   1.00
                mcs          10.10 [10.00, 10.20]  0.25 [0.25, 0.25]  1.00   1.00

                2 threads whose sections write 4 cache lines, and compute 0 ns, then 100 ns without the lock:

                lock         million/s             of parking_lot     least  most
                pthread      20.10 [20.00, 20.20]  1.00 [1.00, 1.00]  0.50   1.50
                parking_lot  20.10 [20.00, 20.20]  1.00 [1.00, 1.00]  0.50   1.50
                mcs          5.10 [5.00, 5.20]     0.25 [0.25, 0.26]  1.00   1.00

                A ray tracer, whose threads share a queue, a counter and a histogram; each picture was
                checked:

                lock         1 thread, ms          of pthread         2 threads, ms         of pthread
                pthread      10.00 [10.00, 10.00]  1.00 [1.00, 1.00]  5.00 [5.00, 5.00]     1.00 [1.00, 1.00]
                parking_lot  10.00 [10.00, 10.00]  1.00 [1.00, 1.00]  5.00 [5.00, 5.00]     1.00 [1.00, 1.00]
                mcs          20.00 [20.00, 20.00]  2.00 [2.00, 2.00]  10.00 [10.00, 10.00]  2.00 [2.00, 2.00]

                pthread      pthread_mutex_t of the C library
                std          std::sync::Mutex
                parking_lot  parking_lot::Mutex
                mutex        dimmer_locks::Mutex, without decoration
                decorated    the same with the strategy ownr, whose acts do nothing here
                mgrt         the same with the strategy mgrt: the owner goes to another CPU and back
                dlgt         the same with the strategy dlgt: another thread makes the requests
                mcs          dimmer_locks::McsMutex, a fair queue
                delegated    dimmer_locks::Delegated: a worker executes the sections
                batched      the same, and all answers to a group of threads are written at once
                combining    dimmer_locks::Combining: one thread executes those of all that wait
            "#]],
        );
    }

    #[test]
    fn without_a_worker_the_text_has_it() {
        let text = Report::new(&locks(None), 3).text(Screen::file(100));
        assert!(text.contains("No worker runs here"), "{text}");
        assert!(text.contains("with mgrt the owner stays"), "{text}");
        assert!(text.contains("No clock can be requested here"), "{text}");
    }

    #[test]
    fn the_document_compares_round_by_round() {
        let json = serde_json::to_value(Report::new(&locks(Some(1)), 3)).unwrap();
        let mcs = &json["locks"][2];
        assert_eq!(mcs["lock"], "mcs");
        assert_eq!(mcs["uncontended_ns"]["median"], 21.0);
        assert_eq!(mcs["uncontended_ratio"]["median"], 21.0 / 11.0);
        let two = &mcs["contended"][1];
        assert_eq!((&two["threads"], &two["least_ratio"]["median"]), (&2.into(), &1.0.into()));
        assert_eq!(two["sections_ratio"]["median"], 5.1e6 / 20.1e6);
        assert_eq!((&two["hold_ns"], &two["gap_ns"]), (&0.into(), &100.into()));
        let drawn = &mcs["raytrace"][1];
        assert_eq!((&drawn["threads"], &drawn["picture_ms"]["median"]), (&2.into(), &10.0.into()));
        assert_eq!(drawn["picture_ratio"]["median"], 2.0);
        assert_eq!((&json["worker_cpu"], &json["cpus"]), (&1.into(), &"0-1".into()));
        assert_eq!((&json["fast_cpu"], &json["asks_by"]), (&1.into(), &"cpufreq".into()));
    }
}
