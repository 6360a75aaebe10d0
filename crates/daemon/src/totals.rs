//! What programs did since the server started, summed up by program and unit, for metrics.
//!
//! A sum outlives the clients that it came from, so a counter neither vanishes nor goes back. The
//! number of sums is limited: what further programs do is added to one sum for all of them, and so
//! is what programs of a user do who has half of what other users leave.

use std::collections::BTreeMap;

use dimmer_host::group::Group;
use dimmer_watch::state::Program;

use crate::clients::Seen;

/// The name and unit of the sum for all programs that have none of their own.
pub const OTHER: &str = "other";

/// Sums by program and unit.
#[derive(Clone, Debug)]
pub struct Totals {
    /// The first is the one for all others.
    programs: Vec<Program>,
    places: BTreeMap<(String, String), usize>,
    /// The number of sums that a user's clients were the first of.
    of_user: BTreeMap<u32, usize>,
}

impl Default for Totals {
    fn default() -> Self {
        let other = Program { program: OTHER.into(), unit: OTHER.into(), ..Program::default() };
        Self { programs: vec![other], places: BTreeMap::new(), of_user: BTreeMap::new() }
    }
}

impl Totals {
    /// Counts a client of this user, and returns the place of its sum. At most `most` programs have
    /// a sum of their own.
    pub fn join(&mut self, user: u32, program: &str, unit: &str, most: usize) -> usize {
        let key = (program.to_owned(), unit.to_owned());
        let known = self.places.get(&key).copied();
        let place = known.or_else(|| self.add(user, key, most)).unwrap_or(0);
        self.programs[place].connections += 1;
        place
    }

    fn add(&mut self, user: u32, key: (String, String), most: usize) -> Option<usize> {
        let own = self.of_user.get(&user).copied().unwrap_or(0);
        let left = most.saturating_sub(self.places.len() - own);
        // Root's programs are the machine's own.
        let allowed = if user == 0 { left } else { left.div_ceil(2) };
        if own >= allowed {
            return None;
        }
        *self.of_user.entry(user).or_default() += 1;
        let (program, unit) = key.clone();
        let place = self.programs.len();
        self.programs.push(Program { program, unit, ..Program::default() });
        self.places.insert(key, place);
        Some(place)
    }

    /// Adds what a client did since the last look at it.
    pub fn add_seen(&mut self, place: usize, seen: &Seen) {
        let Some(program) = self.programs.get_mut(place) else { return };
        for (_, window) in &seen.windows {
            program.calls = program.calls.saturating_add(window.calls);
            program.moved = program.moved.saturating_add(window.moved_calls);
            program.region_ns = program.region_ns.saturating_add(window.in_region_ns);
        }
        program.done = program.done.saturating_add(seen.done);
        program.dedicated_ns = program.dedicated_ns.saturating_add(seen.wide_ns.unwrap_or(0));
        program.lies = program.lies.saturating_add(seen.lies);
    }

    /// All sums; the first is the one for all programs that have none of their own.
    #[must_use]
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }
}

/// The unit of a process by its control group: the service, or else the innermost slice that is no
/// pod's; empty if there is none. Names of scopes, containers and pods are left out: each has
/// another, so their number has no limit over time.
#[must_use]
pub fn unit(group: &Group) -> String {
    if let Some(unit) = group.unit.as_deref().filter(|unit| !unit.ends_with(".scope")) {
        return unit.to_owned();
    }
    let is_pod = |part: &str| part.starts_with("kubepods") && part.contains("-pod");
    let mut slices = group.path.rsplit('/').filter(|part| part.ends_with(".slice"));
    slices.find(|part| !is_pod(part)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use dimmer_policy::server::{SiteId, Window};

    use super::*;

    #[test]
    fn sums_of_clients_with_one_name_and_unit_are_one() {
        let mut totals = Totals::default();
        let places = ["a.service", "a.service", "b.service"];
        let places = places.map(|unit| totals.join(1000, "work", unit, 10));
        assert_eq!(places, [1, 1, 2]);
        let window = Window { calls: 7, moved_calls: 2, in_region_ns: 50, ..Window::default() };
        let windows = vec![(SiteId(1), window), (SiteId(2), window)];
        let seen = Seen { windows, done: 3, lies: 1, wide_ns: Some(9), ..Seen::default() };
        totals.add_seen(1, &seen);
        totals.add_seen(1, &seen);
        let expected = Program {
            program: "work".to_owned(),
            unit: "a.service".to_owned(),
            connections: 2,
            calls: 28,
            moved: 8,
            region_ns: 200,
            done: 6,
            dedicated_ns: 18,
            lies: 2,
        };
        assert_eq!(totals.programs()[1], expected);
    }

    #[test]
    fn programs_beyond_the_limit_are_counted_together() {
        let mut totals = Totals::default();
        let mut join = |user, name: usize| totals.join(user, &name.to_string(), "", 8);
        // A user gets half of what the others leave.
        assert_eq!([0, 1, 2, 3, 4, 5].map(|name| join(1000, name)), [1, 2, 3, 4, 0, 0]);
        assert_eq!([6, 7, 8].map(|name| join(1001, name)), [5, 6, 0]);
        // Root gets what is left.
        assert_eq!([9, 10, 11].map(|name| join(0, name)), [7, 8, 0]);
        // Those that have a sum keep it.
        assert_eq!(join(1000, 3), 4);
        let connections: Vec<u64> = totals.programs().iter().map(|sum| sum.connections).collect();
        assert_eq!(connections, [4, 1, 1, 1, 2, 1, 1, 1, 1]);
    }

    #[test]
    fn units_have_names_that_come_again() {
        #[track_caller]
        fn check(path: &str, expected: &str) {
            let group = Group::parse(&format!("0::{path}\n")).unwrap();
            assert_eq!(unit(&group), expected, "{path}");
        }
        let id = "0123456789abcdef".repeat(4);
        check("/system.slice/nginx.service", "nginx.service");
        check("/system.slice/nginx.service/worker", "nginx.service");
        check("/user.slice/user-1000.slice/session-7.scope", "user-1000.slice");
        check(&format!("/system.slice/docker-{id}.scope"), "system.slice");
        check(&format!("/docker/{id}"), "");
        let pod = "/kubepods.slice/kubepods-burstable.slice/\
                   kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice";
        check(&format!("{pod}/cri-containerd-{id}.scope"), "kubepods-burstable.slice");
        check("/", "");
    }
}
