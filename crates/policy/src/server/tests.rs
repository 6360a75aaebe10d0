//! Tests of the server with made-up clients. Their performance depends on what is moved, as
//! each test defines it.

use dimmer_processor::units::{LicenseLevel, Nanos, nearest};

use super::loops::{LOOPS, thresholds};
use super::settings::Prices;
use super::*;
use crate::cost::CallCost;

const SECOND: Nanos = Nanos::from_ms(1000);
/// The time between two reports of a client.
const TELLS: Nanos = Nanos::from_ms(20);

/// A made-up client: its program, its density in L2, and the part by which its call rate grows if
/// it is moved itself, and for each other client that is.
struct Made {
    program: u64,
    density: f64,
    own: f64,
    others: f64,
}

struct World {
    server: Server,
    clients: Vec<Made>,
    now: Time,
    /// Changed decisions, with their times.
    log: Vec<(Time, Change)>,
    cores: usize,
}

impl World {
    fn new(settings: Settings, clients: Vec<Made>) -> Self {
        let mut server = Server::new(settings, Time::START);
        for (id, client) in (0..).zip(&clients) {
            server.join(ClientId(id), ProgramId(client.program));
        }
        Self { server, clients, now: Time::START, log: Vec::new(), cores: 0 }
    }

    fn is_moved(&self, client: u64) -> bool {
        self.server
            .decision(ClientId(client), SiteId(7))
            .is_some_and(|(action, _)| action == Action::Move)
    }

    /// Lets time pass.
    fn run(&mut self, seconds: u64) {
        let until = self.now + seconds * SECOND;
        while self.now < until {
            self.now += TELLS;
            let moved: Vec<bool> =
                (0..).zip(&self.clients).map(|(id, _)| self.is_moved(id)).collect();
            for (id, client) in (0_u64..).zip(&self.clients) {
                let index = usize::try_from(id).unwrap();
                let others =
                    moved.iter().enumerate().filter(|(at, is)| **is && *at != index).count();
                let gain =
                    if moved[index] { client.own } else { 0.0 } + client.others * others as f64;
                let calls = nearest(20_000.0 * (1.0 + gain));
                let moved = if moved[index] { calls } else { 0 };
                let window = Window {
                    span_ns: TELLS.ns(),
                    calls,
                    in_region_ns: 100 * calls,
                    moved_calls: moved,
                    moved_ns: 100 * moved,
                    evidence: Evidence::LicenseCycles {
                        all: 1000,
                        at: [0, nearest(1000.0 * client.density), 0, 0],
                    },
                };
                assert!(self.server.observe(ClientId(id), SiteId(7), &window));
            }
            let step = self.server.step(self.now);
            self.cores = step.cores;
            self.log.extend(step.changes.into_iter().map(|change| (self.now, change)));
        }
    }

    /// How often a client was moved and taken back since a time.
    fn moves_since(&self, client: u64, since: Time) -> usize {
        let of = |action| {
            let is = |entry: &&(Time, Change)| {
                entry.0 > since && entry.1.client == ClientId(client) && entry.1.action == action
            };
            self.log.iter().filter(is).count()
        };
        of(Action::Move).min(of(Action::Stay))
    }
}

fn gains(own: f64) -> Made {
    Made { program: 1, density: 0.6, own, others: 0.0 }
}

/// The settings that each loop is meant for.
fn all() -> [Settings; LOOPS.len()] {
    LOOPS.map(|definition| (definition.settings)(8, None))
}

#[test]
fn every_loop_moves_what_gains_and_leaves_what_loses() {
    for settings in all() {
        for (own, is_moved) in [(0.15, true), (-0.15, false)] {
            let mut world = World::new(settings.clone(), vec![gains(own), gains(own)]);
            world.run(60);
            assert_eq!([world.is_moved(0), world.is_moved(1)], [is_moved; 2], "{settings:?}");
            assert_eq!(world.cores, usize::from(is_moved));
        }
    }
}

