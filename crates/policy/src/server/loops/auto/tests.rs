//! The loop in a server, with made-up programs whose speed depends on the mechanism in force.

use dimmer_processor::units::{LicenseLevel, nearest};

use super::*;
use crate::server::evidence::Evidence;
use crate::server::{Server, SiteId, Window};

/// The time between two looks at what programs did.
const LOOK: Nanos = Nanos::from_ms(50);

const SITE: SiteId = SiteId(7);

/// A program: its calls a second under none at a time (s), and by how much more it does under
/// delegation.
struct Made<'a> {
    calls: &'a dyn Fn(f64) -> f64,
    gain: f64,
    /// What it reports itself at a time (s), in parts of its calls; 0: nothing.
    reports: &'a dyn Fn(f64) -> f64,
}

fn steady(calls: &dyn Fn(f64) -> f64, gain: f64) -> Made<'_> {
    Made { calls, gain, reports: &|_| 0.0 }
}

struct World {
    server: Server,
    now: Time,
    /// Of each look: the time (s), the cores, and the mechanism found best.
    looks: Vec<(f64, usize, usize)>,
}

impl World {
    fn new() -> Self {
        let settings = (DEFINITION.settings)(8, None);
        Self { server: Server::new(settings, Time::START), now: Time::START, looks: Vec::new() }
    }

    fn joins(&mut self, client: u64, user: u32) {
        self.server.join_of(UserId(user), ClientId(client), ProgramId(client));
    }

    fn cores(&self) -> usize {
        self.looks.last().map_or(0, |look| look.1)
    }

    fn chosen(&self) -> usize {
        self.server.mechanisms().iter().position(|of| of.is_chosen).unwrap()
    }

    fn is_moved(&self, client: u64) -> bool {
        let decision = self.server.decision(ClientId(client), SITE);
        decision.is_some_and(|(action, _)| action == Action::Move)
    }

