//! Which CPUs are wide now: those that a policy server gives all programs that ask for cores, or
//! the run's own, if there is no server that gives any.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dimmer_host::root::format_cpu_list;
use dimmer_observe::Tally;
use dimmer_processor::units::CpuId;
use dimmer_protocol::Hello;

use crate::account::WideTimes;
use crate::mechanism::Setup;
use crate::named::Planned;
use crate::note::{Note, Notes, WideFrom};
use crate::served::Served;

/// The CPUs that may be wide, and those that are.
#[derive(Debug)]
pub(crate) struct WideCores {
    /// The program's CPUs.
    allowed: Vec<CpuId>,
    /// The sets that the program knows, each in ascending order: the run's own first, then the
    /// first CPU of the server that was there at the start, its first two, and so on.
    sets: Vec<Vec<CpuId>>,
    /// `None` if the user has named the CPUs.
    served: Option<Served>,
    now: Now,
    since: Instant,
    times: WideTimes,
    /// All CPUs that were wide at some time.
    ever: BTreeSet<CpuId>,
    /// The server's CPUs of which the user was informed that threads do not go there.
    told: Vec<CpuId>,
}

/// Whose CPUs are wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// The run's own.
    Own,
    /// The server's, the set of this number; `None`: it gives none now.
    Servers(Option<usize>),
}

impl WideCores {
    /// Asks a server for cores, if one listens and the user has named none. `own`: the CPUs that
    /// are wide without a server.
    pub(crate) fn begin(
        setup: &Setup<'_>,
        own: Vec<CpuId>,
        allowed: Vec<CpuId>,
        functions: &[Planned],
    ) -> Self {
        let is_named = setup.request.cpus.is_some();
        let ask = || Served::ask(|name| Hello::Ask { name }, setup.program, functions);
        let served = (!is_named).then(ask);
        let its = served.as_ref().map(Served::cores).unwrap_or_default();
        Self::new(own, allowed, served, &its)
    }

    fn new(own: Vec<CpuId>, allowed: Vec<CpuId>, served: Option<Served>, its: &[CpuId]) -> Self {
        let its = usable(its, &allowed);
        let now = if its.is_empty() { Now::Own } else { Now::Servers(None) };
        let mut sets = vec![ascending(&own)];
        for count in 1..=its.len() {
            let set = ascending(&its[..count]);
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        let times = WideTimes { is_named: served.is_none(), ..WideTimes::default() };
        let (ever, told) = (BTreeSet::new(), Vec::new());
        Self { allowed, sets, served, now, since: Instant::now(), times, ever, told }
    }

    /// The sets, for the program.
    pub(crate) fn to_text(&self) -> String {
        let lists: Vec<String> = self.sets.iter().map(|set| format_cpu_list(set)).collect();
        lists.join("/")
    }

    /// The number of the set that is wide now; `None` if no CPU is.
    pub(crate) const fn set(&self) -> Option<usize> {
        match self.now {
            Now::Own => Some(0),
            Now::Servers(set) => set,
        }
    }

    /// The wide CPUs.
    pub(crate) fn cpus(&self) -> &[CpuId] {
        self.set().map_or(&[], |set| &self.sets[set])
    }

    /// The number of CPUs that the server gives now; `None` if they are the run's own.
    pub(crate) fn given(&self) -> Option<usize> {
        (self.now != Now::Own).then(|| self.cpus().len())
    }

    /// The CPUs that threads may go to, as far as known: all of the server's, or the run's own.
    pub(crate) fn may(&self) -> &[CpuId] {
        let set = if self.now == Now::Own { self.sets.first() } else { self.sets.last() };
        set.map_or(&[], Vec::as_slice)
    }

    /// Notes whose CPUs are wide, unless the user has named them.
    pub(crate) fn note(&mut self, notes: &mut Notes<'_>) {
        let Some(served) = &self.served else { return };
        let its = served.cores();
        let from = if self.now != Now::Own {
            WideFrom::Server
        } else if !served.is_there() {
            WideFrom::NoServer
        } else if its.is_empty() {
            WideFrom::ServerHasNone
        } else {
            return self.note_elsewhere(its, notes);
        };
        notes(Note::WideCpus { from });
    }

    /// Reports a function's calls to the server.
    pub(crate) fn tell(&self, function: usize, calls: &Tally) {
        if let Some(served) = &self.served {
            served.tell_calls(function, calls);
        }
    }

    /// Follows the server. Call it after the calls of all functions were told. `wide`: how long
    /// threads were on wide CPUs since the last step, all of them together.
    pub(crate) fn step(&mut self, wide: Duration, notes: &mut Notes<'_>) {
        self.count();
        let servers = matches!(self.now, Now::Servers(Some(_)));
        let Some(served) = &mut self.served else { return };
        served.tend();
        served.add_wide(if servers { wide } else { Duration::ZERO });
        served.publish();
        let given = served.given();
        self.follow(given, notes);
    }

    /// Takes what a server gives; `None`: there is none that could give any.
    fn follow(&mut self, given: Option<Vec<CpuId>>, notes: &mut Notes<'_>) {
        let set = |given: &Vec<CpuId>| {
            let its = ascending(&usable(given, &self.allowed));
            self.sets.iter().position(|set| *set == its)
        };
        self.now = match given {
            None => Now::Own,
            Some(none) if none.is_empty() => Now::Servers(None),
            Some(given) => match set(&given) {
                Some(set) => Now::Servers(Some(set)),
                None => {
                    self.note_elsewhere(given, notes);
                    Now::Own
                }
            },
        };
    }

    fn note_elsewhere(&mut self, server: Vec<CpuId>, notes: &mut Notes<'_>) {
        if self.told != server {
            self.told.clone_from(&server);
            let own = self.sets[0].clone();
            notes(Note::WideCpus { from: WideFrom::ServerElsewhere { server, own } });
        }
    }

    /// Counts the time since the last step, for what was wide then.
    fn count(&mut self) {
        let passed = self.since.elapsed();
        self.since = Instant::now();
        let time = match self.now {
            Now::Own => &mut self.times.own,
            Now::Servers(Some(_)) => &mut self.times.server,
            Now::Servers(None) => &mut self.times.none,
        };
        *time += passed;
        let cpus = self.cpus().to_vec();
        self.ever.extend(cpus);
    }

    /// All CPUs that were wide at some time, and whose they were.
    pub(crate) fn end(mut self) -> (Vec<CpuId>, WideTimes) {
        self.count();
        (self.ever.into_iter().collect(), self.times)
    }
}

/// Those of a server's CPUs that threads can go to: the first that the program may use, and not all
/// of the program's.
fn usable(its: &[CpuId], allowed: &[CpuId]) -> Vec<CpuId> {
    let most = allowed.len().saturating_sub(1);
    its.iter().take_while(|cpu| allowed.contains(cpu)).take(most).copied().collect()
}

fn ascending(cpus: &[CpuId]) -> Vec<CpuId> {
    let cpus: BTreeSet<CpuId> = cpus.iter().copied().collect();
    cpus.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: impl IntoIterator<Item = u32>) -> Vec<CpuId> {
        numbers.into_iter().map(CpuId::new).collect()
    }