#[test]
fn what_is_only_observed_is_never_moved_nor_tried_and_others_are() {
    // A call costs the code after it far more than handing it over, so the model expects a gain.
    let slow = CallCost { slower: 0.5, kept_below_ns: 1e9, episode_ns: 1e6, ..CallCost::FREE };
    let dear = Some(Prices { hand_over_ns: 100.0, calls: vec![slow; 2] });
    for settings in all() {
        for (prices, is_gain_expected) in [(dear.clone(), true), (None, false)] {
            let settings = Settings { prices, ..settings.clone() };
            let mut world = World::new(settings, vec![gains(0.15), gains(0.15)]);
            world.server.hold(ClientId(0));
            world.run(60);
            let held = Reason::Held { is_gain_expected };
            let decision = world.server.decision(ClientId(0), SiteId(7));
            assert_eq!(decision, Some((Action::Stay, held)));
            assert!(world.is_moved(1));
            let is_moved = |(_, change): &(Time, Change)| {
                change.client.0 == 0 && change.action == Action::Move
            };
            assert!(!world.log.iter().any(is_moved));
        }
        let mut asking = asked(settings);
        asking.hold(ClientId(1));
        calls(&mut asking, 1);
        assert_eq!(asking.step(Time::START).cores, 0);
        let held = Reason::Held { is_gain_expected: true };
        assert_eq!(asking.decision(ClientId(1), SiteId(7)), Some((Action::Stay, held)));
    }
}

/// A server, with a client that asks for cores and has called a function, at the time of its start.
fn asked(settings: Settings) -> Server {
    let mut server = Server::new(settings, Time::START);
    server.join_of(UserId(1), ClientId(1), ProgramId(1));
    server.ask(ClientId(1));
    calls(&mut server, 1);
    server
}

fn calls(server: &mut Server, calls: u64) {
    let window = Window { span_ns: TELLS.ns(), calls, ..Window::default() };
    assert!(server.observe(ClientId(1), SiteId(7), &window));
}

#[test]
fn a_client_that_asks_has_cores_while_it_needs_them_whatever_the_loop() {
    for settings in all() {
        // A call could cost nothing, so no loop would move it.
        let prices = Some(Prices { hand_over_ns: 1e6, calls: vec![CallCost::FREE] });
        let mut server = asked(Settings { prices, ..settings });
        assert_eq!(server.step(Time::START).cores, 1);
        let decision = |server: &Server| server.decision(ClientId(1), SiteId(7));
        assert_eq!(decision(&server), Some((Action::Move, Reason::Asked)));
        // It is on wide cores in a long call, and then no more.
        let at = |seconds: u64| Time::START + seconds * SECOND;
        assert!(server.was_wide(ClientId(1), 1));
        assert_eq!((server.step(at(5)).cores, server.step(at(14)).cores), (1, 1));
        assert_eq!(server.next_wakeup().map(|next| next <= at(15)), Some(true));
        assert!(server.was_wide(ClientId(1), 0));
        let step = server.step(at(15));
        assert_eq!(decision(&server), Some((Action::Stay, Reason::Unneeded)));
        assert_eq!(step.changes.len(), 1);
        calls(&mut server, 1);
        assert_eq!(server.step(at(30)).cores, 1);
        assert_eq!(decision(&server), Some((Action::Move, Reason::Asked)));
        server.leave(ClientId(1));
        assert!(!server.was_wide(ClientId(1), 1) && server.moved() == 0);
    }
}

#[test]
fn a_client_that_asks_has_more_cores_if_its_threads_fill_them_and_none_if_there_is_none() {
    let mut server = asked(Settings::usual(4));
    let cores = |second: u64| {
        assert!(server.was_wide(ClientId(1), 5 * SECOND.ns() / 2));
        server.step(Time::START + second * SECOND).cores
    };
    // Two and a half threads of four.
    assert_eq!((0..6).map(cores).last(), Some(3));
    let mut server = asked(Settings::usual(1));
    assert_eq!(server.step(Time::START).cores, 0);
    let decision = server.decision(ClientId(1), SiteId(7));
    assert_eq!(decision, Some((Action::Stay, Reason::NoCore)));
}

#[test]
fn a_client_that_asks_takes_no_core_by_which_other_users_lose() {
    let mut server = asked(Settings::usual(8));
    server.join_of(UserId(2), ClientId(2), ProgramId(2));
    server.idle(Some(0.0));
    let (mut moved, mut was) = (0, false);
    for look in 1..50_000_u64 {
        calls(&mut server, 100);
        // The other user's program does less while a core is dedicated.
        let window = Window { span_ns: TELLS.ns(), calls: if was { 80 } else { 100 }, ..window() };
        assert!(server.observe(ClientId(2), SiteId(8), &window));
        was = server.step(Time::START + look * TELLS).cores > 0;
        moved += usize::from(was);
    }
    assert!(moved > 0 && moved < 5000, "{moved}");
}

