//! `dimmer bench dev lock`: locks of this project beside others. `docs/bench-json.md` describes the
//! keys.

use dimmer_bench::lock::{Contended, LINES, Lock, Locks, OfLock};
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
}

/// A number of threads.
#[derive(Debug, Serialize)]
struct ContendedJson {
    threads: u32,
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
        Lock::Combining => "dimmer_locks::Combining: one thread executes those of all that wait",
    }
}

fn measured(values: impl Iterator<Item = f64>) -> Option<Measured> {
    values.collect::<Samples>().estimate().map(Measured::new)
}

impl Report {
    /// `rounds`: the number that was asked for.
    pub fn new(locks: &Locks, rounds: u32) -> Self {
        let rival = locks.locks.iter().find(|own| own.lock == Lock::ParkingLot);
        Self {
            schema: "dimmer/bench-lock/1",
            cpus: format_cpu_list(&locks.cpus),
            worker_cpu: locks.worker.map(|cpu| cpu.index()),
            fast_cpu: locks.fast.map(|cpu| cpu.index()),
            asks_by: locks.asks_by,
            rounds,
            locks: locks.locks.iter().map(|own| LockJson::new(own, rival)).collect(),
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
        for contended in self.locks.first().iter().flat_map(|lock| &lock.contended) {
            let threads = contended.threads;
            let whose = if threads == 1 { "thread whose" } else { "threads whose" };
            text += &format!("\n{threads} {whose} sections write {LINES} cache lines:\n\n");
            text += &self.contended(threads, screen);
        }
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

    fn contended(&self, threads: u32, screen: Screen) -> String {
        let heads = ["lock", "million/s", "of parking_lot", "least", "most"];
        let mut table = Table::new(heads);
        for lock in &self.locks {
            let Some(own) = lock.contended.iter().find(|own| own.threads == threads) else {
                continue;
            };
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
    /// `rival`: what it is compared with.
    fn new(own: &OfLock, rival: Option<&OfLock>) -> Self {
        let ratios = rival.and_then(|rival| {
            measured(own.alone_ns.iter().zip(&rival.alone_ns).map(|(own, other)| own / other))
        });
        let contended = own.contended.iter().map(|own| {
            let rival = rival.and_then(|rival| {
                rival.contended.iter().find(|other| other.threads == own.threads)
            });
            ContendedJson::new(own, rival)
        });
        Self {
            lock: name(own.lock),
            uncontended_ns: measured(own.alone_ns.iter().copied()),
            uncontended_ratio: ratios,
            contended: contended.collect(),
        }
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
    use dimmer_bench::lock::Turn;
    use dimmer_processor::units::CpuId;
    use expect_test::{Expect, expect};

    use super::*;

    /// Two locks, three rounds, one and two threads.
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
                    Contended { threads, turns: [0.0, 1e5, 2e5].map(turn).to_vec() }
                })
                .to_vec(),
        };
        Locks {
            cpus: vec![CpuId::new(0), CpuId::new(1)],
            worker: worker.map(CpuId::new),
            fast: worker.map(CpuId::new),
            asks_by: worker.map(|_| "cpufreq"),
            locks: vec![own(Lock::ParkingLot, 10.0, 40e6, 0.5), own(Lock::Mcs, 20.0, 10e6, 1.0)],
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
            parking_lot  11.0 [10.0, 12.0]  1.00 [1.00, 1.00]
            mcs          21.0 [20.0, 22.0]  1.91 [1.83, 2.00]

            1 thread whose sections write 4 cache lines:

            lock         million/s             of parking_lot     least  most
            parking_lot  40.10 [40.00, 40.20]  1.00 [1.00, 1.00]  1.00   1.00
            mcs          10.10 [10.00, 10.20]  0.25 [0.25, 0.25]  1.00   1.00

            2 threads whose sections write 4 cache lines:

            lock         million/s             of parking_lot     least  most
            parking_lot  20.10 [20.00, 20.20]  1.00 [1.00, 1.00]  0.50   1.50
            mcs          5.10 [5.00, 5.20]     0.25 [0.25, 0.26]  1.00   1.00

            pthread      pthread_mutex_t of the C library
            std          std::sync::Mutex
            parking_lot  parking_lot::Mutex
            mutex        dimmer_locks::Mutex, without decoration
            decorated    the same with the strategy ownr, whose acts do nothing here
            mgrt         the same with the strategy mgrt: the owner goes to another CPU and back
            dlgt         the same with the strategy dlgt: another thread makes the requests
            mcs          dimmer_locks::McsMutex, a fair queue
            delegated    dimmer_locks::Delegated: a worker executes the sections
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
        let mcs = &json["locks"][1];
        assert_eq!(mcs["lock"], "mcs");
        assert_eq!(mcs["uncontended_ns"]["median"], 21.0);
        assert_eq!(mcs["uncontended_ratio"]["median"], 21.0 / 11.0);
        let two = &mcs["contended"][1];
        assert_eq!((&two["threads"], &two["least_ratio"]["median"]), (&2.into(), &1.0.into()));
        assert_eq!(two["sections_ratio"]["median"], 5.1e6 / 20.1e6);
        assert_eq!((&json["worker_cpu"], &json["cpus"]), (&1.into(), &"0-1".into()));
        assert_eq!((&json["fast_cpu"], &json["asks_by"]), (&1.into(), &"cpufreq".into()));
    }
}