    fn wide(its: &[u32]) -> WideCores {
        WideCores::new(cpus([7]), cpus(0..8), None, &cpus(its.iter().copied()))
    }

    #[test]
    fn the_servers_cpus_are_wide_as_long_as_it_gives_them() {
        let mut wide = wide(&[7, 3, 6]);
        assert_eq!(wide.to_text(), "7/3,7/3,6-7");
        assert_eq!((wide.set(), wide.given(), wide.may()), (None, Some(0), &cpus([3, 6, 7])[..]));
        let mut notes = Vec::new();
        let mut follow = |given: Option<&[u32]>| {
            let given = given.map(|given| cpus(given.iter().copied()));
            wide.follow(given, &mut |note| notes.push(note));
            (wide.set(), wide.given(), wide.cpus().to_vec())
        };
        assert_eq!(follow(Some(&[7, 3])), (Some(1), Some(2), cpus([3, 7])));
        assert_eq!(follow(Some(&[7])), (Some(0), Some(1), cpus([7])));
        assert_eq!(follow(Some(&[])), (None, Some(0), vec![]));
        // It has ended, and another dedicates CPUs that the program does not know.
        assert_eq!(follow(None), (Some(0), None, cpus([7])));
        for _ in 0..2 {
            assert_eq!(follow(Some(&[2])), (Some(0), None, cpus([7])));
        }
        assert_eq!(follow(Some(&[7, 3, 6])), (Some(2), Some(3), cpus([3, 6, 7])));
        let [Note::WideCpus { from: WideFrom::ServerElsewhere { server, own } }] = &notes[..]
        else {
            panic!("{notes:?}");
        };
        assert_eq!((server, own), (&cpus([2]), &cpus([7])));
    }

    #[test]
    fn cpus_that_a_program_may_not_use_and_its_last_one_are_never_wide() {
        assert_eq!(wide(&[9, 7]).to_text(), "7");
        assert_eq!(wide(&[9]).now, Now::Own);
        let all: Vec<u32> = (0..8).collect();
        assert_eq!(wide(&all).to_text(), "7/0/0-1/0-2/0-3/0-4/0-5/0-6");
    }

    #[test]
    fn time_counts_for_whose_cpus_were_wide() {
        let mut wide = wide(&[6]);
        for given in [None, Some(vec![]), Some(cpus([6]))] {
            std::thread::sleep(Duration::from_millis(1));
            wide.count();
            wide.follow(given, &mut |_| ());
        }
        std::thread::sleep(Duration::from_millis(1));
        let (ever, times) = wide.end();
        assert_eq!((ever, times.is_named), (cpus([6, 7]), true));
        let least = Duration::from_millis(1);
        assert!(times.own >= least && times.none >= 2 * least && times.server >= least);
    }
}