fn window() -> Window {
    Window { evidence: Evidence::None, ..Window::default() }
}

#[test]
fn constant_input_is_no_oscillation() {
    for settings in all() {
        for own in [-0.3, -0.1, -0.02, 0.0, 0.03, 0.1, 0.3] {
            let mut world = World::new(settings.clone(), vec![gains(own)]);
            world.run(300);
            // The exciter fires every 100 s. Where the answer is clear, a trial comes back at most
            // as often.
            let moves = world.moves_since(0, Time::START + 60 * SECOND);
            assert!(moves <= 8, "{own} {moves} {settings:?}");
        }
    }
}

#[test]
fn a_step_of_the_load_is_recovered_from_within_bounds() {
    // Only a trial can show that what lost before would gain now. The paper's loop makes one when
    // its exciter fires. The trials make one when their knowledge of a gain 0.16 below worthwhile
    // has lost so much weight that it may be wrong: 0.99^470. So does auto, whose certainty of a
    // loss of 0.15 takes an hour or so to fade.
    for (settings, bound) in all().into_iter().zip([110, 480, 4800]) {
        let mut world = World::new(settings, vec![gains(0.15)]);
        world.run(30);
        assert!(world.is_moved(0));
        world.clients[0].own = -0.15;
        world.run(30);
        assert!(!world.is_moved(0));
        world.clients[0].own = 0.15;
        world.run(bound);
        assert!(world.is_moved(0));
    }
}

#[test]
fn what_is_scalar_stays_and_takes_no_core() {
    for settings in all() {
        let mut world = World::new(settings, vec![Made { density: 0.0, ..gains(0.5) }]);
        world.run(250);
        assert_eq!(
            world.server.decision(ClientId(0), SiteId(7)),
            Some((Action::Stay, Reason::Scalar))
        );
        assert!(world.cores == 0 && world.log.len() == 1);
    }
}

#[test]
fn programs_that_differ_are_told_apart_by_trials_alone() {
    // The second loses more than the first gains, and both are equally dense.
    let clients = || vec![Made { program: 1, ..gains(0.15) }, Made { program: 2, ..gains(-0.3) }];
    let mut world = World::new(Settings::usual(8), clients());
    world.run(60);
    assert!(world.is_moved(0) && !world.is_moved(1));
    let mut world = World::new(Settings::paper(8), clients());
    world.run(60);
    assert_eq!(world.is_moved(0), world.is_moved(1));
}

#[test]
fn processes_of_a_program_are_tried_together() {
    // Only all of them together gain: each alone loses.
    let client = || Made { others: 0.1, ..gains(-0.05) };
    let mut world = World::new(Settings::usual(8), (0..4).map(|_| client()).collect());
    world.run(20);
    assert!((0..4).all(|id| world.is_moved(id)));
}

#[test]
fn a_call_that_costs_less_than_handing_it_over_stays_and_says_so() {
    let costs = CallCost { slower: 0.0, kept_below_ns: 0.0, episode_ns: 900.0, ..CallCost::FREE };
    for mut settings in all() {
        let price = |hand_over_ns| {
            Some(Prices { hand_over_ns, calls: vec![CallCost::FREE, costs.clone()] })
        };
        let mut world =
            World::new(Settings { prices: price(1000.0), ..settings.clone() }, vec![gains(0.5)]);
        world.run(150);
        let decision = world.server.decision(ClientId(0), SiteId(7));
        assert_eq!(decision, Some((Action::Stay, Reason::HandOverCostsMore)));
        let mut world =
            World::new(Settings { prices: price(800.0), ..settings.clone() }, vec![gains(0.5)]);
        world.run(30);
        assert!(world.is_moved(0));
        // On a processor without levels no call costs anything.
        settings.prices = Some(Prices { hand_over_ns: 1.0, calls: Vec::new() });
        let mut world = World::new(settings, vec![gains(0.5)]);
        world.run(30);
        let decision = world.server.decision(ClientId(0), SiteId(7));
        assert_eq!(decision, Some((Action::Stay, Reason::HandOverCostsMore)));
    }
}