    /// One look at these clients.
    fn look(&mut self, programs: &[(u64, Made<'_>)]) {
        self.now += LOOK;
        let seconds = (self.now - Time::START).as_f64() / 1e9;
        for (client, made) in programs {
            let is_moved = self.is_moved(*client);
            // Under delegation all programs run beside the dedicated core.
            let gain = if self.cores() > 0 { made.gain } else { 0.0 };
            let calls = nearest((made.calls)(seconds) * (1.0 + gain) * LOOK.as_f64() / 1e9);
            let moved_calls = if is_moved { calls } else { 0 };
            let evidence = match calls {
                0 => Evidence::None,
                _ => Evidence::Class(LicenseLevel::new(2)),
            };
            let (in_region_ns, moved_ns) = (100 * calls, 100 * moved_calls);
            let span_ns = LOOK.ns();
            let window = Window { span_ns, calls, in_region_ns, moved_calls, moved_ns, evidence };
            self.server.observe(ClientId(*client), SITE, &window);
            let reported = (made.reports)(seconds) * calls as f64 * 1e9 / LOOK.as_f64();
            self.server.metric(ClientId(*client), reported);
        }
        let cores = self.server.step(self.now).cores;
        self.looks.push((seconds, cores, self.chosen()));
    }

    /// Runs programs with these numbers for a time.
    fn run(&mut self, seconds: u64, programs: &[(u64, Made<'_>)]) {
        (0..seconds * 20).for_each(|_| self.look(programs));
    }

    /// The longest time for which cores were dedicated without delegation being the choice (s).
    fn longest_trial(&self) -> f64 {
        let (mut longest, mut begun) = (0.0_f64, None);
        for (now, cores, chosen) in &self.looks {
            if *cores > 0 && *chosen != DELEGATE {
                longest = longest.max(now - *begun.get_or_insert(*now));
            } else {
                begun = None;
            }
        }
        longest
    }

    /// The part of the looks with dedicated cores.
    fn dedicated(&self) -> f64 {
        let looks = self.looks.iter().filter(|(_, cores, _)| *cores > 0);
        looks.count() as f64 / self.looks.len() as f64
    }
}

/// A stretch (s), and a look until its end is noticed.
const STRETCH: f64 = 1.2 + 2.0 * 0.05;

fn two(gains: [f64; 2], calls: [f64; 2]) -> World {
    let mut world = World::new();
    (0..2).for_each(|client| world.joins(client, 1));
    let (first, second) = (move |_: f64| calls[0], move |_: f64| calls[1]);
    world.run(100, &[(0, steady(&first, gains[0])), (1, steady(&second, gains[1]))]);
    world
}

#[test]
fn one_program_gains_and_one_loses_and_each_counts_the_same() {
    // However often either calls.
    for calls in [[2e4, 2e4], [2e6, 2e3], [2e3, 2e6]] {
        let world = two([0.3, -0.1], calls);
        assert_eq!((world.chosen(), world.cores()), (DELEGATE, 1), "{calls:?}");
        let world = two([0.1, -0.3], calls);
        assert_eq!((world.chosen(), world.cores()), (0, 0), "{calls:?}");
        // The account: 0.4 % of a period of 100 s by the joint work, which loses some 12 %.
        assert!(world.dedicated() * 0.12 < 0.004, "{}", world.dedicated());
    }
}

#[test]
fn a_trial_gives_the_cores_back_within_a_window() {
    for gain in [0.2, 0.0, -0.02, -0.2, -0.9] {
        let mut world = World::new();
        world.joins(0, 1);
        world.run(200, &[(0, steady(&|_| 2e4, gain))]);
        let longest = world.longest_trial();
        assert!((0.0..STRETCH).contains(&longest), "{gain}: {longest}");
        assert_eq!(world.chosen(), if gain > 0.0 { DELEGATE } else { 0 });
    }
}

#[test]
fn users_count_the_same_however_many_programs_they_have() {
    let mut world = World::new();
    (0..10).for_each(|client| world.joins(client, if client == 0 { 1 } else { 2 }));
    let of = |client: u64| (client, steady(&|_| 2e4, if client == 0 { -0.3 } else { 0.1 }));
    let programs: Vec<_> = (0..10).map(of).collect();
    world.server.idle(Some(8.0));
    world.run(60, &programs);
    assert_eq!(world.chosen(), 0);
}

#[test]
fn no_user_pays_for_the_gain_of_others_by_trials() {
    let mut world = World::new();
    (0..4).for_each(|client| world.joins(client, u32::try_from(client).unwrap()));
    world.server.idle(Some(8.0));
    // By the joint work it hardly matters, so it would be tried a dozen times.
    let gains = [-0.76, 0.4, 0.5, 0.6];
    let programs: Vec<_> =
        (0..4).zip(gains).map(|(client, gain)| (client, steady(&|_| 2e4, gain))).collect();
    let mut lost = Vec::new();
    for _ in 0..300 * 20 {
        world.look(&programs);
        let is_trial = world.cores() > 0 && world.chosen() != DELEGATE;
        lost.push(if is_trial { 0.76 * 0.05 } else { 0.0 });
    }
    // 0.4 % of a hundred seconds, once more as it is paid back meanwhile, and two looks.
    let worst = lost.windows(100 * 20).map(|part| part.iter().sum::<f64>()).fold(0.0, f64::max);
    assert!(worst > 0.0 && worst < 2.0 * 0.4 + 0.76 * 0.1, "{worst}");
}

#[test]
fn a_process_that_comes_ends_the_trial_and_voids_its_window() {
    // Of another program, and of the same.
    for program in [1, 0] {
        let mut world = World::new();
        world.joins(0, 1);
        while world.cores() == 0 {
            world.look(&[(0, steady(&|_| 2e4, 0.3))]);
        }
        world.server.join_of(UserId(1), ClientId(1), ProgramId(program));
        world.look(&[(0, steady(&|_| 2e4, 0.3)), (1, steady(&|_| 2e4, 0.3))]);
        assert_eq!((world.cores(), world.is_moved(0)), (0, false));
        let delegate = world.server.mechanisms()[DELEGATE];
        assert_eq!((delegate.gain, delegate.is_chosen), (None, false));
        // One that goes, too.
        while world.cores() == 0 {
            world.look(&[(0, steady(&|_| 2e4, 0.3)), (1, steady(&|_| 2e4, 0.3))]);
        }
        world.server.leave(ClientId(1));
        world.look(&[(0, steady(&|_| 2e4, 0.3))]);
        assert_eq!((world.cores(), world.is_moved(0)), (0, false));
    }
}

/// As of a build, whose processes are over before two windows could be compared.
#[test]
fn while_processes_come_and_go_nothing_is_tried_and_what_is_in_force_ends() {
    let mut world = World::new();
    world.joins(0, 1);
    let gains = || steady(&|_| 2e4, 0.3);
    world.run(60, &[(0, gains())]);
    assert_eq!(world.chosen(), DELEGATE);
    // Other processes of the same program, so that what is known may still hold.
    for process in 1..2000 {
        world.server.leave(ClientId(process + 9));
        world.server.join_of(UserId(1), ClientId(process + 10), ProgramId(0));
        world.look(&[(0, gains()), (process + 10, gains())]);
        let is_long = process > 2000 - 20;
        assert!(!is_long || world.chosen() == 0, "{process}");
    }
    assert_eq!(world.cores(), 0);
    // An idle one that stays counts as nothing, and the trials begin again.
    world.run(60, &[(0, gains())]);
    assert_eq!(world.chosen(), DELEGATE);
}

#[test]
fn a_program_that_is_stopped_says_nothing_about_mechanisms() {
    for (gain, best) in [(0.2, DELEGATE), (-0.1, 0)] {
        let mut world = World::new();
        (0..2).for_each(|client| world.joins(client, 1));
        // SIGSTOP and SIGCONT, at times that have nothing to do with windows.
        let stops = |now: f64| if (30.0..70.0).contains(&now) { 0.0 } else { 2e4 };
        world.run(160, &[(0, steady(&|_| 2e4, gain)), (1, steady(&stops, gain))]);
        assert_eq!(world.chosen(), best, "{gain}");
        assert!(world.longest_trial() < STRETCH);
    }
    // One that is stopped for each trial, by chance, gains nothing by the other one's loss.
    let mut world = World::new();
    (0..2).for_each(|client| world.joins(client, 1));
    for _ in 0..100 * 20 {
        let calls = if world.cores() > 0 { 0.0 } else { 2e4 };
        let now_stopped = move |_: f64| calls;
        world.look(&[(0, steady(&|_| 2e4, 0.05)), (1, steady(&now_stopped, 0.0))]);
    }
    assert_eq!(world.chosen(), 0);
}

#[test]
fn nothing_is_tried_while_nothing_is_done() {
    let mut world = World::new();
    world.joins(0, 1);
    // It calls once, so it may be moved, and waits.
    world.run(100, &[(0, steady(&|now| if now < 0.06 { 2e4 } else { 0.0 }, 0.3))]);
    assert!(world.dedicated() == 0.0 && world.server.decision(ClientId(0), SITE).is_some());
}

#[test]
fn a_report_that_vanishes_voids_windows_and_calls_count_instead() {
    for (gain, best) in [(0.2, DELEGATE), (-0.1, 0)] {
        let mut world = World::new();
        world.joins(0, 1);
        // What it reports has nothing to do with the number of its calls.
        let reports = |now: f64| if now < 60.0 { 1e6 } else { 0.0 };
        let programs = [(0, Made { reports: &reports, ..steady(&|_| 2e4, gain) })];
        world.run(59, &programs);
        assert_eq!(world.chosen(), best, "{gain}");
        world.run(80, &programs);
        assert_eq!(world.chosen(), best, "{gain}");
    }
}

#[test]
fn what_is_only_observed_is_measured_and_never_moved() {
    let mut world = World::new();
    (0..2).for_each(|client| world.joins(client, 1));
    (0..2).for_each(|client| world.server.hold(ClientId(client)));
    let programs = || [(0, steady(&|_| 2e4, 0.3)), (1, steady(&|_| 2e4, 0.3))];
    world.run(60, &programs());
    assert_eq!((world.dedicated(), world.chosen()), (0.0, 0));
    // A canary: one is acted on, and the other one's loss counts.
    for (gain, best) in [(-0.3, 0), (0.0, DELEGATE)] {
        let mut world = World::new();
        (0..2).for_each(|client| world.joins(client, 1));
        world.server.hold(ClientId(1));
        world.run(60, &[(0, steady(&|_| 2e4, 0.1)), (1, steady(&|_| 2e4, gain))]);
        assert_eq!(world.chosen(), best, "{gain}");
        assert!(!world.is_moved(1));
    }
}