/// Runs clients whose calls should gain much by the processor's prices. Returns how often each was
/// moved and taken back in a minute.
fn expected_to_gain(own: f64) -> (World, usize) {
    let mut settings = Settings::usual(8);
    let costs = CallCost { slower: 0.4, kept_below_ns: 1e5, episode_ns: 1e4, ..CallCost::FREE };
    settings.prices =
        Some(Prices { hand_over_ns: 10.0, calls: vec![CallCost::FREE, costs.clone()] });
    let mut world = World::new(settings, vec![gains(own), gains(own)]);
    world.now = Time::START + TELLS;
    world.run(1);
    // Clients report every 20 ms: the first report is enough.
    let first = world.log[0];
    assert_eq!(
        (first.0, first.1.action, first.1.reason),
        (Time::START + 2 * TELLS, Action::Move, Reason::Expected)
    );
    world.run(59);
    let moves = world.moves_since(0, Time::START);
    (world, moves)
}

#[test]
fn what_should_gain_by_the_processors_prices_is_moved_at_once() {
    let (world, moves) = expected_to_gain(0.15);
    let decision = world.server.decision(ClientId(0), SiteId(7));
    assert_eq!((decision, moves), (Some((Action::Move, Reason::Worth)), 1));
    // A wrong expectation is found out within two windows and the time that a decision takes.
    let (world, moves) = expected_to_gain(-0.15);
    let last = world.log.iter().rfind(|(_, change)| change.action == Action::Move);
    assert!(
        last.is_some_and(|(at, _)| *at < Time::START + 3 * SECOND) && moves == 1,
        "{last:?} {moves}"
    );
    let decision = world.server.decision(ClientId(0), SiteId(7));
    assert_eq!(decision, Some((Action::Stay, Reason::NotWorth)));
}

#[test]
fn what_should_gain_and_runs_for_short_times_is_moved_no_more_often_than_it_pays_for() {
    let mut settings = Settings::usual(8);
    let costs = CallCost { slower: 0.4, kept_below_ns: 1e5, episode_ns: 1e4, ..CallCost::FREE };
    settings.prices =
        Some(Prices { hand_over_ns: 10.0, calls: vec![CallCost::FREE, costs.clone()] });
    let mut world = World::new(settings, vec![gains(-0.3)]);
    let mut moved = 0;
    // The client is there for a second an hour, without any other client. Each time it takes a
    // tenth of a second of a dedicated core.
    for _ in 0..50 {
        world.run(1);
        moved += usize::from(world.is_moved(0));
        world.server.leave(ClientId(0));
        world.now += 3600 * SECOND;
        world.server.join(ClientId(0), ProgramId(1));
    }
    assert!((1..=5).contains(&moved), "{moved}");
}

#[test]
fn nothing_is_expected_of_few_calls_of_short_gaps_or_on_few_cores() {
    let begins_moved = |cores: usize, apart_ns: u64, hand_over_ns: f64| {
        let mut settings = Settings::usual(cores);
        let costs = CallCost {
            slower: 0.3,
            kept_below_ns: 200_000.0,
            episode_ns: 50_000.0,
            ..CallCost::FREE
        };
        settings.prices = Some(Prices { hand_over_ns, calls: vec![CallCost::FREE, costs.clone()] });
        let mut server = Server::new(settings, Time::START);
        server.join(ClientId(1), ProgramId(1));
        let calls = SECOND.ns() / apart_ns;
        let evidence = Evidence::Class(LicenseLevel::new(2));
        let window = Window {
            span_ns: SECOND.ns(),
            calls,
            in_region_ns: 5000 * calls,
            evidence,
            ..Window::default()
        };
        server.observe(ClientId(1), SiteId(1), &window);
        server.moved() > 0
    };
    // 30 % of 95 of 100 us; a hand-over and a core take 2 and 13 % of that.
    assert!(begins_moved(8, 100_000, 2000.0));
    // An episode costs 5 % here.
    assert!(!begins_moved(8, 1_000_000, 2000.0));
    // A client that is in the region all the time has no other code to slow.
    assert!(!begins_moved(8, 5100, 10.0));
    assert!(!begins_moved(8, 100_000, 20_000.0));
    assert!(!begins_moved(2, 100_000, 2000.0));
}

#[test]
fn without_a_core_to_spare_nothing_is_moved() {
    for settings in [Settings::paper(1), Settings::usual(1), Settings::usual(0)] {
        let mut world = World::new(settings, vec![gains(0.5)]);
        world.run(20);
        let decision = world.server.decision(ClientId(0), SiteId(7));
        assert_eq!((decision, world.cores), (Some((Action::Stay, Reason::NoCore)), 0));
    }
}

#[test]
fn clients_that_leave_are_forgotten() {
    for settings in all() {
        let mut world = World::new(settings, vec![gains(0.15), gains(0.15)]);
        world.run(20);
        let count = world.server.moved();
        // Decisions about a client that has left again are not reported.
        let evidence = Evidence::Class(LicenseLevel::new(2));
        let window = Window { evidence, ..Window::default() };
        world.server.join(ClientId(9), ProgramId(9));
        world.server.observe(ClientId(9), SiteId(7), &window);
        world.server.leave(ClientId(9));
        assert!(
            world.server.step(world.now).changes.iter().all(|change| change.client != ClientId(9))
        );
        world.server.leave(ClientId(0));
        world.server.leave(ClientId(0));
        assert_eq!(world.server.moved(), count - 1);
        assert!(!world.server.observe(ClientId(0), SiteId(7), &Window::default()));
        assert!(!world.server.metric(ClientId(0), 1.0));
        world.server.leave(ClientId(1));
        assert_eq!(
            (world.server.moved(), world.server.decision(ClientId(1), SiteId(7))),
            (0, None)
        );
        // The cores go back.
        world.server.step(world.now + 11 * SECOND);
        assert_eq!(world.server.step(world.now + 12 * SECOND).cores, 0);
        assert_eq!(world.server.next_wakeup(), None);
    }
}

/// A program ends, and comes again after `after` seconds. Returns how often its calls were moved
/// within the minute after that, and whether they were at its start.
#[track_caller]
fn comes_again(own: f64, after: u64) -> (usize, bool) {
    let mut world = World::new(Settings::usual(8), vec![gains(own)]);
    world.run(60);
    world.server.leave(ClientId(0));
    world.now += after * SECOND;
    world.server.step(world.now);
    world.server.join(ClientId(0), ProgramId(1));
    let again = world.now;
    world.run(1);
    let begins_moved = world.is_moved(0);
    world.run(59);
    (world.moves_since(0, again), begins_moved)
}

#[test]
fn a_program_that_comes_again_begins_with_what_was_learnt() {
    // What moving ruins is not tried again, and what gains is moved from the start.
    assert_eq!(comes_again(-0.3, 1), (0, false));
    assert!(comes_again(0.3, 1).1);
    // The knowledge grows old meanwhile: after an hour the question is open again.
    let (moves, begins_moved) = comes_again(-0.3, 3600);
    assert!(moves > 0 && !begins_moved, "{moves}");
}

#[test]
fn a_trial_that_ruins_ends_early() {
    // Moved calls last so long that only a third as many are made.
    let mut server = Server::new(Settings::usual(8), Time::START);
    server.join(ClientId(1), ProgramId(1));
    let (mut was, mut moved_ns, mut trials) = (false, 0, 0);
    for now in (0..30 * SECOND.ns()).step_by(usize::try_from(TELLS.ns()).unwrap()) {
        let (calls, each) = if was { (700, 28_000) } else { (2000, 5000) };
        let window = Window {
            span_ns: TELLS.ns(),
            calls,
            in_region_ns: calls * each,
            moved_calls: if was { calls } else { 0 },
            moved_ns: 0,
            evidence: Evidence::Class(LicenseLevel::new(2)),
        };
        server.observe(ClientId(1), SiteId(1), &window);
        server.step(Time::from_ns(now));
        let is = server.moved() > 0;
        moved_ns += if is { TELLS.ns() } else { 0 };
        trials += usize::from(is && !was);
        was = is;
    }
    // The limit of a tenth of a second too much is reached after an eighth of a second. At half a
    // percent that takes twenty seconds to pay.
    assert!((1..=2).contains(&trials) && moved_ns <= 2 * 8 * TELLS.ns(), "{trials} {moved_ns}");
    assert_eq!(server.decision(ClientId(1), SiteId(1)), Some((Action::Stay, Reason::NotWorth)));
}

#[test]
fn a_trial_of_many_threads_calls_is_judged_when_its_effects_have_settled() {
    // The calls fill two cores. For a tenth of a second after they are moved, queues hold them up;
    // then they bring 15 %.
    let mut server = Server::new(Settings::usual(8), Time::START);
    server.join(ClientId(1), ProgramId(1));
    let mut moved_since = None;
    for now in (0..60 * SECOND.ns()).step_by(usize::try_from(TELLS.ns()).unwrap()) {
        let (calls, each) = match moved_since {
            None => (8000, 5000),
            Some(since) if now - since < SECOND.ns() / 10 => (4000, 5100),
            Some(_) => (9200, 5100),
        };
        let moved = if moved_since.is_some() { calls } else { 0 };
        let window = Window {
            span_ns: TELLS.ns(),
            calls,
            in_region_ns: calls * each,
            moved_calls: moved,
            moved_ns: moved * 5000,
            evidence: Evidence::Class(LicenseLevel::new(2)),
        };
        server.observe(ClientId(1), SiteId(1), &window);
        server.step(Time::from_ns(now));
        moved_since = (server.moved() > 0).then(|| moved_since.unwrap_or(now));
    }
    assert!(moved_since.is_some(), "{:?}", server.decision(ClientId(1), SiteId(1)));
}

#[test]
fn what_is_forgotten_is_learnt_anew() {
    let mut world = World::new(Settings::usual(8), vec![gains(0.3)]);
    world.run(60);
    // Nothing is forgotten about a client that is there.
    world.server.forget(ProgramId(1), Some(SiteId(7)));
    assert!(world.is_moved(0));
    world.server.leave(ClientId(0));
    world.server.forget(ProgramId(1), Some(SiteId(7)));
    world.server.forget(ProgramId(1), None);
    assert!(world.server.groups.known.is_empty());
    world.server.join(ClientId(0), ProgramId(1));
    world.run(1);
    assert!(!world.is_moved(0));
    world.run(20);
    assert!(world.is_moved(0));
}

#[test]
fn a_client_that_lies_moves_others_no_further_than_its_share() {
    // Nine clients that lose, and one that claims to do wonders whenever one of them is moved.
    let mut clients: Vec<Made> = (0..9).map(|_| gains(-0.3)).collect();
    clients.push(Made { program: 2, density: 0.0, own: 0.0, others: 1e9 });
    let mut world = World::new(Settings::usual(16), clients);
    world.run(60);
    assert!((0..9).all(|id| !world.is_moved(id)));
}

#[test]
fn what_clients_tell_themselves_counts() {
    // Calls become more frequent, but the client reports that it does worse.
    let mut server = Server::new(Settings::usual(8), Time::START);
    server.join(ClientId(1), ProgramId(1));
    let mut was = false;
    for now in (0..100 * SECOND.ns()).step_by(usize::try_from(TELLS.ns()).unwrap()) {
        let calls = if was { 2000 } else { 1000 };
        let evidence = Evidence::Class(LicenseLevel::new(2));
        let window = Window {
            span_ns: TELLS.ns(),
            calls,
            in_region_ns: calls,
            evidence,
            ..Window::default()
        };
        server.observe(ClientId(1), SiteId(1), &window);
        assert!(server.metric(ClientId(1), if was { 90.0 } else { 100.0 }));
        server.step(Time::from_ns(now));
        was = server.moved() > 0;
    }
    assert_eq!(server.decision(ClientId(1), SiteId(1)), Some((Action::Stay, Reason::NotWorth)));
    assert!(
        [f64::NAN, f64::INFINITY, 0.0, -1.0]
            .iter()
            .all(|value| !server.metric(ClientId(1), *value))
    );
}

/// Checks what holds of every server, for any input: pseudo-random calls, most of them nonsense.
#[test]
fn any_input_is_taken() {
    let numbers = [0, 1, 3, SECOND.ns(), 7 * SECOND.ns(), u64::MAX, u64::MAX / 2];
    let mut state = 1_u64;
    let mut draw = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    for settings in all() {
        let clocks = vec![f64::NAN, 0.9, 0.9, 2.0, 0.0, -1.0];
        let prices = Some(Prices {
            hand_over_ns: f64::NAN,
            calls: vec![CallCost { slower: f64::INFINITY, ..CallCost::FREE }; 3],
        });
        let mut server = Server::new(Settings { clocks, prices, ..settings }, Time::from_ns(77));
        for _ in 0..50_000 {
            let client = ClientId(numbers[draw(4)]);
            let site = SiteId(numbers[draw(7)]);
            match draw(8) {
                0 => server.join(client, ProgramId(numbers[draw(2)])),
                1 if draw(4) == 0 => server.leave(client),
                2 => {
                    server.metric(client, [1.0, f64::NAN, -0.0, 1e308, f64::MIN_POSITIVE][draw(5)]);
                }
                3 | 4 => {
                    let now = Time::from_ns(numbers[draw(7)] / (1 + draw(9) as u64));
                    let step = server.step(now);
                    assert!(step.cores < 8);
                }
                _ => {
                    let mut number = || numbers[draw(7)];
                    let (all, at) = (number(), [number(), number(), number(), number()]);
                    let mut window = Window {
                        span_ns: number(),
                        calls: number(),
                        in_region_ns: number(),
                        moved_calls: number(),
                        moved_ns: number(),
                        evidence: Evidence::None,
                    };
                    window.evidence = [
                        Evidence::LicenseCycles { all, at },
                        Evidence::PackedArithmetic { all, at },
                        Evidence::Clock(f64::from_bits(all.rotate_left(17))),
                        Evidence::Clock(0.8),
                        Evidence::Class(LicenseLevel::new(u32::try_from(all % 9).unwrap())),
                        Evidence::None,
                    ][draw(6)];
                    server.observe(client, site, &window);
                }
            }
            let is_moved = |unit: &Decided| unit.action == Action::Move;
            let units = server.clients.values().flat_map(|client| client.units.values());
            assert_eq!(units.filter(|unit| is_moved(unit)).count(), server.moved());
        }
        let members: usize = server.groups.known.values().map(|(_, members)| members).sum();
        assert_eq!(
            members,
            server.clients.values().map(|client| client.units.len()).sum::<usize>()
        );
    }
}

#[test]
fn no_client_fills_memory_with_sites() {
    let mut server = Server::new(Settings::usual(8), Time::START);
    server.join(ClientId(1), ProgramId(1));
    let taken =
        (0..10_000).filter(|site| server.observe(ClientId(1), SiteId(*site), &Window::default()));
    assert_eq!(taken.count(), MOST_SITES);
}

/// Runs a server with a lying user, whose `liars` clients report twice the performance while their
/// calls are moved, and a client of another user, whose performance is higher by `honest` while a
/// core is dedicated. Returns the part of the time in which a core is dedicated.
fn with_a_liar(settings: Settings, liars: u64, honest: f64, idle: Option<f64>) -> f64 {
    let mut server = Server::new(settings, Time::START);
    for id in 0..=liars {
        let user = UserId(u32::from(id > 0));
        server.join_of(user, ClientId(id), ProgramId(id));
    }
    let (mut dedicated, mut is_moved, steps) = (0, false, 20_000);
    for step in 1..=steps {
        server.idle(idle);
        for id in 0..=liars {
            let is_own_moved = server
                .decision(ClientId(id), SiteId(7))
                .is_some_and(|(action, _)| action == Action::Move);
            let calls = match id {
                0 if is_moved => nearest(20_000.0 * (1.0 + honest)),
                0 => 20_000,
                _ if is_own_moved => 40_000,
                _ => 20_000,
            };
            let moved = if is_own_moved { calls } else { 0 };
            let wide = if id > 0 { 900 } else { 0 };
            let window = Window {
                span_ns: TELLS.ns(),
                calls,
                in_region_ns: 100 * calls,
                moved_calls: moved,
                moved_ns: 100 * moved,
                evidence: Evidence::LicenseCycles { all: 1000, at: [0, wide, 0, 0] },
            };
            assert!(server.observe(ClientId(id), SiteId(7), &window));
        }
        let cores = server.step(Time::START + step * TELLS).cores;
        is_moved = cores > 0;
        dedicated += u64::from(is_moved);
    }
    dedicated as f64 / steps as f64
}

#[test]
fn a_liar_takes_no_core_from_other_users() {
    for settings in all() {
        for liars in [1, 5] {
            let share = with_a_liar(settings.clone(), liars, -0.1, Some(0.0));
            // The paper's loop has windows of a tenth of a second, so it tries more often.
            let is_paper = settings.decides.definition() == &thresholds::DEFINITION;
            let most = if is_paper { 0.15 } else { 0.06 };
            assert!(share < most, "{liars} {share}");
        }
        // A liar may have a core that no other program uses.
        let share = with_a_liar(settings.clone(), 1, -0.1, Some(2.0));
        assert!(share > 0.7, "{share}");
    }
    // And a core by which others lose nothing, as far as they report.
    let share = with_a_liar(Settings::usual(8), 1, 0.0, None);
    assert!(share > 0.7, "{share}");
}
